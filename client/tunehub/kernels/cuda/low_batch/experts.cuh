// The products of rows of x with the weights [N, K] of one expert, as far as they chose it: `numbers` has the CHOSEN experts of
// each of `tokens`, one for a result, SHARED of which are of one row of x. Behind kernel.cuh.
//
// `results` and `list` are shared memory, to `last` and `end`: TVM gives as much as it sees in use. `list` is for COUNTED
// numbers, and as many places. Each thread counts who is before its own number; then
// the block computes M rows at a time. An expert that nobody chose is not read.

constexpr int COUNTED = 32 * WN * WK;

template <class T>
__device__ __forceinline__ void write_rows(T* out, const float* results, const int* places, int column, int rows,
                                           const float* of_columns) {
  for (int i = threadIdx.x; i < rows * COLUMNS; i += COUNTED) {
    const int row = i / COLUMNS, beside = i % COLUMNS;
    if (N % COLUMNS == 0 || column + beside < N)
      out[(long long)places[row] * N + column + beside] =
          T(results[row * STRIDE + beside] * (E4M3 ? of_columns[column + beside] : 1.0f));
  }
}

template <class T>
__device__ __forceinline__ void experts(const void* data, const void* weights, const void* scales, const int* numbers,
                                        T* out, float* results, const float* last, int* list, const int* end, int column,
                                        int expert, long long tokens) {
  const int rows = int(tokens) * CHOSEN;
  const char* own = (const char*)weights + (long long)expert * N * (K / 8 * FORMAT);
  const char* beside = SCALED ? (const char*)scales + (long long)expert * N * (K / GROUP * 2) : own;
  const float* of_columns = (const float*)scales + (long long)expert * N;  // of numbers in e4m3
  int* places = list + COUNTED;
  for (int first = 0; first < rows; first += COUNTED) {
    const int count = rows - first < COUNTED ? rows - first : COUNTED, self = threadIdx.x;
    __syncthreads();
    if (self < count) list[self] = numbers[first + self];
    __syncthreads();
    int before = 0, all = 0;
    for (int i = 0; i < count; ++i) all += list[i] == expert, before += i < self && list[i] == expert;
    if (self < count && list[self] == expert) places[before] = first + self;
    __syncthreads();
    for (int begin = 0; begin < all; begin += M) {
      const int* of = places + begin;
      const int some = all - begin < M ? all - begin : M;
      product_of(data, own, beside, results, results + STRIDE, column, some, [of](int row) { return of[row] / SHARED; });
      write_rows(out, results, of, column, some, of_columns);
      __syncthreads();
    }
  }
}
