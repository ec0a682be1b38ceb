// What the kernel for warpgroups asks of a GPU of sm_90 beside. MT, BFLOAT and CLUSTER as in warpgroups.cuh.

__device__ __forceinline__ void store_one(unsigned to, unsigned value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}

__device__ __forceinline__ void store_two(unsigned to, unsigned x, unsigned y) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(x), "r"(y) : "memory");
}

__device__ __forceinline__ void store_four(unsigned to, const uint4& value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ __forceinline__ void store_four(unsigned to, const float4& value) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
}

// What this thread has written to shared memory is there for products once all threads have met.
__device__ __forceinline__ void seen_by_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// A register that has to be as it was until here.
__device__ __forceinline__ void keep(unsigned& value) { asm volatile("" : "+r"(value)::"memory"); }

// Rows of 128 bytes of K in shared memory, swizzled.
__device__ __forceinline__ unsigned long long descriptor(unsigned address) {
  return 0x4000004000010000ull | (address & 0x3ffffu) >> 4;
}

__device__ __forceinline__ int rank_in_cluster() {
  unsigned found;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(found));
  return (int)found;
}

__device__ __forceinline__ void cluster_meets() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The sums of what the blocks of a cluster have at an address, in their order.
__device__ __forceinline__ float4 cluster_sum(unsigned from) {
  float4 found = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < CLUSTER; ++i) {
    unsigned address;
    float4 part;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(from), "r"(i));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(part.x), "=f"(part.y), "=f"(part.z), "=f"(part.w) : "r"(address) : "memory");
    found.x += part.x, found.y += part.y, found.z += part.z, found.w += part.w;
  }
  return found;
}
