// A block's part of y = x · Wᵀ for few rows of x: COLUMNS = 16 · TILES · WN results of each row, by WK teams of WN warps.
//
// Constants that stand before: M (rows at most), N, K, MT (tiles of 8 rows), TILES (of 16 columns of a warp), WN (warps of
// a team, along columns), WK (teams, along K), STAGES (slices of K of a team that are in shared memory), DEPTH (of K in a
// slice, at most 256), FORMAT (bits of a weight: 16, 8 or 4), E4M3 (8 bits are a number in e4m3, without a
// scale), AFTER (scales are multiplied with sums of a group), HELD (x goes straight into registers, of 4 bits and without
// AFTER), BFLOAT (the 16 bits are bfloat16's).
//
// Each team has its own slices and its own place in shared memory, and waits for no other until sums are added up, always
// in the same order. cp.async brings weights, scales and x there; ldmatrix gives each lane of four a 32-bit word of the 16
// bytes of a row, which of 4 bits is a group: so mma.sync (16 × 16 weights, 16 × 8 of x) adds up products of one group.
// Numbers of 4 and 8 bits are used as they are, as subnormal numbers of half precision: q · 2^-24, which is exact. What is
// taken from them is a product of a constant with the same x, where sums begin.

constexpr int COLUMNS = 16 * TILES * WN, TEAM = 32 * WN;
constexpr int LANE_X = FORMAT == 16 ? 16 : FORMAT == 8 ? 32 : 64, STRIDE_X = DEPTH * 2 + LANE_X - DEPTH * 2 % 128;
constexpr int STAGE = COLUMNS * STRIDE + (HELD ? 0 : M * STRIDE_X);
constexpr unsigned OFFSET = FORMAT == 4 ? 0x80078007u : 0x807f807fu;  // -7 and -127, times 2^-24

// Begin to bring a slice of K into shared memory. What is behind the end of K is 0.
__device__ __forceinline__ void fetch(unsigned stage, const Operands& from, int slice) {
  const int thread = threadIdx.x % TEAM;
  constexpr int VECTORS_X = DEPTH / 8;
  fetch_weights<COLUMNS, TEAM>(stage, from, slice, thread);
  if constexpr (HELD) return;
#pragma unroll
  for (int i = 0; i < M * VECTORS_X; i += TEAM) {
    const int at = i + thread, row = at / VECTORS_X, v = at % VECTORS_X;
    if (M * VECTORS_X % TEAM && row >= M) break;
    const char* own = from.data + (long long)(row < from.rows ? row : from.rows - 1) * (K * 2);
    copy<16>(stage + COLUMNS * STRIDE + row * STRIDE_X + v * 16, own + slice * (DEPTH * 2) + v * 16,
             WHOLE || slice * DEPTH + v * 8 < K);
  }
}

// Eight neighbouring elements as mma.sync has them with numbers of 4 bits: the pairs (0, 4), (2, 6), (1, 5), (3, 7).
__device__ __forceinline__ void paired(unsigned (&x)[4], const uint4& all) {
  x[0] = bytes(all.x, all.z, 0x5410u), x[1] = bytes(all.y, all.w, 0x5410u);
  x[2] = bytes(all.x, all.z, 0x7632u), x[3] = bytes(all.y, all.w, 0x7632u);
}

// What a lane multiplies of x in a slice, where it is held in registers: 8 elements of each chunk and row.
struct Held {
  const char* own[MT];
  uint4 x[DEPTH / 32][MT];
};

// Begin to load a chunk of a slice; what is behind the end of K is 0.
__device__ __forceinline__ void hold(Held& held, int slice, int chunk, int j) {
  const bool inside = slice < SLICES && (WHOLE || slice * DEPTH + chunk * 32 < K);
  if (!WHOLE && !inside) held.x[chunk][j] = {0, 0, 0, 0};
  load_where(held.x[chunk][j], held.own[j] + (long long)slice * (DEPTH * 2) + chunk * 64, inside);
}

// Begin to load a slice.
__device__ __forceinline__ void hold_first(Held& held, const Operands& from, int slice) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < MT; ++j) {
    const int wanted = 8 * j + lane / 4, row = wanted < from.rows ? wanted : from.rows - 1;
    held.own[j] = from.data + (long long)row * (K * 2) + lane % 4 * 16;
#pragma unroll
    for (int chunk = 0; chunk < DEPTH / 32; ++chunk) {
      held.x[chunk][j] = {0, 0, 0, 0};
      hold(held, slice, chunk, j);
    }
  }
}

// The elements of x that a lane multiplies in a chunk of 32 of K, as mma.sync has them in two instructions.
__device__ __forceinline__ void read_x(unsigned (&x)[MT][4], unsigned stage, int chunk) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < MT; ++j) {
    const int wanted = 8 * j + (FORMAT == 16 ? lane % 8 : lane / 4), row = wanted < M ? wanted : M - 1;
    const unsigned from = stage + COLUMNS * STRIDE + row * STRIDE_X + chunk * 64;
    if constexpr (FORMAT == 16) {
      load_matrices(x[j], from + lane / 8 * 16);
    } else if constexpr (FORMAT == 8) {
      const uint2 first = load_two(from + lane % 4 * 8), second = load_two(from + lane % 4 * 8 + 32);
      x[j][0] = first.x, x[j][1] = first.y, x[j][2] = second.x, x[j][3] = second.y;
    } else {
      paired(x[j], load_four(from + lane % 4 * 16));
    }
  }
}

// Numbers of two rows as they are: what the first instruction takes, and the second; of 4 bits the second has 16 times them.
__device__ __forceinline__ void numbers(unsigned (&a)[2][4], unsigned p, unsigned q, unsigned r, unsigned s) {
  if constexpr (FORMAT == 8) {
    a[0][0] = bytes(p, 0, 0x4140u), a[0][1] = bytes(q, 0, 0x4140u), a[0][2] = bytes(p, 0, 0x4342u);
    a[0][3] = bytes(q, 0, 0x4342u), a[1][0] = bytes(r, 0, 0x4140u), a[1][1] = bytes(s, 0, 0x4140u);
    a[1][2] = bytes(r, 0, 0x4342u), a[1][3] = bytes(s, 0, 0x4342u);
  } else {
    a[0][0] = p & 0x000f000fu, a[0][1] = q & 0x000f000fu, a[0][2] = p >> 8 & 0x000f000fu, a[0][3] = q >> 8 & 0x000f000fu;
    a[1][0] = p & 0x00f000f0u, a[1][1] = q & 0x00f000f0u, a[1][2] = p >> 8 & 0x00f000f0u, a[1][3] = q >> 8 & 0x00f000f0u;
  }
}

// Multiply a slice, and where x is held begin to load that of the `next` one.
__device__ __forceinline__ void multiply_add(float (&sums)[TILES][MT][4], unsigned stage, const Masks& masks, Held& held,
                                             int next) {
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 % WN * TILES * 16;
  const unsigned own = stage + (first + lane / 8 % 2 * 8 + lane % 8) * STRIDE + lane / 16 * 16;
  uint4 scales[TILES][2];
  if constexpr (SCALED)
#pragma unroll
    for (int r = 0; r < TILES; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) scales[r][h] = load_four(stage + (first + r * 16 + h * 8 + lane / 4) * STRIDE + ROW);
  unsigned words[TILES][4];
#pragma unroll
  for (int chunk = 0; chunk < DEPTH / 32; ++chunk) {
    unsigned x[MT][4];
    if constexpr (HELD) {
#pragma unroll
      for (int j = 0; j < MT; ++j) paired(x[j], held.x[chunk][j]), hold(held, next, chunk, j);
    } else {
      read_x(x, stage, chunk);
    }
    float start[MT][4];
    if constexpr (AFTER)
#pragma unroll
      for (int j = 0; j < MT; ++j) {
        mma_from(start[j], OFFSET, OFFSET, OFFSET, OFFSET, x[j][0], x[j][1], 0, 0, 0, 0);
        mma(start[j], OFFSET, OFFSET, OFFSET, OFFSET, x[j][2], x[j][3]);
      }
#pragma unroll
    for (int r = 0; r < TILES; ++r) {
      unsigned a[2][4];
      if constexpr (FORMAT == 16) {
        load_matrices(a[0], own + r * 16 * STRIDE + chunk * 64);
        load_matrices(a[1], own + r * 16 * STRIDE + chunk * 64 + 32);
      } else {
        if (FORMAT == 8 || chunk % 2 == 0) load_matrices(words[r], own + r * 16 * STRIDE + chunk * (4 * FORMAT));
        const unsigned* now = words[r] + (FORMAT == 4 ? chunk % 2 * 2 : 0);
        if constexpr (AFTER) numbers(a, now[0], now[1], words[r][2], words[r][3]);
        else weights_of(a, now[0], now[1], words[r][2], words[r][3], SCALED ? twice(word(scales[r][0], chunk / 2), chunk % 2) : 0,
                        SCALED ? twice(word(scales[r][1], chunk / 2), chunk % 2) : 0, masks);
      }
      if constexpr (AFTER) {
        const float one = half_of(word(scales[r][0], chunk / 2), chunk % 2), other = half_of(word(scales[r][1], chunk / 2), chunk % 2);
#pragma unroll
        for (int j = 0; j < MT; ++j) {
          float group[4], more[4];
          mma_from(group, a[0][0], a[0][1], a[0][2], a[0][3], x[j][0], x[j][1], start[j][0], start[j][1], start[j][2],
                   start[j][3]);
          if constexpr (FORMAT == 8) mma(group, a[1][0], a[1][1], a[1][2], a[1][3], x[j][2], x[j][3]);
          else mma_from(more, a[1][0], a[1][1], a[1][2], a[1][3], x[j][2], x[j][3], 0, 0, 0, 0);
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (M > 1 || i % 2 == 0) sums[r][j][i] += (i < 2 ? one : other) * (FORMAT == 8 ? group[i] : group[i] + 0.0625f * more[i]);
        }
      } else {
#pragma unroll
        for (int j = 0; j < MT; ++j) {
          mma(sums[r][j], a[0][0], a[0][1], a[0][2], a[0][3], x[j][0], x[j][1]);
          mma(sums[r][j], a[1][0], a[1][1], a[1][2], a[1][3], x[j][2], x[j][3]);
        }
      }
    }
  }
}

// The results from `column` on, in shared memory, for all threads once they have met: at `results` those of the first row,
// at `second` those of the second. x has `rows` of them, at most M. The teams' places are from `pool` on, `last` is its end.
__device__ __forceinline__ void product(const void* data, const void* weights, const void* scales, float* results,
                                        const float* second, int column, void* pool, const void* last, int rows) {
  constexpr int FRAGMENTS = WN * TILES * MT;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, team = warp / WN;
  const Operands from = {(const char*)data, (const char*)weights, (const char*)scales, column, rows};
  const unsigned stages = shared_address(pool) + team * STAGES * STAGE;
  float sums[TILES][MT][4] = {};
  const Masks masks = masks_of_numbers();
  Held held;
  if constexpr (HELD) hold_first(held, from, team);
#pragma unroll
  for (int s = 0; s < STAGES; ++s) {
    if (team + s * WK < SLICES) fetch(stages + s * STAGE, from, team + s * WK);
    copies_end();
  }
  for (int slice = team, at = 0; slice < SLICES; slice += WK, at = at + 1 == STAGES ? 0 : at + 1) {
    wait_for_copies<STAGES - 1>();
    meet<WN>(team);
    multiply_add(sums, stages + at * STAGE, masks, held, slice + WK);
    meet<WN>(team);
    if (slice + STAGES * WK < SLICES) fetch(stages + at * STAGE, from, slice + STAGES * WK);
    copies_end();
  }
  wait_for_copies<0>();
  __syncthreads();
  float4* parts = (float4*)pool;
#pragma unroll
  for (int r = 0; r < TILES; ++r)
#pragma unroll
    for (int j = 0; j < MT; ++j)
      parts[((warp * TILES + r) * MT + j) * 32 + lane] = {sums[r][j][0], sums[r][j][1], sums[r][j][2], sums[r][j][3]};
  __syncthreads();
  for (int f = warp; f < FRAGMENTS; f += WN * WK) {
    float4 sum = parts[f * 32 + lane];
#pragma unroll
    for (int g = 1; g < WK; ++g) {
      const float4 part = parts[(g * FRAGMENTS + f) * 32 + lane];
      sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
    }
    write<COLUMNS>(results, int(second - results), from, f / MT * 16, f % MT, sum, AFTER ? 16777216.0f : 1.0f);  // 2^24
  }
  __syncthreads();
}
