// What a warpgroup does with a stage of 128 of K: 64 · PARTS rows of packed weights become numbers of 16 bits in registers,
// the left operand of wgmma, rows of x in shared memory are the right one.
//
// Constants that stand before: N, K, MT (tiles of 8 rows of x), PARTS, FORMAT (bits of a weight: 8 or 4), E4M3 (8 bits are a number
// in e4m3, without a scale), BFLOAT (x, scales and results of dequantisation are bfloat16), GATED (of the 64 · PARTS rows 64 are
// of the first and 64 of the second half of the weights' rows).
//
// Lane t of four has the places 2t, 2t + 1, 2t + 8 and 2t + 9 of each 16 along K. Of 4 bits these are byte t of a word of
// eight weights, and byte t of the next. A thread's `state` is what it has in registers between stages: numbers that products
// under way still read, in turns, scales of the next stage, and constants that stay in registers.

constexpr int DEPTH = 128, GROUP = 32, STEPS = (K + DEPTH - 1) / DEPTH;
constexpr int PITCH = DEPTH * FORMAT / 8, PANEL = MT * 1024;  // bytes of a row of weights; of 64 of K of x
constexpr int RING = 4;  // groups of 32 of K in registers, of which products may be under way
constexpr int SCALES = 8 * RING, CONSTANTS = SCALES + 4 * PARTS;     // places in the state
constexpr bool WHOLE = K % DEPTH == 0;

__device__ __forceinline__ unsigned word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// Scales of four groups of this thread's rows; of what is behind the end of K 0.
__device__ __forceinline__ void load_scales(unsigned* to, const void* scales, int column, int step) {
  if constexpr (E4M3) return;
#pragma unroll
  for (int i = 0; i < 2 * PARTS; ++i) {
    const int row = (GATED ? column / 2 + i / 2 * (N / 2) : column + i / 2 * 64) + threadIdx.x % 128 / 32 * 16 + i % 2 * 8 + threadIdx.x % 32 / 4;
    const char* own = (const char*)scales + (long long)(row < N ? row : N - 1) * (K / GROUP * 2) + step * 8;
    if constexpr (WHOLE) {
      const uint2 four = load_two_often(own);
      to[2 * i] = four.x, to[2 * i + 1] = four.y;
    } else {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int group = step * 4 + 2 * j;
        const unsigned low = group < K / GROUP ? load_half(own + 4 * j) : 0, high = group + 1 < K / GROUP ? load_half(own + 4 * j + 2) : 0;
        to[2 * i + j] = low | high << 16;
      }
    }
  }
}

// Byte t of a word of 4-bit weights.
__device__ __forceinline__ unsigned two_of_four(unsigned q, unsigned selected, unsigned scale, const unsigned* constants) {
  if constexpr (BFLOAT) return bfloats_of_four(bytes(q, q >> 4, selected), scale);
  const unsigned numbers = and_or(bytes(q, 0, selected), constants[0], 0x64006400u);  // 1024 + q and 1024 + 16 q
  return multiply(fma(numbers, constants[1], constants[2]), scale);
}

// Two of the bytes of a word of 8-bit weights.
__device__ __forceinline__ unsigned two_of_eight(unsigned q, unsigned selected, unsigned scale) {
  if constexpr (BFLOAT) return bfloats_of_eight(bytes(q, 0, selected), scale);
  return multiply(add(bytes(q, 0x64646464u, selected), 0xe47fe47fu), scale);  // 1024 + q, - 1151
}

// The words that have this thread's weights of a group of 32 of K.
__device__ __forceinline__ void load_words(unsigned (&to)[8], unsigned rows, int group) {
  const int lane = threadIdx.x % 4, turned = threadIdx.x % 32 / 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const unsigned own = rows + h * 8 * PITCH;
    if constexpr (FORMAT == 4) {
      const uint4 four = load_four(own + group * 16);
#pragma unroll
      for (int i = 0; i < 4; ++i) to[4 * h + i] = word(four, i);
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const unsigned from = own + ((group * 2 + i) ^ turned) * 16 + lane / 2 * 4;
        to[4 * h + 2 * i] = load_one(from), to[4 * h + 2 * i + 1] = load_one(from + 8);
      }
    }
  }
}

// 32 of K for two instructions.
__device__ __forceinline__ void dequantise(unsigned (&a)[2][4], const unsigned (&words)[8], int group, const unsigned* scales, const unsigned* constants) {
  const int lane = threadIdx.x % 4;
  const unsigned first = lane % 2 * 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const unsigned scale = twice(scales[2 * h + group / 2], group % 2);
    if constexpr (FORMAT == 4) {
      const unsigned selected = BFLOAT ? lane * 0x11u + (lane + 4) * 0x1100u : lane * 0x1111u;
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i / 2][i % 2 * 2 + h] = two_of_four(words[4 * h + i], selected, scale, constants);
    } else {
      const unsigned selected = BFLOAT ? first + 0x70u + (first + 1) * 0x100u + 0x7000u : first + 0x40u + (first + 1) * 0x100u + 0x4000u;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a[i / 2][i % 2 * 2 + h] = E4M3 ? two_of_e4m3(words[4 * h + i] >> 8 * first, 0) : two_of_eight(words[4 * h + i], selected, scale);
    }
  }
}

// Before the first stage, the number `step`, of a tile whose columns of this warpgroup begin at `column`. The state is 0.
__device__ __forceinline__ void begin(void* state, const void* scales, int column, int step) {
  unsigned* own = (unsigned*)state;
  load_scales(own + SCALES, scales, column, step < STEPS ? step : STEPS - 1);
  if constexpr (FORMAT == 4 && !BFLOAT) {
    own[CONSTANTS] = held(0x00f0000fu);
    own[CONSTANTS + 1] = held(0x2c003c00u);  // 1 and 1 / 16
    own[CONSTANTS + 2] = held(0xd470e407u);  // - 1031 and - 71
  }
}

// Start the products of the stage number `step`, whose weights and x lie at these addresses: those of the stage before are
// done when this ends. 32 of K are dequantised while the products of those before run.
__device__ __forceinline__ void products(void* d, void* state, unsigned weights, unsigned x, const void* scales, int column, int step) {
  float (&sums)[PARTS][4 * MT] = *reinterpret_cast<float (*)[PARTS][4 * MT]>(d);
  unsigned* own = (unsigned*)state;
  unsigned (&kept)[RING][2][4] = *reinterpret_cast<unsigned (*)[RING][2][4]>(state);
  unsigned now[4 * PARTS], words[2][8];
#pragma unroll
  for (int i = 0; i < 4 * PARTS; ++i) now[i] = own[SCALES + i];
  const unsigned rows = weights + (threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4) * PITCH;
  load_words(words[0], rows, 0);
  load_scales(own + SCALES, scales, column, step + 1 < STEPS ? step + 1 : STEPS - 1);
#pragma unroll
  for (int turn = 0; turn < 4 * PARTS; ++turn) {
    const int group = turn / PARTS, part = turn % PARTS, next = turn + 1;
    if (next < 4 * PARTS) load_words(words[next % 2], rows + next % PARTS * 64 * PITCH, next / PARTS);
    dequantise(kept[turn % RING], words[turn % 2], group, now + 4 * part, own + CONSTANTS);
    products_begin();
#pragma unroll
    for (int i = 0; i < 2; ++i) tunehub_wgmma_from_registers(sums[part], kept[turn % RING][i], descriptor(x + group / 2 * PANEL + (group % 2 * 2 + i) * 32));
    products_end();
    wait_for_products<RING - 1>(sums[part]);
#pragma unroll
    for (int i = 0; i < 8; ++i) keep(kept[next % RING][i / 4][i % 4]);
  }
}

// All products are done.
__device__ __forceinline__ void finish(void* d, void* state) {
  float (&sums)[PARTS][4 * MT] = *reinterpret_cast<float (*)[PARTS][4 * MT]>(d);
#pragma unroll
  for (int part = 0; part < PARTS; ++part) wait_for_products<0>(sums[part]);
#pragma unroll
  for (int i = 0; i < SCALES; ++i) keep(((unsigned*)state)[i]);
}
