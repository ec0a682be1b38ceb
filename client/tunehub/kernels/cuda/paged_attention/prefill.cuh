// Several queries of each sequence by its keys: FlashAttention-2 (Dao 2023, arXiv 2307.08691). A block has 16 · TALL ·
// WARPS rows, of all heads that share keys, so that keys and values are read once for them.
//
// Constants that stand before: those of rows.cuh, WARPS, TALL (of 16 rows of a warp).

constexpr int STAGE = 2 * KEYS * KEY_ROW, LOADERS = THREADS / KEY_CHUNKS, LOADS = (KEYS + LOADERS - 1) / LOADERS;

// Begin to bring the keys and values of a step into shared memory; those from `stop` on as zeros.
__device__ __forceinline__ void fetch(unsigned stage, const char* keys, const char* values, const int (&rows)[LOADS],
                                      int first, int stop) {
  const int own = threadIdx.x / KEY_CHUNKS, part = threadIdx.x % KEY_CHUNKS * 16;
  if (own >= LOADERS) return;
#pragma unroll
  for (int i = 0; i < LOADS; ++i) {
    const int key = i * LOADERS + own;
    if (KEYS % LOADERS && key >= KEYS) break;
    const long long from = (long long)rows[i] * KEY_BYTES + part;
    copy<16>(stage + key * KEY_ROW + part, keys + from, first + key < stop);
    copy<16>(stage + (KEYS + key) * KEY_ROW + part, values + from, first + key < stop);
  }
}

__device__ __forceinline__ void fetch_queries(unsigned to, const char* queries, const Task& task) {
  for (int at = threadIdx.x; at < BLOCK_ROWS * CHUNKS; at += THREADS) {
    const int row = at / CHUNKS, part = at % CHUNKS * 16, own = min(task.first + row, task.last);
    copy<16>(to + row * ROW + part, queries + query_row(task, own) * (D * 2) + part, task.first + row <= task.last);
  }
}

// `keys` and `values`: pages, and H pages of rows behind; or those of all sequences.
__device__ __forceinline__ void attention(const void* queries, const int* starts, const void* keys, const void* values,
                                          const int* table, const int* pages, const int* lengths, void* output,
                                          float* lse, void* pool, const void*, int batch, int causal, float scale,
                                          int block, int blocks) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, loader = threadIdx.x / KEY_CHUNKS;
  const Task task = task_of(starts, table, lengths, batch, causal, block, blocks);
  if (task.last < task.first) return;
  // Step 1. Queries and the first keys are on their way.
  const unsigned query_rows = shared_address(pool), stages = query_rows + BLOCK_ROWS * ROW;
  int rows[LOADS];
  const auto find = [&](int tile) {
#pragma unroll
    for (int i = 0; i < LOADS; ++i)
      rows[i] = tile < task.stop ? key_row(task, pages, min(tile + i * LOADERS + loader, task.stop - 1)) : 0;
  };
  find(task.begin);
  fetch_queries(query_rows, (const char*)queries, task);
  if (task.begin < task.stop) fetch(stages, (const char*)keys, (const char*)values, rows, task.begin, task.stop);
  copies_end();
  find(task.begin + KEYS);
  State state[TALL];
  Shown which[TALL];
#pragma unroll
  for (int t = 0; t < TALL; ++t)
    clear(state[t]), which[t] = shown(task, task.first + (warp * TALL + t) * 16 + lane / 4);
  const int all_end = keys_end(task, task.first / G), all_begin = keys_begin(task, task.last / G);
  // Step 2. Mainloop: the next keys come while these are multiplied.
  for (int tile = task.begin, at = 0; tile < task.stop; tile += KEYS, at ^= 1) {
    wait_for_copies<0>();
    __syncthreads();
    if (tile + KEYS < task.stop)
      fetch(stages + (at ^ 1) * STAGE, (const char*)keys, (const char*)values, rows, tile + KEYS, task.stop);
    copies_end();
    find(tile + 2 * KEYS);
    const unsigned k_tile = stages + at * STAGE, v_tile = k_tile + KEYS * KEY_ROW;
    float s[TALL][KEYS / 8][4];
    Narrow both[KEYS / 16];
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
        load_keys(k, both[n], k_tile + n * 16 * KEY_ROW, depth);
#pragma unroll
        for (int t = 0; t < TALL; ++t) add_scores(s[t][2 * n], s[t][2 * n + 1], q[t], k);
      }
    }
    if (tile + KEYS > all_end || tile < all_begin)
#pragma unroll
      for (int t = 0; t < TALL; ++t) hide(s[t], which[t], tile);
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
        load_values(v, both[n], v_tile + n * 16 * KEY_ROW, depth);
#pragma unroll
        for (int t = 0; t < TALL; ++t) add_scores(state[t].out[2 * depth], state[t].out[2 * depth + 1], w[t], v);
      }
    }
  }
  // Step 3. Epilogue: outputs are divided by row_sum, where the queries were, and written row by row.
  wait_for_copies<0>();
  __syncthreads();
#pragma unroll
  for (int t = 0; t < TALL; ++t) put_rows(state[t], task, query_rows, (warp * TALL + t) * 16, lse);
  __syncthreads();
  write_rows<BLOCK_ROWS, THREADS>(task, query_rows, (char*)output);
}
