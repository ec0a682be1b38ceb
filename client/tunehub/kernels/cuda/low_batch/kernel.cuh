// A block's part of y = x · Wᵀ for few rows of x: COLUMNS = 16 · TILES · WN results of each row, by WN × WK warps.
//
// Constants that stand before: M (rows at most), N, K, MT (tiles of 8 rows), TILES (of 16 columns of a warp), WN and WK
// (warps along columns and K), UNROLL (chunks of K of a warp in a step), DEPTH (steps that are loaded before they are
// needed), FORMAT (bits of a weight: 16, 8 or 4), E4M3 (8 bits are a number in e4m3, without a scale),
// BFLOAT (the 16 bits are bfloat16's), ROOM (elements of shared memory), GATED (the rows of W are those of two halves, see
// weight_row).
//
// mma.sync multiplies 16 × 16 weights with 16 × 8 of x. A sum does not depend on the order of K, so lane t of four takes
// as many neighbours of K as lie in 16 bytes of a weight's row, and the same ones of x: both come from memory in vectors,
// straight to where mma.sync wants them. Warps that share columns add up in shared memory, always in the same order.

constexpr int PER_LANE = 128 / FORMAT, CHUNK = 4 * PER_LANE, STEP = CHUNK * UNROLL, GROUP = 32;
constexpr int COLUMNS = 16 * TILES * WN, HELD = 2 * TILES, PARTS = PER_LANE / 8;
constexpr bool WHOLE = K % (STEP * WK) == 0, SCALED = FORMAT < 16 && !E4M3;
constexpr int FIT = ROOM / (COLUMNS * 8 * WK), AT_ONCE = FIT < 1 ? 1 : FIT < MT ? FIT : MT;

struct Step {
  uint4 weights[UNROLL][HELD];
  unsigned scales[UNROLL][HELD];
};

__device__ __forceinline__ unsigned word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// The 16-bit weights of a 32-bit word, two in each: 8 of them with pairs (0, 4), (1, 5), (2, 6), (3, 7) where FORMAT is 4,
// else 4 with pairs (0, 1), (2, 3). As (q - 7) * scale and (q - 127) * scale in half precision.
__device__ __forceinline__ void dequantise(unsigned (&out)[16 / FORMAT], unsigned q, unsigned scale) {
  if constexpr (E4M3) {
    out[0] = two_of_e4m3(q, 0), out[1] = two_of_e4m3(q, 1);
  } else if constexpr (BFLOAT && FORMAT == 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = bfloats_of_four(q >> 4 * i, scale);
  } else if constexpr (BFLOAT && FORMAT == 8) {
    out[0] = bfloats_of_eight(bytes(q, 0, 0x7170u), scale);
    out[1] = bfloats_of_eight(bytes(q, 0, 0x7372u), scale);
  } else if constexpr (FORMAT == 4) {
#pragma unroll
    for (int i = 0; i < 4; i += 2, q >>= 8) {
      out[i] = multiply(add(and_or(q, 0x000f000fu, 0x64006400u), 0xe407e407u), scale);  // 1024 + q, - 1031
      out[i + 1] = multiply(fma(and_or(q, 0x00f000f0u, 0x64006400u), 0x2c002c00u, 0xd470d470u), scale);  // 1024 + 16 q
    }
  } else if constexpr (FORMAT == 8) {
    out[0] = multiply(add(bytes(q, 0x64646464u, 0x4140u), 0xe47fe47fu), scale);  // 1024 + q, - 1151
    out[1] = multiply(add(bytes(q, 0x64646464u, 0x4342u), 0xe47fe47fu), scale);
  }
}

struct Lane {
  const char* rows[HELD];
  const char* scales[HELD];
  const char* data[MT];
  int begin;  // of its neighbours in K
};

__device__ __forceinline__ void load(Step& step, const Lane& lane, int k) {
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    const int at = k + u * CHUNK + lane.begin;
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
      const bool inside = WHOLE || at < K;
      step.weights[u][i] = inside ? load_once(lane.rows[i] + (long long)at * FORMAT / 8) : uint4{0, 0, 0, 0};
      if constexpr (SCALED) step.scales[u][i] = inside ? load_half(lane.scales[i] + at / GROUP * 2) : 0u;
    }
  }
}

__device__ __forceinline__ void multiply_add(float (&sums)[TILES][MT][4], const Step& step, const Lane& lane, int k) {
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    const int at = k + u * CHUNK + lane.begin;
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
      uint4 x[MT];
#pragma unroll
      for (int j = 0; j < MT; ++j) {
        x[j] = WHOLE || at < K ? load_often(lane.data[j] + (at + 8 * i) * 2) : uint4{0, 0, 0, 0};
        if constexpr (FORMAT == 4)
          x[j] = {bytes(x[j].x, x[j].z, 0x5410u), bytes(x[j].x, x[j].z, 0x7632u), bytes(x[j].y, x[j].w, 0x5410u),
                  bytes(x[j].y, x[j].w, 0x7632u)};
      }
#pragma unroll
      for (int r = 0; r < TILES; ++r) {
        unsigned a[2][4];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const uint4& weights = step.weights[u][2 * r + h];
          if constexpr (FORMAT == 16) {
#pragma unroll
            for (int n = 0; n < 4; ++n) a[h][n] = word(weights, n);
          } else {
            constexpr int WORDS = FORMAT / 4;  // for 8 weights
            const unsigned scale = SCALED ? bytes(step.scales[u][2 * r + h], 0, 0x1010u) : 0;
            unsigned pairs[16 / FORMAT];
#pragma unroll
            for (int n = 0; n < WORDS; ++n) {
              dequantise(pairs, word(weights, WORDS * i + n), scale);
#pragma unroll
              for (int p = 0; p < 16 / FORMAT; ++p) a[h][n * (16 / FORMAT) + p] = pairs[p];
            }
          }
        }
#pragma unroll
        for (int j = 0; j < MT; ++j) {
          mma(sums[r][j], a[0][0], a[1][0], a[0][1], a[1][1], x[j].x, x[j].y);
          mma(sums[r][j], a[0][2], a[1][2], a[0][3], a[1][3], x[j].z, x[j].w);
        }
      }
    }
  }
}

// The row of weights of a column: of a product with two halves of them 16 columns are 8 of the one and 8 of the other.
__device__ __forceinline__ int weight_row(int column) {
  return GATED ? column / 16 * 8 + column % 8 + column % 16 / 8 * (N / 2) : column;
}

struct Results {
  float* first;
  int stride, rows, columns;  // from one row to the next; those that there are
};

// Write the sums of a tile of columns and rows: those of a row of x lie beside each other.
__device__ __forceinline__ void write(const Results& out, int columns, int j, const float4& sum) {
  const int lane = threadIdx.x % 32, row = 8 * j + lane % 4 * 2, column = columns + lane / 4;
  float* to = out.first + row * out.stride + column;
  const bool whole = N % COLUMNS == 0, one = whole || column < out.columns, other = whole || column + 8 < out.columns;
  if (row < out.rows && one) to[0] = sum.x;
  if (row < out.rows && other) to[8] = sum.z;
  if (row + 1 < out.rows && one) to[out.stride] = sum.y;
  if (row + 1 < out.rows && other) to[out.stride + 8] = sum.w;
}

// The results from `column` on, in shared memory, for all threads once they have met: at `results` those of the first row,
// at `second` those of the second. There are `rows` of them, at most M, whose places in x `place_of` says.
template <class Places>
__device__ __forceinline__ void product_of(const void* data, const void* weights, const void* scales, float* results,
                                           const float* second, int column, int rows, Places place_of) {
  __shared__ __align__(16) float parts[WK * COLUMNS * AT_ONCE * 8];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, along = warp % WN, group = warp / WN;
  const Results out = {results, int(second - results), rows, N - column};
  Lane own;
  own.begin = lane % 4 * PER_LANE;
#pragma unroll
  for (int i = 0; i < HELD; ++i) {
    const int wanted = column + (along * HELD + i) * 8 + lane / 4, row = weight_row(wanted < N ? wanted : N - 1);
    own.rows[i] = (const char*)weights + (long long)row * (K / 8 * FORMAT);
    if constexpr (SCALED) own.scales[i] = (const char*)scales + (long long)row * (K / GROUP * 2);
  }
#pragma unroll
  for (int j = 0; j < MT; ++j) {
    const int row = 8 * j + lane / 4;
    own.data[j] = (const char*)data + (long long)place_of(row < rows ? row : rows - 1) * (K * 2);
  }
  float sums[TILES][MT][4] = {};
  Step steps[DEPTH];
  const int first = group * STEP;
#pragma unroll
  for (int d = 0; d < DEPTH; ++d)
    if (first + d * STEP * WK < K) load(steps[d], own, first + d * STEP * WK);
  for (int k = first; k < K; k += STEP * WK * DEPTH) {
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
      const int now = k + d * STEP * WK, next = now + DEPTH * STEP * WK;
      if (now < K) {
        const Step step = steps[d];
        if (next < K) load(steps[d], own, next);
        multiply_add(sums, step, own, now);
      }
    }
  }
#pragma unroll
  for (int begin = 0; begin < MT; begin += AT_ONCE) {
    __syncthreads();
#pragma unroll
    for (int r = 0; r < TILES; ++r)
#pragma unroll
      for (int j = begin; j < begin + AT_ONCE && j < MT; ++j)
        *(float4*)(parts + (((group * WN + along) * TILES + r) * AT_ONCE + j - begin) * 128 + lane * 4) =
            float4{sums[r][j][0], sums[r][j][1], sums[r][j][2], sums[r][j][3]};
    __syncthreads();
    for (int f = warp; f < WN * TILES * AT_ONCE; f += WN * WK) {
      float4 sum = *(float4*)(parts + f * 128 + lane * 4);
#pragma unroll
      for (int g = 1; g < WK; ++g) {
        const float4 part = *(float4*)(parts + (g * WN * TILES * AT_ONCE + f) * 128 + lane * 4);
        sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
      }
      write(out, f / AT_ONCE * 16, begin + f % AT_ONCE, sum);
    }
  }
  __syncthreads();
}

// Of the first rows of x.
__device__ __forceinline__ void product(const void* data, const void* weights, const void* scales, float* results,
                                        const float* second, int column, int rows) {
  product_of(data, weights, scales, results, second, column, rows, [](int row) { return row; });
}
