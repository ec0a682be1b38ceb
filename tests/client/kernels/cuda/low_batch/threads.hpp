// A block of CUDA threads on a CPU: each is a context of its own, and they take turns where they wait for one another.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <ucontext.h>
#include <vector>

#define __device__
#define __shared__ static
#define __align__(size) __attribute__((aligned(size)))
#define __forceinline__ inline
using std::max, std::min;
using half = _Float16;
using uchar = unsigned char;
using uint = unsigned;
struct half2 { half x, y; };
struct half4 { half x, y, z, w; };

struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };

namespace threads {
struct Meeting { int size, arrived = 0; long phase = 0; };
struct Copy { char* to; const void* from; int bytes; };  // from null: zeros
struct Thread {
  ucontext_t context;
  bool done = false;
  std::vector<char> stack;
  std::vector<std::vector<Copy>> copies = {{}};  // by groups; the last one has not ended
};
struct Index { int x, y; };
static ucontext_t scheduler;
static std::vector<Thread> all;
static std::vector<Meeting> warps;
static Meeting block, teams[32];
static struct { unsigned words[2][32][6]; } exchanged[32];
static void (*task)();
static int current;
static Index place;  // of the block in the grid

static Index thread() { return {current, 0}; }
static void meet(Meeting& meeting) {
  const long phase = meeting.phase;
  if (++meeting.arrived == meeting.size) meeting.arrived = 0, ++meeting.phase;
  else while (meeting.phase == phase) {
    const int self = current;
    swapcontext(&all[self].context, &scheduler);
    current = self;
  }
}
static void run_one() { task(); all[current].done = true; }
static void run(int total, Index where, void (*what)()) {
  task = what, place = where, block = Meeting{total};
  warps.assign(total / 32, Meeting{32}), all = std::vector<Thread>(total);
  for (Thread& each : all) {
    each.stack.resize(1 << 16);
    getcontext(&each.context);
    each.context.uc_stack.ss_sp = each.stack.data(), each.context.uc_stack.ss_size = each.stack.size();
    each.context.uc_link = &scheduler;
    makecontext(&each.context, run_one, 0);
  }
  for (int left = total; left;)
    for (int i = 0; i < total; ++i)
      if (!all[i].done) current = i, swapcontext(&scheduler, &all[i].context), left -= all[i].done;
}
}  // namespace threads

#define threadIdx threads::thread()
#define blockIdx threads::place
static void __syncthreads() { threads::meet(threads::block); }
static uint4 load_once(const void* from) { uint4 found; std::memcpy(&found, from, 16); return found; }
static void load_where(uint4& to, const void* from, bool wanted) { if (wanted) to = load_once(from); }
static uint4 load_often(const void* from) { return load_once(from); }
static uint2 load_two_often(const void* from) { uint2 found; std::memcpy(&found, from, 8); return found; }
static unsigned load_half(const void* from) { uint16_t found; std::memcpy(&found, from, 2); return found; }

static float as_float(unsigned half, bool bfloat) {
  float wide;
  if (bfloat) {
    const unsigned bits = (half & 0xffff) << 16;
    std::memcpy(&wide, &bits, 4);
    return wide;
  }
  const uint16_t bits = half;
  _Float16 value;
  std::memcpy(&value, &bits, 2);
  return value;
}
static unsigned as_half(float wide) {
  const _Float16 value = wide;
  uint16_t bits;
  std::memcpy(&bits, &value, 2);
  return bits;
}
static unsigned as_bfloat(float wide) {
  unsigned bits;
  std::memcpy(&bits, &wide, 4);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
typedef unsigned char __nv_fp8_e4m3;
struct nv_bfloat16 {
  uint16_t bits;
  nv_bfloat16(float wide) : bits(as_bfloat(wide)) {}
  operator float() const { return as_float(bits, true); }
};
template <class F> unsigned both(F f) { return as_half(f(0)) | as_half(f(16)) << 16; }

static void multiply_tile(float (&sum)[4], const unsigned (&own)[6], bool bfloat) {
  const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2, number = threads::current / 32;
  threads::Meeting& warp = threads::warps[number];
  auto& words = threads::exchanged[number].words[warp.phase % 2];
  std::memcpy(words[lane], own, sizeof own);
  threads::meet(warp);
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 16; ++k) {  // as PTX has it: who holds which element of the operands
      const unsigned a = words[row * 4 + k % 8 / 2][i / 2 + k / 8 * 2];
      const unsigned b = words[(column + i % 2) * 4 + k % 8 / 2][4 + k / 8];
      sum[i] += as_float(a >> k % 2 * 16 & 0xffff, bfloat) * as_float(b >> k % 2 * 16 & 0xffff, bfloat);
    }
}
#define mma(sum, a, b, c, d, x, y) multiply_tile(sum, {a, b, c, d, x, y}, BFLOAT)
#define mma_from(sum, a, b, c, d, x, y, s, t, u, v) multiply_from(sum, {a, b, c, d, x, y}, {s, t, u, v})
static void multiply_from(float (&sum)[4], const unsigned (&own)[6], const float (&start)[4]) {
  std::memcpy(sum, start, sizeof sum);
  multiply_tile(sum, own, false);
}

static unsigned bytes(unsigned a, unsigned b, unsigned selected) {
  const uint64_t all = (uint64_t)b << 32 | a;
  unsigned found = 0;
  for (int i = 0; i < 4; ++i) found |= (unsigned)(all >> (selected >> 4 * i & 7) * 8 & 255) << 8 * i;
  return found;
}
static unsigned twice(unsigned pair, int which) { return (pair >> 16 * which & 0xffffu) * 0x10001u; }
static unsigned held(unsigned value) { return value; }
static unsigned and_or(unsigned a, unsigned mask, unsigned bits) { return (a & mask) | bits; }
static unsigned add(unsigned a, unsigned b) {
  return both([&](int s) { return as_float(a >> s & 0xffff, 0) + as_float(b >> s & 0xffff, 0); });
}
static unsigned multiply(unsigned a, unsigned b) {
  return both([&](int s) { return as_float(a >> s & 0xffff, 0) * as_float(b >> s & 0xffff, 0); });
}
static unsigned fma(unsigned a, unsigned b, unsigned c) {
  return both([&](int s) { return as_float(a >> s & 0xffff, 0) * as_float(b >> s & 0xffff, 0) + as_float(c >> s & 0xffff, 0); });
}

static unsigned halves_of_e4m3(unsigned two) {
  unsigned found = 0;
  for (int i = 0; i < 2; ++i) {
    const unsigned one = two >> 8 * i & 255, exponent = one >> 3 & 15, mantissa = one & 7;
    const float value = exponent ? std::ldexp(8.0f + mantissa, int(exponent) - 10) : std::ldexp(float(mantissa), -9);
    found |= ((one & 127) == 127 ? 0x7fff : as_half(one & 128 ? -value : value)) << 16 * i;
  }
  return found;
}
static unsigned fma_bfloat(unsigned a, unsigned b, unsigned c) {
  const auto one = [&](int s) { return as_bfloat(as_float(a >> s, 1) * as_float(b >> s, 1) + as_float(c >> s, 1)); };
  return one(0) | one(16) << 16;
}

static float half_of(unsigned pair, int which) { return as_float(pair >> 16 * which & 0xffff, 0); }

// Copies into shared memory happen where they are waited for.
static char origin;
static unsigned shared_address(const void* pointer) { return (const char*)pointer - &origin; }
static char* at(unsigned address) { return &origin + (int)address; }
static void do_copy(const threads::Copy& copy) {
  if (copy.from) std::memcpy(copy.to, copy.from, copy.bytes);
  else std::memset(copy.to, 0, copy.bytes);
}
template <int BYTES> void copy(unsigned to, const void* from, bool inside) {
  const threads::Copy wanted = {at(to), inside ? from : nullptr, BYTES};
  if (BYTES > 2) threads::all[threads::current].copies.back().push_back(wanted);
  else do_copy(wanted);
}
static void copies_end() { threads::all[threads::current].copies.emplace_back(); }
template <int COUNT> void wait_for_copies() {
  auto& groups = threads::all[threads::current].copies;
  for (; groups.size() > COUNT + 1; groups.erase(groups.begin()))
    for (const threads::Copy& each : groups.front()) do_copy(each);
}
template <int WARPS> void meet(int team) {
  threads::teams[team].size = 32 * WARPS;
  threads::meet(threads::teams[team]);
}
static void load_matrices(unsigned (&found)[4], unsigned from) {
  const int lane = threadIdx.x % 32, number = threads::current / 32;
  threads::Meeting& warp = threads::warps[number];
  auto& words = threads::exchanged[number].words[warp.phase % 2];
  words[lane][0] = from;
  threads::meet(warp);
  for (int i = 0; i < 4; ++i) std::memcpy(&found[i], at(words[i * 8 + lane / 4][0]) + lane % 4 * 4, 4);
}
static unsigned load_one(unsigned from) { unsigned found; std::memcpy(&found, at(from), 4); return found; }
static uint2 load_two(unsigned from) { uint2 found; std::memcpy(&found, at(from), 8); return found; }
static uint4 load_four(unsigned from) { return load_once(at(from)); }

// Warpgroups: products happen where they are asked for.
static void store_one(unsigned to, unsigned value) { std::memcpy(at(to), &value, 4); }
static void store_two(unsigned to, unsigned x, unsigned y) { store_one(to, x), store_one(to + 4, y); }
static void store_four(unsigned to, const uint4& value) { std::memcpy(at(to), &value, 16); }
static void store_four(unsigned to, const float4& value) { std::memcpy(at(to), &value, 16); }
static void seen_by_products() {}
static void products_begin() {}
static void products_end() {}
template <int LEFT, class Sums> void wait_for_products(Sums&) {}
static int rank_in_cluster() { return 0; }
static void cluster_meets() {}
static float4 cluster_sum(unsigned from) { float4 found; std::memcpy(&found, at(from), 16); return found; }
static unsigned long long descriptor(unsigned address) { return address; }
template <int COUNT> void multiply_group(float (&sums)[COUNT], const unsigned (&own)[4], unsigned address, bool bfloat) {
  const int lane = threadIdx.x % 32, row = lane / 4, number = threads::current / 32;
  threads::Meeting& warp = threads::warps[number];
  auto& words = threads::exchanged[number].words[warp.phase % 2];
  std::memcpy(words[lane], own, sizeof own);
  threads::meet(warp);
  for (int i = 0; i < COUNT; ++i)
    for (int k = 0; k < 16; ++k) {
      const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      const unsigned plain = address + column / 8 * 1024 + column % 8 * 128 + k * 2, turned = plain ^ (plain >> 7 & 7) << 4;
      uint16_t b;
      std::memcpy(&b, at(turned), 2);
      const unsigned a = words[row * 4 + k % 8 / 2][i % 4 / 2 + k / 8 * 2];
      sums[i] += as_float(a >> k % 2 * 16 & 0xffff, bfloat) * as_float(b, bfloat);
    }
}
#define tunehub_wgmma_from_registers(sums, a, b) multiply_group(sums, a, (unsigned)(b), BFLOAT)
static void keep(unsigned&) {}
