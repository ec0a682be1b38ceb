// What attention over pages asks of a GPU beside threads.hpp, for threads that take turns. Blocks run one after the other.

namespace threads {
// What all lanes of the warp have given, once all have.
template <class T> const T* all_lanes(T value) {
  static T given[32][2][32];
  const int number = current / 32;
  Meeting& warp = warps[number];
  T* const words = given[number][warp.phase % 2];
  words[current % 32] = value;
  meet(warp);
  return words;
}
}  // namespace threads

static void load_transposed(unsigned (&found)[4], unsigned from) {
  const int lane = threadIdx.x % 32;
  const unsigned* rows = threads::all_lanes(from);
  for (int i = 0; i < 4; ++i) {
    uint16_t two[2];
    for (int k = 0; k < 2; ++k) std::memcpy(&two[k], at(rows[i * 8 + lane % 4 * 2 + k]) + lane / 4 * 2, 2);
    found[i] = two[0] | (unsigned)two[1] << 16;
  }
}
static float exponential(float x) { return std::exp2(x); }
static unsigned packed_as(float low, float high, bool bfloat) {
  return bfloat ? as_bfloat(low) | as_bfloat(high) << 16 : as_half(low) | as_half(high) << 16;
}
#define packed(low, high) packed_as(low, high, BFLOAT)
static float of_lane(float value, int mask) { return threads::all_lanes(value)[threadIdx.x % 32 ^ mask]; }
static int from_lane(int value, int lane) { return threads::all_lanes(value)[lane]; }
static int lanes_where(bool holds) {
  const bool* all = threads::all_lanes(holds);
  return (int)std::count(all, all + 32, true);
}
static float4 load_part(const float* from) { float4 found; std::memcpy(&found, from, 16); return found; }
static void store_word(unsigned to, unsigned value) { store_one(to, value); }
static void store_four_words(unsigned to, const uint4& value) { std::memcpy(at(to), &value, 16); }
static void __threadfence() {}
static bool ends_last(unsigned* counter, unsigned last) {
  const unsigned before = *counter;
  *counter = before >= last ? 0 : before + 1;
  return before == last;
}

// Products of warpgroups happen where they are started. Operands have rows of 128 bytes, swizzled, in parts of 64
// elements that are ROWS rows apart.
template <int ROWS> static float element(unsigned from, int row, int column, bool bfloat) {
  const unsigned place = column / 64 * ROWS * 128 + row * 128 + (column % 64 / 8 ^ row % 8) * 16 + column % 8 * 2;
  uint16_t bits;
  std::memcpy(&bits, at(from + place), 2);
  return as_float(bits, bfloat);
}
template <int ROWS, int KEYS, int D> static void scores_of(float* d, unsigned q, unsigned k, bool bfloat) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  for (int i = 0; i < KEYS / 2; ++i) {
    const int row = warp * 16 + lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    d[i] = 0;
    for (int e = 0; e < D; ++e) d[i] += element<ROWS>(q, row, e, bfloat) * element<KEYS>(k, column, e, bfloat);
  }
}
template <int KEYS, int D> static void weighted_of(float* d, const unsigned* w, unsigned v, bool bfloat) {
  const int lane = threadIdx.x % 32;
  for (int step = 0; step < KEYS / 16; ++step) {
    struct Four { unsigned words[4]; } own;
    std::memcpy(own.words, w + 4 * step, sizeof own);
    const Four* all = threads::all_lanes(own);
    for (int i = 0; i < D / 2; ++i)
      for (int k = 0; k < 16; ++k) {
        const unsigned pair = all[lane / 4 * 4 + k % 8 / 2].words[i % 4 / 2 + k / 8 * 2];
        d[i] += as_float(pair >> k % 2 * 16 & 0xffff, bfloat) * element<KEYS>(v, step * 16 + k, i / 4 * 8 + lane % 4 * 2 + i % 2, bfloat);
      }
  }
}
#define multiply_scores(d, q, k) scores_of<QUERY_ROWS, KEYS, D>(d, q, k, BFLOAT)
#define multiply_weights(d, w, v) weighted_of<KEYS, D>(d, w, v, BFLOAT)
static void have_scores(float*) {}
static void have_scores_alone(float*) {}
static void have_outputs(float*, unsigned*) {}

// Barriers that count arrivals and bytes, named ones of several warps, and boxes of matrices, which come at once.
#include <map>
struct CUtensorMap { long long from, rows, columns, box_rows; };  // of elements; boxes are 64 elements wide
namespace threads {
struct Counter { int count, left, bytes = 0; long phase = 0; };
static std::map<unsigned, Counter> counters;
static void count(Counter& counter, int arrived, int bytes) {
  counter.left -= arrived, counter.bytes += bytes;
  if (counter.left == 0 && counter.bytes == 0) counter.left = counter.count, ++counter.phase;
}
static void let_others() {
  const int self = current;
  swapcontext(&all[self].context, &scheduler);
  current = self;
}
}  // namespace threads
static void barrier_init(unsigned at, int count) { threads::counters[at] = {count, count}; }
static void barriers_made() { __syncthreads(); }
static void barrier_arrive(unsigned at) { threads::count(threads::counters.at(at), 1, 0); }
static void barrier_wait(unsigned at, int parity) {
  while (threads::counters.at(at).phase % 2 == parity) threads::let_others();
}
#define barrier_expect(where) threads::count(threads::counters.at(where), 1, TILE_BYTES)
static void box_load(unsigned to, unsigned long long map, unsigned barrier, int x, int y) {
  const CUtensorMap& box = *(const CUtensorMap*)map;
  for (int row = 0; row < box.box_rows; ++row)
    for (int column = 0; column < 64; ++column) {
      const bool inside = y + row < box.rows && x + column < box.columns;
      const uint16_t value = inside ? ((const uint16_t*)box.from)[(y + row) * box.columns + x + column] : 0;
      std::memcpy(at(to + row * 128 + (column * 2 ^ row % 8 << 4)), &value, 2);
    }
  threads::count(threads::counters.at(barrier), 0, -box.box_rows * 128);
}
#define bytes_expected(where) threads::count(threads::counters.at(where), 1, BYTE_TILE)
static void bytes_load(unsigned to, unsigned long long map, unsigned barrier, int x, int y) {
  const CUtensorMap& box = *(const CUtensorMap*)map;
  std::memcpy(at(to), (const char*)box.from + y * box.columns + x, box.box_rows * box.columns);
  threads::count(threads::counters.at(barrier), 0, -int(box.box_rows * box.columns));
}
static void __syncwarp() { threads::meet(threads::warps[threads::current / 32]); }
static void group_meets(int number) { meet<4>(number); }
static void turn_taken(int number) { meet<8>(number); }
static void turn_given(int number) {
  threads::Meeting& turn = threads::teams[number];
  turn.size = 256;
  if (++turn.arrived == turn.size) turn.arrived = 0, ++turn.phase;
}
static void fewer_registers() {}
static void more_registers() {}
