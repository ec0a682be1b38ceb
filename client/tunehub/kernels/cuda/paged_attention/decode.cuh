// One query of each sequence by its keys in pages, divided among blocks (flash-decoding, Dao et al. 2023): a block has
// all heads that share keys, its warps take 16 keys each, in turns. The last block of a sequence puts the parts together.
//
// Constants that stand before: those of tiles.cuh, WARPS, STAGES (16 keys and values of a warp that are in shared memory),
// COUNTERS (sequences and heads whose blocks are counted).

constexpr int ROWS = G < 16 ? G : 16, ROW_BLOCKS = (G + 15) / 16, LIVE = ROWS > 8 ? 2 : 1;
constexpr int STAGE = 2 * 16 * KEY_ROW, THREADS = 32 * WARPS, PART = D + 4;  // row_max and row_sum behind a row
constexpr int PIECES = KEY_CHUNKS * 16 / 32;  // of keys, that a lane copies

__device__ unsigned ended[COUNTERS];

// Begin to bring 16 keys and values into shared memory, those from `stop` on as zeros; `row`: of the lane's own key.
__device__ __forceinline__ void fetch(unsigned stage, const char* pages, int row, int first, int stop) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
    const int at = i * 32 + lane, key = at / KEY_CHUNKS, part = at % KEY_CHUNKS * 16;
    const char* from = pages + (long long)from_lane(row, key) * KEY_BYTES + part;
    copy<16>(stage + key * KEY_ROW + part, from, first + key < stop);
    copy<16>(stage + (16 + key) * KEY_ROW + part, from + H * PAGE * KEY_BYTES, first + key < stop);
  }
}

// The operand of queries in registers; rows that there are not are zeros.
__device__ __forceinline__ void load_queries(Operand (&q)[DEPTHS], const char* queries, int rows) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int depth = 0; depth < DEPTHS; ++depth)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i % 2 * 8;
      const int part = E4M3 ? lane % 4 * 8 + i / 2 * 4 : i / 2 * 16 + lane % 4 * 4;
      const char* from = queries + row * (D * 2) + depth * 32 + part;
      q[depth].words[i] = row < rows ? *(const unsigned*)from : 0;
    }
}

// A row's output for good, and the logarithm of its sum.
__device__ __forceinline__ void write_row(char* output, float* lse, int row, int column, float4 out, float most, float sum) {
  const float whole = sum > 0 ? sum : 1;
  uint2 words = {packed(out.x / whole, out.y / whole), packed(out.z / whole, out.w / whole)};
  *(uint2*)(output + (long long)row * (D * 2) + column * 2) = words;
  if (column == 0) lse[row] = most + log2f(whole);
}

// Adds a part of a row to what there is of it.
__device__ __forceinline__ void join(float4& out, float& most, float& sum, const float4& more, float its_most, float its_sum) {
  const float both = max(most, its_most), own = exponential(most - both), other = exponential(its_most - both);
  out = {out.x * own + more.x * other, out.y * own + more.y * other, out.z * own + more.z * other,
         out.w * own + more.w * other};
  sum = sum * own + its_sum * other, most = both;
}

// Where the parts of a sequence are: that of its first keys at `first`, the others from `others` on.
struct Parts {
  const float* memory;
  int first, others, count;
};

__device__ __forceinline__ const float* part_of(const Parts& parts, int at, int row) {
  return parts.memory + ((long long)(at == 0 ? parts.first : parts.others + at - 1) * (H * G) + row) * PART;
}

// How much each part counts goes to shared memory, [ROWS][count], and behind that row_max and row_sum of all.
__device__ __forceinline__ void weigh_parts(float* shared, const Parts& parts, int first_row, int rows) {
  const int lane = threadIdx.x % 32;
  for (int row = threadIdx.x / 32; row < rows; row += WARPS) {
    float most = LOWEST, sum = 0;
    for (int p = lane; p < parts.count; p += 32) {
      const float4 end = load_part(part_of(parts, p, first_row + row) + D);
      shared[row * parts.count + p] = end.x;
      const float both = max(most, end.x);
      sum = sum * exponential(most - both) + end.y * exponential(end.x - both), most = both;
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
      const float other = of_lane(most, mask), more = of_lane(sum, mask), both = max(most, other);
      sum = sum * exponential(most - both) + more * exponential(other - both), most = both;
    }
    for (int p = lane; p < parts.count; p += 32)
      shared[row * parts.count + p] = exponential(shared[row * parts.count + p] - most);
    if (lane == 0) shared[ROWS * parts.count + 2 * row] = most, shared[ROWS * parts.count + 2 * row + 1] = sum;
  }
}

__device__ __forceinline__ void join_parts(float* shared, const Parts& parts, char* output, float* lse, int first_row,
                                           int rows) {
  constexpr int AT_ONCE = 16;
  weigh_parts(shared, parts, first_row, rows);
  __syncthreads();
  for (int at = threadIdx.x; at < rows * (D / 4); at += THREADS) {
    const int row = at / (D / 4), column = at % (D / 4) * 4;
    const float *factors = shared + row * parts.count, *ends = shared + ROWS * parts.count + 2 * row;
    float4 out = {0, 0, 0, 0};
    for (int p = 0; p < parts.count; p += AT_ONCE) {
      float4 more[AT_ONCE];
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i)
        more[i] = load_part(part_of(parts, min(p + i, parts.count - 1), first_row + row) + column);
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        const float factor = p + i < parts.count ? factors[p + i] : 0;
        out = {out.x + more[i].x * factor, out.y + more[i].y * factor, out.z + more[i].z * factor,
               out.w + more[i].w * factor};
      }
    }
    write_row(output, lse, row, column, out, ends[0], ends[1]);
  }
}

// `each`: pages of a block at most. The first keys of all sequences come first, so that blocks without keys are last.
__device__ __forceinline__ void attention(const void* queries, const void* pages, const int* table, const int* values,
                                          const int* lengths, void* output, float* lse, float* parts,
                                          const float*, void* pool, const void*, int batch, int each, float scale, int block) {
  const int slot = block / (H * ROW_BLOCKS), head = block / ROW_BLOCKS % H, row_block = block % ROW_BLOCKS;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int number = slot < batch ? slot : last_before(batch, slot - batch, [&](int b) { return table[b] / each; });
  const Sequence own = sequence(table, lengths, batch, number);
  const int others = batch + own.begin / each, step = each * PAGE;  // slots of keys behind the first
  const int count = max((own.length + step - 1) / step, 1), chunk = slot < batch ? 0 : slot - others + 1;
  if (chunk >= count) return;
  const int first = chunk * step;
  // Step 1. The first keys are on their way; then the queries.
  const int stop = min(own.length, first + step), tiles = (stop - first + PAGE - 1) / PAGE;
  const int mine = tiles > warp ? (tiles - warp + WARPS - 1) / WARPS : 0;
  const unsigned stages = shared_address(pool) + warp * (STAGES * STAGE);
  const auto key_of = [&](int tile) { return first + (warp + tile * WARPS) * 16; };
  const auto row_of = [&](int tile) {
    return tile < mine ? page_row(own, values, head, min(key_of(tile) + lane % 16, stop - 1)) : 0;
  };
  int rows_of[STAGES];
#pragma unroll
  for (int i = 0; i < STAGES; ++i) rows_of[i] = row_of(i);
#pragma unroll
  for (int i = 0; i < STAGES - 1; ++i) {
    if (i < mine) fetch(stages + i * STAGE, (const char*)pages, rows_of[i], key_of(i), stop);
    copies_end();
  }
  int following = rows_of[STAGES - 1];
  const int rows = min(G - row_block * 16, 16), first_row = head * G + row_block * 16;
  const long long query_row = (long long)number * (H * G) + first_row;
  Operand q[DEPTHS];
  load_queries(q, (const char*)queries + query_row * (D * 2), rows);
  State state;
  clear(state);
  // Step 2. Mainloop: a warp waits for nobody else.
  for (int i = 0, at = 0; i < mine; ++i, at = at + 1 == STAGES ? 0 : at + 1) {
    wait_for_copies<STAGES - 2>();
    meet<1>(warp);
    const int next = i + STAGES - 1;
    if (next < mine) fetch(stages + (at + STAGES - 1) % STAGES * STAGE, (const char*)pages, following, key_of(next), stop);
    copies_end();
    following = row_of(next + 1);
    const unsigned keys = stages + at * STAGE;
    float s[2][4] = {};
    Narrow both;
#pragma unroll
    for (int depth = 0; depth < DEPTHS; ++depth) {
      unsigned k[4];
      load_keys(k, both, keys, depth);
      add_scores(s[0], s[1], q[depth], k);
    }
    const int left = stop - key_of(i);
    if (left < 16)
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (n * 8 + lane % 4 * 2 + e % 2 >= left) s[n][e] = -INFINITY;
    softmax<LIVE>(state, s, scale);
    const Operand w = weights<LIVE>(s[0], s[1]);
#pragma unroll
    for (int depth = 0; depth < DEPTHS; ++depth) {
      unsigned v[4];
      load_values(v, both, keys + 16 * KEY_ROW, depth);
      add_scores(state.out[2 * depth], state.out[2 * depth + 1], w, v);
    }
  }
  // Step 3. The warps' parts are put together.
  wait_for_copies<0>();
  __syncthreads();
  float* const shared = (float*)pool;
#pragma unroll
  for (int h = 0; h < LIVE; ++h) {
    const int row = lane / 4 + 8 * h;
    const float sum = of_row(state.row_sum[h]);
    if (row < ROWS) {
      float* to = shared + (warp * ROWS + row) * PART;
#pragma unroll
      for (int n = 0; n < 2 * DEPTHS; ++n) {
        to[element_of(n, 0)] = state.out[n][2 * h];
        to[element_of(n, 1)] = state.out[n][2 * h + 1];
      }
      if (lane % 4 == 0) to[D] = state.row_max[h], to[D + 1] = sum;
    }
  }
  __syncthreads();
  char* const results = (char*)output + query_row * (D * 2);
  for (int at = threadIdx.x; at < rows * (D / 4); at += THREADS) {
    const int row = at / (D / 4), column = at % (D / 4) * 4;
    float4 out = {0, 0, 0, 0};
    float most = LOWEST, sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      const float* from = shared + (w * ROWS + row) * PART;
      join(out, most, sum, *(const float4*)(from + column), from[D], from[D + 1]);
    }
    if (count == 1) {
      write_row(results, lse + query_row, row, column, out, most, sum);
    } else {
      float* to = parts + ((long long)slot * (H * G) + first_row + row) * PART;
      *(float4*)(to + column) = out;
      if (column == 0) *(float4*)(to + D) = {most, sum, 0, 0};
    }
  }
  if (count == 1) return;
  // Step 4. The last block of the sequence puts those of all blocks together.
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0)
    *(int*)pool = ends_last(ended + (number * H + head) * ROW_BLOCKS + row_block, count - 1);
  __syncthreads();
  if (*(const int*)pool == 0) return;
  __threadfence();
  __syncthreads();
  join_parts(shared, {parts, number, others, count}, results, lse + query_row, first_row, rows);
}
