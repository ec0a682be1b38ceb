// A block's part of y = x · Wᵀ for few rows of x, by warpgroups: rows of weights are the left operand of wgmma (64 × 16),
// from registers, and rows of x the right one (16 × ROWS), from shared memory.
//
// Constants that stand before: M (rows at most), N, K, MT (tiles of 8 rows), WN (warpgroups), STAGES (slices of weights in
// shared memory), DEPTH (of K in a slice, a multiple of 128), CLUSTER (blocks that divide K), FORMAT (bits of a
// weight: 16, 8 or 4), E4M3 (8 bits are a number in e4m3, without a scale), BFLOAT (the 16 bits are bfloat16's).
//
// cp.async brings weights and scales into shared memory, some slices ahead; ldmatrix gives each lane of four a 32-bit word
// of a row, of which it makes numbers of 16 bits in registers. x passes registers on its way to shared memory, in the order
// of K that these words ask for. Blocks of a cluster have K in parts; each adds up what all have for its own columns.

constexpr int TOGETHER = 64 * WN, COLUMNS = TOGETHER / CLUSTER, THREADS = 128 * WN, BUFFERS = 3;
constexpr int STAGE = TOGETHER * STRIDE, PANEL = MT * 1024, BUFFER = DEPTH / 64 * PANEL;  // a panel: 128 bytes of K
constexpr int PART = (SLICES + CLUSTER - 1) / CLUSTER;
constexpr int ACROSS = FORMAT == 16 ? 8 : 4, VECTORS_X = M * DEPTH / 8, HELD = (VECTORS_X + THREADS - 1) / THREADS;
static_assert(DEPTH % 128 == 0, "an even number of turns");

// A thread's vectors of a slice of x, and their row and place along K.
struct Place {
  int row, vector;
};
__device__ __forceinline__ Place place_of(int i) {
  const int at = i * THREADS + threadIdx.x;
  return {at / ACROSS % M, at / (ACROSS * M) * ACROSS + at % ACROSS};
}

__device__ __forceinline__ void load_x(uint4 (&held)[HELD], const Operands& from, int slice) {
#pragma unroll
  for (int i = 0; i < HELD; ++i) {
    const Place place = place_of(i);
    const bool inside = WHOLE || slice * DEPTH + place.vector * 8 < K;
    if ((VECTORS_X % THREADS == 0 || i * THREADS + threadIdx.x < VECTORS_X))
      held[i] = inside ? load_often(from.data + (long long)(place.row < from.rows ? place.row : from.rows - 1) * (K * 2) + slice * (DEPTH * 2) + place.vector * 16) : uint4{0, 0, 0, 0};
  }
}

// Rows of 128 bytes, swizzled as wgmma asks for. Of 4 bits a word has the pairs (0, 4), (2, 6), (1, 5), (3, 7).
__device__ __forceinline__ void store_x(unsigned buffer, const uint4 (&held)[HELD]) {
#pragma unroll
  for (int i = 0; i < HELD; ++i) {
    const Place place = place_of(i);
    const int vector = place.vector % 8, chunk = vector & 4, lane = vector % 4, turned = place.row % 8;
    const unsigned to = buffer + place.vector / 8 * PANEL + place.row * 128;
    const uint4& x = held[i];
    if (VECTORS_X % THREADS && i * THREADS + threadIdx.x >= VECTORS_X) break;
    if constexpr (FORMAT == 16) {
      store_four(to + (vector ^ turned) * 16, x);
    } else if constexpr (FORMAT == 8) {
      const int first = chunk + lane / 2 * 2, inside = lane % 2 * 8;
      store_two(to + (first ^ turned) * 16 + inside, x.x, x.z);
      store_two(to + (first + 1 ^ turned) * 16 + inside, x.y, x.w);
    } else {
      store_one(to + (chunk ^ turned) * 16 + lane * 4, bytes(x.x, x.z, 0x5410u));
      store_one(to + (chunk + 1 ^ turned) * 16 + lane * 4, bytes(x.y, x.w, 0x5410u));
      store_one(to + (chunk + 2 ^ turned) * 16 + lane * 4, bytes(x.x, x.z, 0x7632u));
      store_one(to + (chunk + 3 ^ turned) * 16 + lane * 4, bytes(x.y, x.w, 0x7632u));
    }
  }
}

// Products that are under way read their weights from registers, which keep them until those are done: in turns.
__device__ __forceinline__ void multiply_add(float (&sums)[4 * MT], unsigned (&kept)[2][4][4], unsigned stage, unsigned buffer, const Masks& masks) {
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16;
  const unsigned own = stage + (first + lane / 8 % 2 * 8 + lane % 8) * STRIDE + lane / 16 * 16;
  uint4 scales[2][(DEPTH + 255) / 256];
  if constexpr (SCALED)
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int i = 0; i < (DEPTH + 255) / 256; ++i) scales[h][i] = load_four(stage + (first + h * 8 + lane / 4) * STRIDE + ROW + i * 16);
#pragma unroll
  for (int pair = 0; pair < DEPTH / 64; ++pair) {
    unsigned (&a)[4][4] = kept[pair % 2];
    if constexpr (FORMAT == 16) {
#pragma unroll
      for (int i = 0; i < 4; ++i) load_matrices(a[i], own + pair * 128 + i * 32);
    } else {
      const unsigned both = SCALED ? word(scales[0][pair / 4], pair % 4) : 0, others = SCALED ? word(scales[1][pair / 4], pair % 4) : 0;
      unsigned words[4], more[4];
      load_matrices(words, own + pair * (FORMAT == 8 ? 64 : 32));
      if constexpr (FORMAT == 8) load_matrices(more, own + pair * 64 + 32);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const unsigned one = twice(both, c), other = twice(others, c);
        unsigned (&to)[2][4] = reinterpret_cast<unsigned (&)[2][4]>(a[2 * c]);
        if constexpr (FORMAT == 8) {
          const unsigned (&now)[4] = c ? more : words;
          weights_of(to, now[0], now[1], now[2], now[3], one, other, masks);
        } else {
          weights_of(to, words[2 * c], words[2 * c + 1], 0, 0, one, other, masks);
        }
      }
    }
    products_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i) tunehub_wgmma_from_registers(sums, a[i], descriptor(buffer + pair * PANEL + i * 32));
    products_end();
    wait_for_products<1>(sums);
#pragma unroll
    for (int i = 0; i < 16; ++i) keep(kept[(pair + 1) % 2][i / 4][i % 4]);
  }
}

// The results from `column` on, in shared memory, for all threads once they have met: at `results` those of the first row,
// at `second` those of the second. x has `rows` of them, at most M. `pool` to `last`: what operands have, later sums.
__device__ __forceinline__ void product(const void* data, const void* weights, const void* scales, float* results,
                                        const float* second, int column, void* pool, const void* last, int rows) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = CLUSTER > 1 ? rank_in_cluster() : 0;
  const int stride = int(second - results);
  const Operands from = {(const char*)data, (const char*)weights, (const char*)scales, column - rank * COLUMNS, rows};
  const unsigned buffers = (shared_address(pool) + 1023) / 1024 * 1024, stages = buffers + BUFFERS * BUFFER;
  const int first = rank * PART, end = CLUSTER == 1 || first + PART < SLICES ? first + PART : SLICES;
  float sums[4 * MT];
#pragma unroll
  for (int i = 0; i < 4 * MT; ++i) sums[i] = 0;
  unsigned numbers[2][4][4] = {};
  const Masks masks = masks_of_numbers();
  uint4 held[HELD];
  load_x(held, from, first);
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    if (first + s < end) fetch_weights<TOGETHER, THREADS>(stages + s * STAGE, from, first + s, threadIdx.x);
    copies_end();
  }
  store_x(buffers, held);
  if (first + 1 < end) load_x(held, from, first + 1);
  unsigned at = 0, then = STAGES - 1, now = 0;
  for (int slice = first; slice < end; ++slice) {
    wait_for_copies<STAGES - 2>();
    seen_by_products();
    __syncthreads();
    if (slice + STAGES - 1 < end)
      fetch_weights<TOGETHER, THREADS>(stages + then * STAGE, from, slice + STAGES - 1, threadIdx.x);
    copies_end();
    const unsigned next = now + 1 == BUFFERS ? 0 : now + 1;
    if (slice + 1 < end) store_x(buffers + next * BUFFER, held);
    if (slice + 2 < end) load_x(held, from, slice + 2);
    multiply_add(sums, numbers, stages + at * STAGE, buffers + now * BUFFER, masks);
    at = at + 1 == STAGES ? 0 : at + 1, then = then + 1 == STAGES ? 0 : then + 1, now = next;
  }
  wait_for_products<0>(sums);
#pragma unroll
  for (int i = 0; i < 32; ++i) keep(numbers[i / 16][i / 4 % 4][i % 4]);
  wait_for_copies<0>();
  if constexpr (CLUSTER == 1) {
#pragma unroll
    for (int j = 0; j < MT; ++j)
      write<COLUMNS>(results, stride, from, warp * 16, j, float4{sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]});
  } else {
    __syncthreads();
#pragma unroll
    for (int j = 0; j < MT; ++j)
      store_four(buffers + ((warp * MT + j) * 32 + lane) * 16, float4{sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]});
    cluster_meets();
    constexpr int FRAGMENTS = COLUMNS / 16 * MT;
    for (int f = warp; f < FRAGMENTS; f += THREADS / 32) {
      const float4 sum = cluster_sum(buffers + ((rank * FRAGMENTS + f) * 32 + lane) * 16);
      write<COLUMNS>(results, stride, Operands{nullptr, nullptr, nullptr, column, rows}, f / MT * 16, f % MT, sum);
    }
    cluster_meets();
  }
  __syncthreads();
}
