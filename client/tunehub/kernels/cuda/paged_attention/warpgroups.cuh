// Several queries of each sequence by its keys, by the instructions of warpgroups (sm_90), after FlashAttention-3 (Shah
// et al. 2024, arXiv 2407.08608): scores of a step are made while the step before is weighted. A warpgroup has 64 rows.
//
// Constants and functions that stand before: those of softmax.cuh.

constexpr int QUERY_ROWS = BLOCK_ROWS, LOADERS = THREADS / CHUNKS, LOADS = (KEYS + LOADERS - 1) / LOADERS;
constexpr bool STAGGERED = BLOCK_ROWS > 64;
constexpr int QUERY_BYTES = BLOCK_ROWS * D * 2, TILE_BYTES = KEYS * D * 2;

// Begin to bring keys or values of a step into shared memory, those from `stop` on as zeros.
__device__ __forceinline__ void fetch(unsigned to, const char* from, const Task& task, const int* pages, int tile) {
  const int own = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
  int rows[LOADS];
#pragma unroll
  for (int i = 0; i < LOADS; ++i) rows[i] = key_row(task, pages, min(tile + i * LOADERS + own, task.stop - 1));
#pragma unroll
  for (int i = 0; i < LOADS; ++i) {
    const int key = i * LOADERS + own;
    if (KEYS % LOADERS && key >= KEYS) break;
    copy<16>(to + place<KEYS>(key, chunk), from + (long long)rows[i] * (D * 2) + chunk * 16, tile + key < task.stop);
  }
}

__device__ __forceinline__ void fetch_queries(unsigned to, const char* queries, const Task& task) {
#pragma unroll
  for (int i = 0; i < (BLOCK_ROWS + LOADERS - 1) / LOADERS; ++i) {
    const int row = i * LOADERS + threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS, own = min(task.first + row, task.last);
    if (BLOCK_ROWS % LOADERS && row >= BLOCK_ROWS) break;
    copy<16>(to + place<BLOCK_ROWS>(row, chunk), queries + query_row(task, own) * (D * 2) + chunk * 16,
             task.first + row <= task.last);
  }
}

// All copies are there for the products of all.
__device__ __forceinline__ void meet_copies() {
  wait_for_copies<0>();
  seen_by_products();
  __syncthreads();
}

// `keys` and `values`: pages, and H pages of rows behind; or those of all sequences.
__device__ __forceinline__ void attention(const void* queries, const int* starts, const void* keys, const void* values,
                                          const int* table, const int* pages, const int* lengths, void* output,
                                          float* lse, void* pool, const void*, int batch, int causal, float scale,
                                          int block, int blocks) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Task task = task_of(starts, table, lengths, batch, causal, block, blocks);
  if (task.last < task.first) return;
  const unsigned base = shared_address(pool), own_queries = base + warp / 4 * (64 * LINE);
  const auto key_tile = [&](int at) { return base + QUERY_BYTES + at % 2 * TILE_BYTES; };
  const auto value_tile = [&](int at) { return base + QUERY_BYTES + (2 + at % 2) * TILE_BYTES; };
  const auto fetch_keys = [&](int at) { fetch(key_tile(at), (const char*)keys, task, pages, task.begin + at * KEYS); };
  const auto fetch_values = [&](int at) { fetch(value_tile(at), (const char*)values, task, pages, task.begin + at * KEYS); };
  const int count = (task.stop - task.begin + KEYS - 1) / KEYS;
  State state;
  clear(state);
  const Shown which = shown(task, task.first + warp * 16 + lane / 4);
  const int all_end = keys_end(task, task.first / G), all_begin = keys_begin(task, task.last / G);
  float s[KEYS / 8][4], factors[2];
  unsigned w[KEYS / 16][4];
  // Weights of a step in place of its scores.
  const auto softmax_of = [&](int at) {
    const int tile = task.begin + at * KEYS;
    if (tile + KEYS > all_end || tile < all_begin) hide(s, which, tile);
    weigh(state, s, factors, scale);
  };
  const auto all_weights_of = [&](int at) { softmax_of(at), rescale(state, factors), pack(w, s); };
  const auto fetch_next = [&](int at) {
    if (at + 2 < count) fetch_keys(at + 2);
    fetch_values(at + 1);
    copies_end();
  };
  const bool late = STAGGERED && warp / 4 % 2;  // makes its softmax while others multiply, which make theirs behind products
  if (count > 0) {
    // Step 1. Queries and the first keys; scores of the first step.
    fetch_queries(base, (const char*)queries, task);
    fetch_keys(0);
    copies_end();
    meet_copies();
    if (count > 1) fetch_keys(1);
    fetch_values(0);
    copies_end();
    multiply_scores(&s[0][0], own_queries, key_tile(0));
    have_scores_alone(&s[0][0]);
    if (!late) all_weights_of(0);
    // Step 2. Mainloop: scores of the next step, and this step is weighted.
    for (int at = 0; at < count - 1; ++at) {
      meet_copies();
      if (late) {
        fetch_next(at);
        all_weights_of(at);
        multiply_scores(&s[0][0], own_queries, key_tile(at + 1));
        multiply_weights(&state.out[0][0], &w[0][0], value_tile(at));
        have_scores_alone(&s[0][0]);
        have_outputs(&state.out[0][0], &w[0][0]);
      } else {
        multiply_scores(&s[0][0], own_queries, key_tile(at + 1));
        fetch_next(at);
        multiply_weights(&state.out[0][0], &w[0][0], value_tile(at));
        have_scores(&s[0][0]);
        softmax_of(at + 1);
        have_outputs(&state.out[0][0], &w[0][0]);
        rescale(state, factors);
        pack(w, s);
      }
    }
    // Step 3. The last step is weighted.
    meet_copies();
    if (late) all_weights_of(count - 1);
    multiply_weights(&state.out[0][0], &w[0][0], value_tile(count - 1));
    have_outputs(&state.out[0][0], &w[0][0]);
  }
  // Step 4. Epilogue: outputs are divided by row_sum, where operands were, and written row by row.
  __syncthreads();
  put_rows(state, task, base, warp * 16, lse);
  __syncthreads();
  write_rows<BLOCK_ROWS, THREADS>(task, base, (char*)output);
}
