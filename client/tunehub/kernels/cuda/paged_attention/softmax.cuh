// The softmax of a warpgroup (sm_90) between its products: 64 queries by KEYS keys at a time.
//
// Constants that stand before: those of rows.cuh. Functions: `multiply_scores` starts scores of 64 queries with KEYS
// keys, `multiply_weights` adds the values of KEYS keys by weights in registers; `have_scores` and `have_outputs` wait for
// all groups of products but one, or for all.
//
// Operands lie in shared memory in rows of 128 bytes, 64 elements each, swizzled by 128 bytes; the last part of a head may
// have fewer.

constexpr int PARTS = (D + 63) / 64, LINE = 128;

// Where 16 bytes of a row are, of `rows` in all.
template <int COUNT>
__device__ __forceinline__ unsigned place(int row, int chunk) {
  return chunk / 8 * (COUNT * LINE) + row * LINE + (chunk % 8 ^ row % 8) * 16;
}

// Scores become weights; `factors`: what the output is rescaled by, once products are done with it.
__device__ __forceinline__ void weigh(State& state, float (&s)[KEYS / 8][4], float (&factors)[2], float scale) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float most = s[0][2 * h];
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n) most = max(most, max(s[n][2 * h], s[n][2 * h + 1]));
    most = max(most, of_lane(most, 1));
    most = max(state.row_max[h], max(most, of_lane(most, 2)) * scale);
    factors[h] = exponential(state.row_max[h] - most);
    float sum = state.row_sum[h] * factors[h];
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
      for (int i = 2 * h; i < 2 * h + 2; ++i) s[n][i] = exponential(s[n][i] * scale - most), sum += s[n][i];
    state.row_max[h] = most, state.row_sum[h] = sum;
  }
}

__device__ __forceinline__ void pack(unsigned (&w)[KEYS / 16][4], const float (&s)[KEYS / 8][4]) {
#pragma unroll
  for (int j = 0; j < KEYS / 16; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) w[j][e] = packed(s[2 * j + e / 2][e % 2 * 2], s[2 * j + e / 2][e % 2 * 2 + 1]);
}

__device__ __forceinline__ void rescale(State& state, const float (&factors)[2]) {
#pragma unroll
  for (int n = 0; n < 2 * DEPTHS; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) state.out[n][i] *= factors[i / 2];
}
