// What attention over pages asks of the GPU beside instructions.cuh of kernels for a low batch, without CUDA's headers.

__device__ __forceinline__ void load_transposed(unsigned (&found)[4], unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(found[0]), "=r"(found[1]), "=r"(found[2]), "=r"(found[3])
               : "r"(from)
               : "memory");
}

__device__ __forceinline__ float exponential(float x) {
  float found;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
  return found;
}

// Two numbers in the type of the operands, `low` first in memory.
__device__ __forceinline__ unsigned packed(float low, float high) {
  unsigned found;
  if constexpr (BFLOAT) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(found) : "f"(high), "f"(low));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(found) : "f"(high), "f"(low));
  return found;
}

__device__ __forceinline__ float of_lane(float value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
__device__ __forceinline__ int from_lane(int value, int lane) { return __shfl_sync(0xffffffffu, value, lane); }
__device__ __forceinline__ int lanes_where(bool holds) { return __popc(__ballot_sync(0xffffffffu, holds)); }

// What other blocks have written.
__device__ __forceinline__ float4 load_part(const float* from) {
  float4 found;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(found.x), "=f"(found.y), "=f"(found.z), "=f"(found.w)
               : "l"(from)
               : "memory");
  return found;
}

__device__ __forceinline__ void store_word(unsigned to, unsigned value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}

__device__ __forceinline__ void store_four_words(unsigned to, const uint4& value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w) : "memory");
}

// Counts a block that ends, up to `last` and then from 0 again; whether it was the last one. For one thread.
__device__ __forceinline__ bool ends_last(unsigned* counter, unsigned last) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(last) : "memory");
  return before == last;
}

// What this thread has copied is there for products of warpgroups (sm_90) once all threads have met.
__device__ __forceinline__ void seen_by_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
