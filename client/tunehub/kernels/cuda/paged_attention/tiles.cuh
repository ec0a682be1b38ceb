// Scores, online softmax and weighted values of 16 rows by a warp, as in FlashAttention-2 (Dao 2023, arXiv 2307.08691):
// mma.sync m16n8k16, whose accumulators of scores are operands of the next product as they are.
//
// Constants that stand before: D (elements of a head), G (query heads of a key head), H (key heads), BFLOAT (bfloat16 in
// place of float16), PAGED, WINDOW (lengths are three rows: of the last page, where the window begins, of the sink), E4M3
// (pages have numbers of 8 bits; then a lane of four takes as many neighbours of 16 elements of a key and of a query, and of
// values each other product has the odd elements).
//
// A row is a query of a head: of neighbouring rows the heads differ that share keys, then the tokens.

constexpr int ROW = D * 2 + 16;  // bytes of a row in shared memory: ldmatrix finds its rows in different banks
constexpr int KEY_BYTES = E4M3 ? D : D * 2, KEY_ROW = KEY_BYTES + 16, KEY_CHUNKS = KEY_BYTES / 16;  // the same of keys
constexpr int CHUNKS = D / 8, DEPTHS = D / 16, PAGE = 16;
constexpr float LOWEST = -5e4f;  // what row_max begins with, as in TVM's kernels

struct Operand { unsigned words[4]; };

// The 16 × 16 elements of rows from `rows` on, as the first operand.
__device__ __forceinline__ Operand load_rows(unsigned rows, int depth) {
  const int lane = threadIdx.x % 32;
  Operand found;
  if constexpr (E4M3) {
    const unsigned own = rows + lane / 4 * ROW + depth * 32 + lane % 4 * 8;
    const uint2 one = load_two(own), other = load_two(own + 8 * ROW);
    return {{one.x, other.x, one.y, other.y}};
  }
  load_matrices(found.words, rows + lane % 16 * ROW + depth * 32 + lane / 16 * 16);
  return found;
}

// Scores of 16 rows with 16 keys, added up over 16 elements.
__device__ __forceinline__ void add_scores(float (&one)[4], float (&other)[4], const Operand& q, const unsigned (&k)[4]) {
  mma(one, q.words[0], q.words[1], q.words[2], q.words[3], k[0], k[1]);
  mma(other, q.words[0], q.words[1], q.words[2], q.words[3], k[2], k[3]);
}

// What is read at once of 16 keys or values in e4m3: for two products beside each other.
struct Narrow { unsigned words[4]; };

// 16 keys as the second operand of scores.
__device__ __forceinline__ void load_keys(unsigned (&k)[4], Narrow& both, unsigned keys, int depth) {
  const int lane = threadIdx.x % 32;
  if constexpr (E4M3) {
    if (depth % 2 == 0) load_matrices(both.words, keys + lane % 16 * KEY_ROW + depth * 16 + lane / 16 * 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) k[i] = two_of_e4m3(both.words[depth % 2 * 2 + i / 2], i % 2);
    return;
  }
  load_matrices(k, keys + (lane / 16 * 8 + lane % 8) * KEY_ROW + depth * 32 + lane / 8 % 2 * 16);
}

// 16 values as the second operand of outputs: 16 elements of them.
__device__ __forceinline__ void load_values(unsigned (&v)[4], Narrow& both, unsigned values, int depth) {
  const int lane = threadIdx.x % 32;
  if constexpr (E4M3) {
    if (depth % 2 == 0) load_transposed(both.words, values + lane % 16 * KEY_ROW + depth * 16 + lane / 16 * 16);
    const unsigned one = both.words[depth % 2 * 2], other = both.words[depth % 2 * 2 + 1];
    const unsigned even = bytes(one, other, 0x6420u), odd = bytes(one, other, 0x7531u);
    v[0] = two_of_e4m3(even, 0), v[1] = two_of_e4m3(even, 1), v[2] = two_of_e4m3(odd, 0), v[3] = two_of_e4m3(odd, 1);
    return;
  }
  load_transposed(v, values + lane % 16 * KEY_ROW + depth * 32 + lane / 16 * 16);
}

// The element of which a lane has the sum `i` of the product `n`.
__device__ __forceinline__ int element_of(int n, int i) {
  const int own = threadIdx.x % 4 * 2 + i;
  return E4M3 ? n / 2 * 16 + own * 2 + n % 2 : n * 8 + own;
}

// What a warp has of 16 rows: a lane has two rows, 8 apart.
struct State {
  float out[2 * DEPTHS][4], row_max[2], row_sum[2];
};

__device__ __forceinline__ void clear(State& state) {
#pragma unroll
  for (int n = 0; n < 2 * DEPTHS; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) state.out[n][i] = 0;
  state.row_max[0] = state.row_max[1] = LOWEST, state.row_sum[0] = state.row_sum[1] = 0;
}

// Scores become weights; LIVE: of the two rows of a lane, those that there are. The output is rescaled.
template <int LIVE, int TILES>
__device__ __forceinline__ void softmax(State& state, float (&s)[TILES][4], float scale) {
#pragma unroll
  for (int h = 0; h < LIVE; ++h) {
    float most = s[0][2 * h];
#pragma unroll
    for (int n = 0; n < TILES; ++n) most = max(most, max(s[n][2 * h], s[n][2 * h + 1]));
    most = max(most, of_lane(most, 1));
    most = max(state.row_max[h], max(most, of_lane(most, 2)) * scale);
    const float factor = exponential(state.row_max[h] - most);
    state.row_max[h] = most, state.row_sum[h] *= factor;
#pragma unroll
    for (int n = 0; n < 2 * DEPTHS; ++n) state.out[n][2 * h] *= factor, state.out[n][2 * h + 1] *= factor;
#pragma unroll
    for (int n = 0; n < TILES; ++n)
#pragma unroll
      for (int i = 2 * h; i < 2 * h + 2; ++i) {
        s[n][i] = exponential(s[n][i] * scale - most);
        state.row_sum[h] += s[n][i];
      }
  }
}

// Weights of 16 keys as the first operand.
template <int LIVE>
__device__ __forceinline__ Operand weights(const float (&one)[4], const float (&other)[4]) {
  return {{packed(one[0], one[1]), LIVE > 1 ? packed(one[2], one[3]) : 0, packed(other[0], other[1]),
           LIVE > 1 ? packed(other[2], other[3]) : 0}};
}

// The sum of what the four lanes of a row have.
__device__ __forceinline__ float of_row(float value) {
  value += of_lane(value, 1);
  return value + of_lane(value, 2);
}

// Pages of the sequence `at`, and how many of its keys count.
struct Sequence {
  int begin, length, sink, skipped;  // skipped: positions behind the sink that are in no window
};

__device__ __forceinline__ Sequence sequence(const int* table, const int* lengths, int batch, int at) {
  const int begin = table[at], pages = table[at + 1] - begin, last = lengths[at];
  Sequence found = {begin, 0, 0, 0};
  if (WINDOW) found.sink = lengths[2 * batch + at], found.skipped = lengths[batch + at] - found.sink;
  if (pages > 0) found.length = (pages - 1) * PAGE + last - found.skipped;
  return found;
}

// The row of key `key` of the head among all rows of all pages; its value is H pages of rows behind.
__device__ __forceinline__ int page_row(const Sequence& own, const int* pages, int head, int key) {
  const int position = WINDOW && key >= own.sink ? key + own.skipped : key;
  return (pages[own.begin + position / PAGE] * 2 * H + head) * PAGE + position % PAGE;
}

// The last sequence that begins at `slot` or before it, by a warp; sequence b begins where `begin` says.
template <class Begin>
__device__ __forceinline__ int last_before(int batch, int slot, Begin begin) {
  for (int first = 0;; first += 32) {
    const int own = first + threadIdx.x % 32;
    const int count = lanes_where(own < batch && begin(min(own, batch)) <= slot);
    if (count < 32 || first + 32 >= batch) return first + count - 1;
  }
}
