// A row of numbers of 16 bits in e4m3, and the scale by which its largest number becomes that of e4m3: by a block.
//
// Constants that stand before: K (elements of a row), THREADS, BFLOAT (the 16 bits are bfloat16's), and LEAST (the largest
// number of a row at least). What is read once stays in registers.

constexpr int VECTORS = K / 8, HELD = (VECTORS + THREADS - 1) / THREADS;
constexpr float LARGEST = 448.0f;

__device__ __forceinline__ float wide(unsigned pair, int which) {
  if constexpr (BFLOAT) return __uint_as_float(which ? pair & 0xffff0000u : pair << 16);
  return half_of(pair, which);
}

__device__ __forceinline__ unsigned in_e4m3(float low, float high) {
  unsigned short found;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(found) : "f"(high), "f"(low));
  return found;
}

__device__ __forceinline__ unsigned word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

__device__ __forceinline__ void narrowed(const void* x, float* scales, void* numbers, long long row) {
  __shared__ float parts[THREADS / 32];
  const char* own = (const char*)x + row * (K * 2);
  uint4 held[HELD];
  float most = LEAST;
#pragma unroll
  for (int i = 0; i < HELD; ++i) {
    const int at = i * THREADS + threadIdx.x;
    held[i] = at < VECTORS ? load_often(own + at * 16) : uint4{0, 0, 0, 0};
#pragma unroll
    for (int w = 0; w < 8; ++w) most = fmaxf(most, fabsf(wide(word(held[i], w / 2), w % 2)));
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, mask));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = most;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < THREADS / 32; ++w) most = fmaxf(most, parts[w]);
  const float scale = most / LARGEST;
  if (threadIdx.x == 0) scales[row] = scale;
#pragma unroll
  for (int i = 0; i < HELD; ++i) {
    const int at = i * THREADS + threadIdx.x;
    unsigned two[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) two[w] = in_e4m3(wide(word(held[i], w), 0) / scale, wide(word(held[i], w), 1) / scale);
    if (at < VECTORS) *(uint2*)((char*)numbers + row * K + at * 8) = {two[0] | two[1] << 16, two[2] | two[3] << 16};
  }
}
