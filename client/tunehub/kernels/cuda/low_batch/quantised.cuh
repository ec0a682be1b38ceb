// Packed weights as numbers in half precision. FORMAT: bits of a weight; E4M3: the 8 bits are a number in e4m3.

// Of the first and the second number of four bits in each byte of a half.
struct Masks {
  unsigned low, high;
};
__device__ __forceinline__ Masks masks_of_numbers() {
  return {FORMAT == 4 ? held(0x000f000fu) : 0, FORMAT == 4 ? held(0x00f000f0u) : 0};
}

// Numbers of two rows as weights in half precision, of 32 along K: what the first two instructions take, and the others.
__device__ __forceinline__ void weights_of(unsigned (&a)[2][4], unsigned p, unsigned q, unsigned r, unsigned s, unsigned one,
                                           unsigned other, const Masks& masks) {
  if constexpr (E4M3) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[0][i] = two_of_e4m3(i % 2 ? q : p, i / 2), a[1][i] = two_of_e4m3(i % 2 ? s : r, i / 2);
  } else if constexpr (FORMAT == 8) {
    a[0][0] = bytes(p, 0x64646464u, 0x4140u), a[0][1] = bytes(q, 0x64646464u, 0x4140u);
    a[0][2] = bytes(p, 0x64646464u, 0x4342u), a[0][3] = bytes(q, 0x64646464u, 0x4342u);
    a[1][0] = bytes(r, 0x64646464u, 0x4140u), a[1][1] = bytes(s, 0x64646464u, 0x4140u);
    a[1][2] = bytes(r, 0x64646464u, 0x4342u), a[1][3] = bytes(s, 0x64646464u, 0x4342u);
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int i = 0; i < 4; ++i) a[h][i] = multiply(add(a[h][i], 0xe47fe47fu), i % 2 ? other : one);  // 1024 + q, - 1151
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned from = (i % 2 ? q : p) >> i / 2 * 8, scale = i % 2 ? other : one;
      a[0][i] = multiply(add(and_or(from, masks.low, 0x64006400u), 0xe407e407u), scale);  // 1024 + q, - 1031
      a[1][i] = multiply(fma(and_or(from, masks.high, 0x64006400u), 0x2c002c00u, 0xd470d470u), scale);  // (1024 + 16 q) / 16 - 71
    }
  }
}

