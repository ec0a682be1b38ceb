// Several queries of each sequence by its keys, as in warpgroups.cuh, with a warp that brings keys and values by TMA while
// warpgroups of 64 rows multiply and take turns at it (FlashAttention-3, Shah et al. 2024, arXiv 2407.08608).
//
// Constants and functions that stand before: those of softmax.cuh, STAGES (of keys and of values in shared memory), NARROW
// (pages are in e4m3: the warp brings bytes, of which its warpgroup makes numbers of 16 bits), ARRIVED (tiles of bytes in
// shared memory), and functions of barriers, boxes and registers (`tunehub.tir.cuda.ptx`).
//
// Shared memory: queries of each warpgroup, where its outputs are put in the end; keys; values; bytes; barriers.

constexpr int QUERY_ROWS = 64, GROUPS = BLOCK_ROWS / 64, GROUP = 128;
constexpr int GROUP_BYTES = 64 * (ROW > PARTS * LINE ? ROW : PARTS * LINE), TILE_BYTES = KEYS * PARTS * LINE, BARRIER = 8;
constexpr int BOX_ROWS = PAGED ? PAGE : KEYS, BOXES = KEYS / BOX_ROWS * PARTS;  // of keys of a step

struct Ring {
  unsigned keys, values, barriers;
  __device__ __forceinline__ unsigned key_tile(int at) const { return keys + at % STAGES * TILE_BYTES; }
  __device__ __forceinline__ unsigned value_tile(int at) const { return values + at % STAGES * TILE_BYTES; }
  // That keys are there, that they are read no more; the same for values.
  __device__ __forceinline__ unsigned barrier(int which, int at) const { return barriers + (which * STAGES + at % STAGES) * BARRIER; }
  __device__ __forceinline__ static int full(int at) { return at / STAGES % 2; }
  __device__ __forceinline__ static int empty(int at) { return (at / STAGES + 1) % 2; }
};
enum { FULL_KEYS, EMPTY_KEYS, FULL_VALUES, EMPTY_VALUES, BARRIERS };
constexpr int BYTE_TILE = KEYS * D, WIDENERS = NARROW ? GROUP / 32 : 1;  // warps that fill a stage

// Tiles of bytes, of keys and values by turns, and what says that they are there.
struct Arrivals {
  unsigned tiles, barriers;
  __device__ __forceinline__ unsigned tile(int at) const { return tiles + at % ARRIVED * BYTE_TILE; }
  __device__ __forceinline__ unsigned barrier(int at) const { return barriers + at % ARRIVED * BARRIER; }
  __device__ __forceinline__ static int full(int at) { return at / ARRIVED % 2; }
};

// The row of this lane's box of keys among all rows; there are keys.
__device__ __forceinline__ int box_row(const Task& task, const int* pages, int tile) {
  if (!PAGED) return task.own.begin + tile;
  const int page = min(tile / PAGE + (int)threadIdx.x % 32 / PARTS, (task.keys - 1) / PAGE);
  return (pages[task.own.begin + page] * 2 * H + task.head) * PAGE;
}

// Bring keys and values of all steps, as stages become empty. By a warp.
__device__ __forceinline__ void bring(const Ring& ring, unsigned long long key_map, unsigned long long value_map,
                                      const Task& task, const int* pages, int count) {
  const int lane = threadIdx.x % 32, part = lane % PARTS;
  const unsigned own = part * (KEYS * LINE) + lane / PARTS * (BOX_ROWS * LINE);
  const int column = (PAGED ? 0 : task.head * D) + part * 64;
  const auto one = [&](int full, int at, unsigned to, unsigned long long map, int row) {
    barrier_wait(ring.barrier(full + 1, at), Ring::empty(at));
    if (lane == 0) barrier_expect(ring.barrier(full, at));
    __syncwarp();
    if (lane < BOXES) box_load(to + own, map, ring.barrier(full, at), column, row);
  };
  int row = lane < BOXES && count > 0 ? box_row(task, pages, task.begin) : 0;
  for (int at = 0; at < count; ++at) {
    const int following = lane < BOXES && at + 1 < count ? box_row(task, pages, task.begin + (at + 1) * KEYS) : 0;
    one(FULL_KEYS, at, ring.key_tile(at), key_map, row);
    one(FULL_VALUES, at, ring.value_tile(at), value_map, row + (PAGED ? H * PAGE : 0));
    row = following;
  }
}

// A tile of keys or values in 16 bits, of its bytes. By a warpgroup: lanes with the other half of a row of 128 elements
// begin with the other 16 bytes, so that all write to different banks.
__device__ __forceinline__ void widen(unsigned to, unsigned from) {
  constexpr int PIECES = D / 16;
#pragma unroll 2
  for (int at = threadIdx.x % GROUP; at < KEYS * PIECES; at += GROUP) {
    const int row = at / PIECES, piece = at % PIECES;
    const bool other = piece / 4 % 2;
    const uint4 given = load_four(from + at * 16);
    const uint4 low = {two_of_e4m3(given.x, 0), two_of_e4m3(given.x, 1), two_of_e4m3(given.y, 0), two_of_e4m3(given.y, 1)};
    const uint4 high = {two_of_e4m3(given.z, 0), two_of_e4m3(given.z, 1), two_of_e4m3(given.w, 0), two_of_e4m3(given.w, 1)};
    store_four_words(to + place<KEYS>(row, 2 * piece + other), other ? high : low);
    store_four_words(to + place<KEYS>(row, 2 * piece + !other), other ? low : high);
  }
}

// As `bring`, of pages of bytes. By a warpgroup, whose first warp brings tiles while all widen those that are there.
__device__ __forceinline__ void bring_narrow(const Ring& ring, const Arrivals& bytes, unsigned long long map, const Task& task,
                                             const int* pages, int count) {
  const int lane = threadIdx.x % 32;
  const bool brings = threadIdx.x / 32 % 4 == 0;
  // The row of this lane's page of a tile, of keys or values.
  const auto row_of = [&](int i) {
    const int page = min((task.begin + i / 2 * KEYS) / PAGE + lane, (task.keys - 1) / PAGE);
    return lane < KEYS / PAGE && i < 2 * count ? (pages[task.own.begin + page] * 2 * H + i % 2 * H + task.head) * PAGE : 0;
  };
  int row = brings ? row_of(0) : 0;
  const auto bring_tile = [&](int i) {
    if (lane == 0) bytes_expected(bytes.barrier(i));
    __syncwarp();
    if (lane < KEYS / PAGE) bytes_load(bytes.tile(i) + lane * (PAGE * D), map, bytes.barrier(i), 0, row);
    row = row_of(i + 1);
  };
  if (brings)
    for (int i = 0; i < ARRIVED && i < 2 * count; ++i) bring_tile(i);
  for (int i = 0; i < 2 * count; ++i) {
    const int at = i / 2, which = i % 2 ? FULL_VALUES : FULL_KEYS;
    barrier_wait(bytes.barrier(i), Arrivals::full(i));
    barrier_wait(ring.barrier(which + 1, at), Ring::empty(at));
    widen(i % 2 ? ring.value_tile(at) : ring.key_tile(at), bytes.tile(i));
    seen_by_products();
    group_meets(2 * GROUPS + 1);
    if (lane == 0) barrier_arrive(ring.barrier(which, at));
    if (brings && i + ARRIVED < 2 * count) bring_tile(i + ARRIVED);
  }
}

__device__ __forceinline__ void fetch_queries(unsigned to, const char* queries, const Task& task) {
#pragma unroll
  for (int i = 0; i < CHUNKS / 2; ++i) {
    const int at = i * GROUP + threadIdx.x % GROUP, row = at / CHUNKS, chunk = at % CHUNKS;
    copy<16>(to + place<64>(row, chunk), queries + query_row(task, min(task.first + row, task.last)) * (D * 2) + chunk * 16,
             task.first + row <= task.last);
  }
  copies_end();
  wait_for_copies<0>();
}

// Values of keys that there are not, which pages may hold anything for, become zeros.
__device__ __forceinline__ void clear_values(unsigned values, int first) {
  for (int at = threadIdx.x % GROUP; at < (KEYS - first) * CHUNKS; at += GROUP)
    for (int word = 0; word < 4; ++word) store_word(values + place<KEYS>(first + at / CHUNKS, at % CHUNKS) + word * 4, 0);
}

// The rows of a warpgroup.
__device__ __forceinline__ Task rows_of(Task task, int group) {
  task.first += group * 64;
  task.last = min(task.last, task.first + 63);
  return task;
}

__device__ __forceinline__ void multiply(const Ring& ring, unsigned rows, const Task& task, int group, int count,
                                         const char* queries, char* output, float* lse, float scale) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const auto release = [&](int which, int at) {
    if (lane == 0) barrier_arrive(ring.barrier(which, at));
  };
  State state;
  clear(state);
  const Shown which = shown(task, task.first + warp * 16 + lane / 4);
  const int all_end = keys_end(task, task.first / G);
  float s[KEYS / 8][4], factors[2];
  unsigned w[KEYS / 16][4];
  // Weights of a step in place of its scores.
  const auto softmax_of = [&](int at) {
    const int tile = task.begin + at * KEYS;
    if (tile + KEYS > all_end) hide(s, which, tile);
    weigh(state, s, factors, scale);
  };
  if (count > 0) {
    // Step 1. Queries; scores of the first step.
    fetch_queries(rows, queries, task);
    seen_by_products();
    group_meets(group + 1);
    barrier_wait(ring.barrier(FULL_KEYS, 0), Ring::full(0));
    multiply_scores(&s[0][0], rows, ring.key_tile(0));
    have_scores_alone(&s[0][0]);
    release(EMPTY_KEYS, 0);
    softmax_of(0);
    pack(w, s);
    // Step 2. Mainloop: scores of the next step, and this step is weighted. One warpgroup's softmax is made while the
    // others multiply: they take turns at starting products.
    const bool turns = GROUPS > 1;
    if (turns && group == GROUPS - 1 && count > 1) turn_given(GROUPS + 1);
    for (int at = 0; at < count - 1; ++at) {
      barrier_wait(ring.barrier(FULL_KEYS, at + 1), Ring::full(at + 1));
      if (turns) turn_taken(GROUPS + 1 + group);
      multiply_scores(&s[0][0], rows, ring.key_tile(at + 1));
      barrier_wait(ring.barrier(FULL_VALUES, at), Ring::full(at));
      multiply_weights(&state.out[0][0], &w[0][0], ring.value_tile(at));
      if (turns && (group < GROUPS - 1 || at < count - 2)) turn_given(GROUPS + 1 + (group + 1) % GROUPS);
      have_scores(&s[0][0]);
      release(EMPTY_KEYS, at + 1);
      softmax_of(at + 1);
      have_outputs(&state.out[0][0], &w[0][0]);
      release(EMPTY_VALUES, at);
      rescale(state, factors);
      pack(w, s);
    }
    // Step 3. The last step is weighted.
    barrier_wait(ring.barrier(FULL_VALUES, count - 1), Ring::full(count - 1));
    const int left = task.keys - (task.begin + (count - 1) * KEYS);
    if (left < KEYS) {
      clear_values(ring.value_tile(count - 1), left);
      seen_by_products();
      group_meets(group + 1);
    }
    multiply_weights(&state.out[0][0], &w[0][0], ring.value_tile(count - 1));
    have_outputs(&state.out[0][0], &w[0][0]);
  }
  // Step 4. Epilogue: outputs are divided by row_sum, where queries were, and written row by row.
  group_meets(group + 1);
  put_rows(state, task, rows, warp * 16, lse);
  group_meets(group + 1);
  write_rows<64, GROUP>(task, rows, output);
}

// `key_map`, `value_map`: of pages, as rows of a head's elements; or of the keys and values of all sequences.
__device__ __forceinline__ void attention(const void* queries, const int* starts, unsigned long long key_map,
                                          unsigned long long value_map, const int* table, const int* pages,
                                          const int* lengths, void* output, float* lse, void* pool, const void*,
                                          int batch, int causal, float scale, int block, int blocks) {
  const unsigned base = shared_address(pool), operands = base + GROUPS * GROUP_BYTES;
  const unsigned behind = operands + 2 * STAGES * TILE_BYTES, barriers = behind + (NARROW ? ARRIVED * BYTE_TILE : 0);
  const Ring ring = {operands, operands + STAGES * TILE_BYTES, barriers};
  const Arrivals bytes = {behind, barriers + BARRIERS * STAGES * BARRIER};
  const Task task = task_of(starts, table, lengths, batch, causal, block, blocks);
  if (task.last < task.first) return;
  const int count = (task.stop - task.begin + KEYS - 1) / KEYS, group = threadIdx.x / GROUP;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i)
      for (int which = 0; which < BARRIERS; ++which) barrier_init(ring.barrier(which, i), which % 2 ? 4 * GROUPS : WIDENERS);
    for (int i = 0; NARROW && i < ARRIVED; ++i) barrier_init(bytes.barrier(i), 1);
  }
  barriers_made();
  if (group == GROUPS) {
    fewer_registers();
    if constexpr (NARROW) bring_narrow(ring, bytes, key_map, task, pages, count);
    else if (threadIdx.x / 32 == 4 * GROUPS) bring(ring, key_map, value_map, task, pages, count);
  } else {
    more_registers();
    multiply(ring, base + group * GROUP_BYTES, rows_of(task, group), group, count, (const char*)queries, (char*)output, lse, scale);
  }
}
