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
