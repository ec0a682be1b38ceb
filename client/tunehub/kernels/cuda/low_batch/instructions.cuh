// What the kernel asks of the GPU, from sm_80 on, without CUDA's headers. BFLOAT as in kernel.cuh.

__device__ __forceinline__ void mma(float (&sum)[4], unsigned a, unsigned b, unsigned c, unsigned d, unsigned x,
                                    unsigned y) {
  if constexpr (BFLOAT)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a), "r"(b), "r"(c), "r"(d), "r"(x), "r"(y));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a), "r"(b), "r"(c), "r"(d), "r"(x), "r"(y));
}

// The same for float16, to other sums than those that it starts with.
__device__ __forceinline__ void mma_from(float (&sum)[4], unsigned a, unsigned b, unsigned c, unsigned d, unsigned x,
                                         unsigned y, float s, float t, float u, float v) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
      : "r"(a), "r"(b), "r"(c), "r"(d), "r"(x), "r"(y), "f"(s), "f"(t), "f"(u), "f"(v));
}

// Of weights, which no other block needs.
__device__ __forceinline__ uint4 load_once(const void* from) {
  uint4 found;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
               : "l"(from));
  return found;
}

__device__ __forceinline__ uint4 load_often(const void* from) {
  uint4 found;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
               : "l"(from));
  return found;
}

__device__ __forceinline__ uint2 load_two_often(const void* from) {
  uint2 found;
  asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(found.x), "=r"(found.y) : "l"(from));
  return found;
}

// Into what stays as it is where this is not `wanted`.
__device__ __forceinline__ void load_where(uint4& to, const void* from, bool wanted) {
  asm volatile("{.reg .pred p; setp.ne.u32 p, %5, 0; @p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];}"
               : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w)
               : "l"(from), "r"(unsigned(wanted)));
}

__device__ __forceinline__ unsigned load_half(const void* from) {
  unsigned short found;
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(found) : "l"(from));
  return found;
}

__device__ __forceinline__ unsigned bytes(unsigned a, unsigned b, unsigned selected) {
  unsigned found;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(found) : "r"(a), "r"(b), "r"(selected));
  return found;
}

__device__ __forceinline__ unsigned and_or(unsigned a, unsigned mask, unsigned bits) {
  unsigned found;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(found) : "r"(a), "r"(mask), "r"(bits));
  return found;
}

// One half of a pair, twice.
__device__ __forceinline__ unsigned twice(unsigned pair, int which) {
  unsigned found;
  if (which) asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, high};}" : "=r"(found) : "r"(pair));
  else asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {low, low};}" : "=r"(found) : "r"(pair));
  return found;
}

// A number that the assembler does not know, so that it stays in a register and is not moved there for each use.
__device__ __forceinline__ unsigned held(unsigned value) {
  unsigned found;
  asm volatile("shfl.sync.idx.b32 %0, %1, 0, 31, 0xffffffff;" : "=r"(found) : "r"(value));
  return found;
}

__device__ __forceinline__ unsigned add(unsigned a, unsigned b) {
  unsigned found;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(found) : "r"(a), "r"(b));
  return found;
}

__device__ __forceinline__ unsigned multiply(unsigned a, unsigned b) {
  unsigned found;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(found) : "r"(a), "r"(b));
  return found;
}

__device__ __forceinline__ unsigned fma(unsigned a, unsigned b, unsigned c) {
  unsigned found;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(found) : "r"(a), "r"(b), "r"(c));
  return found;
}

// Of two numbers in e4m3, the bytes of the lower half of a word.
__device__ __forceinline__ unsigned halves_of_e4m3(unsigned two) {
#if __CUDA_ARCH__ >= 890
  unsigned found;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(found) : "h"((unsigned short)two));
  return found;
#else
  const unsigned high = bytes(two, 0, 0x1404u);  // each in the upper byte of a half
  return multiply(and_or(high >> 1, 0x3f803f80u, high & 0x80008000u), 0x5c005c00u);  // 2^8
#endif
}

__device__ __forceinline__ unsigned fma_bfloat(unsigned a, unsigned b, unsigned c) {
  unsigned found;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(found) : "r"(a), "r"(b), "r"(c));
  return found;
}

__device__ __forceinline__ float half_of(unsigned pair, int which) {
  float found;
  asm("{.reg .b16 half; mov.u16 half, %1; cvt.f32.f16 %0, half;}" : "=f"(found) : "h"((unsigned short)(pair >> 16 * which)));
  return found;
}

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  unsigned long long found;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(found) : "l"(pointer));
  return (unsigned)found;
}

// Copies into shared memory, of 0 where they are not `inside`; those of 2 bytes are done at once.
template <int BYTES>
__device__ __forceinline__ void copy(unsigned to, const void* from, bool inside) {
  const int read = inside ? BYTES : 0;
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(read) : "memory");
  else if constexpr (BYTES > 2)
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(read) : "memory");
  else
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"((unsigned short)(inside ? load_half(from) : 0)) : "memory");
}

__device__ __forceinline__ void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait for all copies but those of the last COUNT groups.
template <int COUNT>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(COUNT) : "memory");
}

__device__ __forceinline__ void load_matrices(unsigned (&found)[4], unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(found[0]), "=r"(found[1]), "=r"(found[2]), "=r"(found[3])
               : "r"(from)
               : "memory");
}

__device__ __forceinline__ unsigned load_one(unsigned from) {
  unsigned found;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(found) : "r"(from) : "memory");
  return found;
}

__device__ __forceinline__ uint2 load_two(unsigned from) {
  uint2 found;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(found.x), "=r"(found.y) : "r"(from) : "memory");
  return found;
}

__device__ __forceinline__ uint4 load_four(unsigned from) {
  uint4 found;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
               : "r"(from)
               : "memory");
  return found;
}

// Wait for the warps of a team, and for what they have written to shared memory.
template <int WARPS>
__device__ __forceinline__ void meet(int team) {
  if constexpr (WARPS == 1) __syncwarp();
  else asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(32 * WARPS) : "memory");
}
