// Numbers in e4m3 as weights of 16 bits.

// Two neighbours of the four in a word, the first or the last ones.
__device__ __forceinline__ unsigned two_of_e4m3(unsigned four, int last) {
  if constexpr (BFLOAT) {
    const unsigned high = last ? bytes(four, 0, 0x3424u) : bytes(four, 0, 0x1404u);  // each in the upper byte of a half
    return fma_bfloat(and_or(high >> 4, 0x07f007f0u, high & 0x80008000u), 0x7b807b80u, 0x80008000u);  // 2^120
  }
  return halves_of_e4m3(last ? four >> 16 : four);
}

