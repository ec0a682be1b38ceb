// Several queries of each sequence by its keys: FlashAttention-2 (Dao 2023, arXiv 2307.08691). A block has 16 · TALL ·
// WARPS rows, of all heads that share keys, so that keys and values are read once for them.
//
// Constants that stand before: those of tiles.cuh, WARPS, TALL (of 16 rows of a warp), KEYS (of a step), CROSS (as many
// positions, the row's own one with them, are seen of what lies before the queries, where that is limited; else 0).

constexpr int BLOCK_ROWS = 16 * TALL * WARPS, THREADS = 32 * WARPS, NONE = 1 << 30;
constexpr int STAGE = 2 * KEYS * ROW, LOADERS = THREADS / CHUNKS, LOADS = (KEYS + LOADERS - 1) / LOADERS;

// Where the sequence's rows are among all, how many queries and keys it has, and which keys of them count for a query.
struct Task {
  int query, queries, keys;
  bool causal;
};

__device__ __forceinline__ int keys_end(const Task& task, int query) {
  return CROSS > 0 || !task.causal ? task.keys : min(task.keys, task.keys - task.queries + query + 1);
}

__device__ __forceinline__ int keys_begin(const Task& task, int query) {
  return CROSS > 0 && task.causal ? max(task.keys - max(CROSS - query - 1, 0), 0) : 0;
}

// The row of key `key` among all rows of keys: of pages, or of the sequences' keys one after the other.
__device__ __forceinline__ int key_row(const Sequence& own, const int* values, int head, int key) {
  return PAGED ? page_row(own, values, head, key) : (own.begin + key) * H + head;
}

// Begin to bring the keys and values of a step into shared memory; those from `stop` on as zeros.
__device__ __forceinline__ void fetch(unsigned stage, const char* keys, const char* values, const int (&rows)[LOADS],
                                      int first, int stop) {
  const int own = threadIdx.x / CHUNKS, part = threadIdx.x % CHUNKS * 16;
  if (own >= LOADERS) return;
#pragma unroll
  for (int i = 0; i < LOADS; ++i) {
    const int key = i * LOADERS + own;
    if (KEYS % LOADERS && key >= KEYS) break;
    const long long from = (long long)rows[i] * (D * 2) + part;
    copy<16>(stage + key * ROW + part, keys + from, first + key < stop);
    copy<16>(stage + (KEYS + key) * ROW + part, values + from, first + key < stop);
  }
}

__device__ __forceinline__ void fetch_queries(unsigned to, const char* queries, const Task& task, int head, int first) {
  for (int at = threadIdx.x; at < BLOCK_ROWS * CHUNKS; at += THREADS) {
    const int row = at / CHUNKS, part = at % CHUNKS * 16, query = min((first + row) / G, task.queries - 1);
    const long long from = (long long)(task.query + query) * (H * G) + head * G + (first + row) % G;
    copy<16>(to + row * ROW + part, queries + from * (D * 2) + part, first + row < task.queries * G);
  }
}

// `keys` and `values`: pages, and H pages of rows behind; or those of all sequences.
__device__ __forceinline__ void attention(const void* queries, const int* starts, const void* keys, const void* values,
                                          const int* table, const int* pages, const int* lengths, void* output,
                                          float* lse, void* pool, const void*, int batch, int causal, float scale,
                                          int block, int blocks) {
  const int head = block % H, slot = (blocks - 1 - block) / H;  // the last queries, which have most keys, first
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int number = sequence_of(starts, batch, G, BLOCK_ROWS, slot);
  Task task = {starts[number], 0, 0, causal > 0};
  task.queries = starts[number + 1] - task.query;
  const int first = (slot - (int)((long long)task.query * G / BLOCK_ROWS) - number) * BLOCK_ROWS;
  if (first >= task.queries * G) return;
  Sequence own = {};
  if (PAGED) own = sequence(table, lengths, batch, number);
  else own = {table[number], table[number + 1] - table[number], 0, 0};
  task.keys = own.length;
  const int last = min(first + BLOCK_ROWS, task.queries * G) - 1;
  const int begin = keys_begin(task, first / G) / KEYS * KEYS, stop = max(keys_end(task, last / G), 0);
  const int from_loader = threadIdx.x / CHUNKS;
  // Step 1. Queries and the first keys are on their way.
  const unsigned query_rows = shared_address(pool), stages = query_rows + BLOCK_ROWS * ROW;
  int rows[LOADS];
  const auto find = [&](int tile) {
#pragma unroll
    for (int i = 0; i < LOADS; ++i)
      rows[i] = tile < stop ? key_row(own, pages, head, min(tile + i * LOADERS + from_loader, stop - 1)) : 0;
  };
  find(begin);
  fetch_queries(query_rows, (const char*)queries, task, head, first);
  if (begin < stop) fetch(stages, (const char*)keys, (const char*)values, rows, begin, stop);
  copies_end();
  find(begin + KEYS);
  State state[TALL];
  int ends[TALL][2], begins[TALL][2];
#pragma unroll
  for (int t = 0; t < TALL; ++t) {
    clear(state[t]);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int query = (first + (warp * TALL + t) * 16 + h * 8 + lane / 4) / G;
      ends[t][h] = keys_end(task, query), begins[t][h] = keys_begin(task, query);
    }
  }
  const int all_end = keys_end(task, first / G), all_begin = keys_begin(task, last / G);
  // Step 2. Mainloop: the next keys come while these are multiplied.
  for (int tile = begin, at = 0; tile < stop; tile += KEYS, at ^= 1) {
    wait_for_copies<0>();
    __syncthreads();
    if (tile + KEYS < stop)
      fetch(stages + (at ^ 1) * STAGE, (const char*)keys, (const char*)values, rows, tile + KEYS, stop);
    copies_end();
    find(tile + 2 * KEYS);
    const unsigned k_tile = stages + at * STAGE, v_tile = k_tile + KEYS * ROW;
    float s[TALL][KEYS / 8][4];
#pragma unroll
    for (int t = 0; t < TALL; ++t)
#pragma unroll
      for (int n = 0; n < KEYS / 8; ++n) s[t][n][0] = s[t][n][1] = s[t][n][2] = s[t][n][3] = 0;
#pragma unroll
    for (int depth = 0; depth < DEPTHS; ++depth) {
      Operand q[TALL];
#pragma unroll
      for (int t = 0; t < TALL; ++t) q[t] = load_rows(query_rows + (warp * TALL + t) * 16 * ROW, depth);
#pragma unroll
      for (int n = 0; n < KEYS / 16; ++n) {
        unsigned k[4];
        load_keys(k, k_tile + n * 16 * ROW, depth);
#pragma unroll
        for (int t = 0; t < TALL; ++t) add_scores(s[t][2 * n], s[t][2 * n + 1], q[t], k);
      }
    }
    if (tile + KEYS > all_end || tile < all_begin)
#pragma unroll
      for (int t = 0; t < TALL; ++t)
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int key = tile + n * 8 + lane % 4 * 2 + i % 2;
            if (key >= ends[t][i / 2] || (CROSS > 0 && key < begins[t][i / 2])) s[t][n][i] = -INFINITY;
          }
#pragma unroll
    for (int t = 0; t < TALL; ++t) softmax<2>(state[t], s[t], scale);
#pragma unroll
    for (int n = 0; n < KEYS / 16; ++n) {
      Operand w[TALL];
#pragma unroll
      for (int t = 0; t < TALL; ++t) w[t] = weights<2>(s[t][2 * n], s[t][2 * n + 1]);
#pragma unroll
      for (int depth = 0; depth < DEPTHS; ++depth) {
        unsigned v[4];
        load_values(v, v_tile + n * 16 * ROW, depth);
#pragma unroll
        for (int t = 0; t < TALL; ++t) add_scores(state[t].out[2 * depth], state[t].out[2 * depth + 1], w[t], v);
      }
    }
  }
  // Step 3. Epilogue: outputs are divided by row_sum, where the warp's queries were, and written row by row.
  wait_for_copies<0>();
  __syncthreads();
#pragma unroll
  for (int t = 0; t < TALL; ++t)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = (warp * TALL + t) * 16 + h * 8 + lane / 4;
      float sum = of_row(state[t].row_sum[h]);
      sum = sum > 0 ? sum : 1;
#pragma unroll
      for (int n = 0; n < 2 * DEPTHS; ++n)
        store_word(query_rows + row * ROW + n * 16 + lane % 4 * 4,
                   packed(state[t].out[n][2 * h] / sum, state[t].out[n][2 * h + 1] / sum));
      const int whole = first + row;
      if (lane % 4 == 0 && whole < task.queries * G)
        lse[(long long)(task.query + whole / G) * (H * G) + head * G + whole % G] = state[t].row_max[h] + log2f(sum);
    }
  __syncthreads();
  for (int at = threadIdx.x; at < BLOCK_ROWS * CHUNKS; at += THREADS) {
    const int row = at / CHUNKS, part = at % CHUNKS * 16, whole = first + row;
    if (whole >= task.queries * G) break;
    const long long to = (long long)(task.query + whole / G) * (H * G) + head * G + whole % G;
    *(uint4*)((char*)output + to * (D * 2) + part) = load_four(query_rows + row * ROW + part);
  }
}
