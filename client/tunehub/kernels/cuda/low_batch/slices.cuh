// Slices of weights in shared memory, and sums of fragments: what the kernels with stages share. N, K, FORMAT, E4M3, DEPTH
// and GATED (as kernel.cuh has it) as they explain.

constexpr bool SCALED = FORMAT < 16 && !E4M3;
constexpr int GROUP = 32, ROW = DEPTH * FORMAT / 8, SCALES = SCALED ? DEPTH / GROUP * 2 : 0;  // bytes in a stage
constexpr int FILLED = ROW + (SCALES + 15) / 16 * 16;
constexpr int STRIDE = FILLED + (FILLED % 32 == 0 ? 16 : 0);  // rows of 16 bytes start at different banks
constexpr int SLICES = (K + DEPTH - 1) / DEPTH;
constexpr bool WHOLE = K % DEPTH == 0;

__device__ __forceinline__ unsigned word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

struct Operands {
  const char *data, *weights, *scales;
  int column, rows;
};

// The row of weights of a column.
__device__ __forceinline__ int weight_row(int column) {
  return GATED ? column / 16 * 8 + column % 8 + column % 16 / 8 * (N / 2) : column;
}

// Begin to bring a slice of WANTED rows of weights into shared memory, by so many THREADS. What is behind the end of K is 0.
template <int WANTED, int THREADS>
__device__ __forceinline__ void fetch_weights(unsigned stage, const Operands& from, int slice, int thread) {
  constexpr int VECTORS = ROW / 16;
#pragma unroll
  for (int i = 0; i < WANTED * VECTORS; i += THREADS) {
    const int at = i + thread, row = at / VECTORS, v = at % VECTORS, wanted = from.column + row;
    if (WANTED * VECTORS % THREADS && row >= WANTED) break;
    const char* own = from.weights + (long long)weight_row(N % WANTED == 0 || wanted < N ? wanted : N - 1) * (K / 8 * FORMAT);
    copy<16>(stage + row * STRIDE + v * 16, own + slice * ROW + v * 16, WHOLE || slice * DEPTH + v * (128 / FORMAT) < K);
  }
  if constexpr (SCALED) {
    constexpr int BOTH = SCALES | K / GROUP * 2 | 16, BYTES = BOTH & -BOTH;
    constexpr int PARTS = SCALES / BYTES;
#pragma unroll
    for (int i = 0; i < WANTED * PARTS; i += THREADS) {
      const int at = i + thread, row = at / PARTS, p = at % PARTS, wanted = from.column + row;
      if (WANTED * PARTS % THREADS && row >= WANTED) break;
      const char* own = from.scales + (long long)weight_row(N % WANTED == 0 || wanted < N ? wanted : N - 1) * (K / GROUP * 2);
      copy<BYTES>(stage + row * STRIDE + ROW + p * BYTES, own + slice * SCALES + p * BYTES,
                  WHOLE || slice * (DEPTH / GROUP) + p * (BYTES / 2) < K / GROUP);
    }
  }
}

// Write the sums of a tile of columns and rows, times a factor, into shared memory: those of a row of x lie beside each
// other. A block has COLUMNS.
template <int COLUMNS>
__device__ __forceinline__ void write(float* results, int stride, const Operands& of, int columns, int j, const float4& sum,
                                      float factor = 1.0f) {
  const int lane = threadIdx.x % 32, row = 8 * j + lane % 4 * 2, column = columns + lane / 4;
  float* to = results + row * stride + column;
  const bool whole = N % COLUMNS == 0, one = whole || of.column + column < N, other = whole || of.column + column + 8 < N;
  if (row < of.rows && one) to[0] = sum.x * factor;
  if (row < of.rows && other) to[8] = sum.z * factor;
  if (row + 1 < of.rows && one) to[stride] = sum.y * factor;
  if (row + 1 < of.rows && other) to[stride + 8] = sum.w * factor;
}

