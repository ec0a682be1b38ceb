// The rows of a block that has several queries of a sequence, and which keys count for them.
//
// Constants that stand before: those of tiles.cuh, BLOCK_ROWS, THREADS (of a block), KEYS (of a step), CROSS (as many
// positions, the row's own one with them, are seen of what lies before the queries, where that is limited; else 0).

// `query`, `queries`: where the sequence's rows are among all, and how many it has. The block's rows are from `first` to
// `last`, heads that share keys counted one by one; it takes keys from `begin` to `stop`, of `keys`.
struct Task {
  int query, queries, keys, first, last, begin, stop, head;
  bool causal;
  Sequence own;
};

__device__ __forceinline__ int keys_end(const Task& task, int query) {
  return CROSS > 0 || !task.causal ? task.keys : min(task.keys, task.keys - task.queries + query + 1);
}

__device__ __forceinline__ int keys_begin(const Task& task, int query) {
  return CROSS > 0 && task.causal ? max(task.keys - max(CROSS - query - 1, 0), 0) : 0;
}

// Of `block`, the last queries, which have most keys, first; `last` is less than `first` where nothing is to be done.
__device__ __forceinline__ Task task_of(const int* starts, const int* table, const int* lengths, int batch, int causal,
                                        int block, int blocks) {
  const int slot = (blocks - 1 - block) / H;
  const int number = last_before(batch, slot, [&](int b) { return starts[b] * G / BLOCK_ROWS + b; });
  Task task = {starts[number], 0, 0, 0, 0, 0, 0, block % H, causal > 0, {}};
  task.queries = starts[number + 1] - task.query;
  task.first = (slot - task.query * G / BLOCK_ROWS - number) * BLOCK_ROWS;
  task.last = min(task.first + BLOCK_ROWS, task.queries * G) - 1;
  if (task.last < task.first) return task;
  if (PAGED) task.own = sequence(table, lengths, batch, number);
  else task.own = {table[number], table[number + 1] - table[number], 0, 0};
  task.keys = task.own.length;
  task.begin = keys_begin(task, task.first / G) / KEYS * KEYS;
  task.stop = max(keys_end(task, task.last / G), 0);
  return task;
}

// The row of key `key` among all rows of keys: of pages, or of the sequences' keys one after the other.
__device__ __forceinline__ int key_row(const Task& task, const int* pages, int key) {
  return PAGED ? page_row(task.own, pages, task.head, key) : (task.own.begin + key) * H + task.head;
}

// The row of a block's row among all rows of queries.
__device__ __forceinline__ long long query_row(const Task& task, int row) {
  return (long long)(task.query + row / G) * (H * G) + task.head * G + row % G;
}

// Which keys count for the two rows of a lane, the first of which is `row`.
struct Shown {
  int begin[2], end[2];
};

__device__ __forceinline__ Shown shown(const Task& task, int row) {
  return {{keys_begin(task, row / G), keys_begin(task, (row + 8) / G)}, {keys_end(task, row / G), keys_end(task, (row + 8) / G)}};
}

// Scores with keys that do not count become minus infinity; `tile`: the first key.
template <int TILES>
__device__ __forceinline__ void hide(float (&s)[TILES][4], const Shown& shown, int tile) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < TILES; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = tile + n * 8 + lane % 4 * 2 + i % 2;
      if (key >= shown.end[i / 2] || (CROSS > 0 && key < shown.begin[i / 2])) s[n][i] = -INFINITY;
    }
}

// 16 rows of a warp, divided by their sums, go into shared memory at `rows`; the logarithms of the sums to `lse`.
__device__ __forceinline__ void put_rows(const State& state, const Task& task, unsigned rows, int row, float* lse) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int own = row + h * 8 + lane / 4;
    float sum = of_row(state.row_sum[h]);
    sum = sum > 0 ? sum : 1;
#pragma unroll
    for (int n = 0; n < 2 * DEPTHS; ++n) {
      const float one = E4M3 ? state.out[n / 2 * 2][2 * h + n % 2] : state.out[n][2 * h];
      const float other = E4M3 ? state.out[n / 2 * 2 + 1][2 * h + n % 2] : state.out[n][2 * h + 1];
      const int element = E4M3 ? n / 2 * 16 + lane % 4 * 4 + n % 2 * 2 : n * 8 + lane % 4 * 2;
      store_word(rows + own * ROW + element * 2, packed(one / sum, other / sum));
    }
    if (lane % 4 == 0 && task.first + own <= task.last)
      lse[query_row(task, task.first + own)] = state.row_max[h] + log2f(sum);
  }
}

// All COUNT of them, once as many threads as write them have put theirs.
template <int COUNT, int WRITERS>
__device__ __forceinline__ void write_rows(const Task& task, unsigned rows, char* output) {
  for (int at = threadIdx.x % WRITERS; at < COUNT * CHUNKS; at += WRITERS) {
    const int row = at / CHUNKS, part = at % CHUNKS * 16;
    if (task.first + row > task.last) break;
    *(uint4*)(output + query_row(task, task.first + row) * (D * 2) + part) = load_four(rows + row * ROW + part);
  }
}
