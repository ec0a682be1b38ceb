// Quantised weights as numbers in bfloat16.

// Of two numbers of 4 bits, in the lowest bits of each half of a word, whatever the other bits are: 128 + q, - 135.
__device__ __forceinline__ unsigned bfloats_of_four(unsigned numbers, unsigned scale) {
  const unsigned exact = fma_bfloat(and_or(numbers, 0x000f000fu, 0x43004300u), 0x3f803f80u, 0xc307c307u);
  return fma_bfloat(exact, scale, 0x80008000u);
}

// Of two numbers of 8 bits, the lowest of each half of a word; the others are 0. 128 + 7 bits, - 255, and 128 for the eighth.
__device__ __forceinline__ unsigned bfloats_of_eight(unsigned numbers, unsigned scale) {
  const unsigned seven = fma_bfloat(and_or(numbers, 0x007f007fu, 0x43004300u), 0x3f803f80u, 0xc37fc37fu);
  return fma_bfloat(fma_bfloat((numbers & 0x00800080u) * 0x86u, 0x3f803f80u, seven), scale, 0x80008000u);
}

