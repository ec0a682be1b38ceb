"""The tables behind `trace_rules`: what TVM 0.25 to 0.27 spell, and which of it a downloaded record may use."""

from __future__ import annotations

import re

THREAD_AXES = frozenset(
    (
        *("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z"),
        *("vthread", "vthread.x", "vthread.y", "vthread.z"),
    )
)

SCOPES = frozenset(
    (
        *("global", "shared", "shared.dyn", "local", "warp", "wmma.matrix_a", "wmma.matrix_b", "wmma.accumulator"),
        *("m16n8k8.matrixA", "m16n8k8.matrixB", "m16n8k8.matrixC"),
    )
)

# Kinds that TVM has and that records may not use, with the reason that a person reads.
REFUSED_KINDS = {
    "UnsafeSetDType": "it changes results",
    "UnsafeHideBufferAccess": "it hides accesses from TVM's checks",
    "AnnotateBufferAccess": "it overrides the accesses that TVM's checks rely on",
    "Merge": "a wrong use crashes TVM",
    "RollingBuffer": "TVM's search does not use it, and it makes iterations depend on each other",
    "DecomposePadding": "TVM's search does not use it",
    "ReindexCacheRead": "it carries a serialised TVM object graph",
    "ReindexCacheWrite": "it carries a serialised TVM object graph",
}

MAX_UNROLL = 1 << 12
MAX_PADDING = 1 << 10  # of an axis in PadEinsum: tensor cores need 16 or 32
MAX_EXTENT = 1 << 16  # parallel jobs; vector lanes and threads are bounded tighter below

# Annotations with one integer (or a sampled variable): key -> inclusive bounds.
INT_ANNOTATIONS: dict[str, tuple[int, int]] = {
    "meta_schedule.parallel": (0, MAX_EXTENT),
    "meta_schedule.vectorize": (0, 1024),
    "meta_schedule.unroll_explicit": (0, MAX_UNROLL),
    "meta_schedule.unroll_implicit": (0, MAX_UNROLL),
    "meta_schedule.cooperative_fetch": (0, 1024),
    "meta_schedule.thread_extent_low_inclusive": (0, 1024),
    "meta_schedule.thread_extent_high_inclusive": (0, 1024),
    "meta_schedule.random_compute_producer": (0, 1),
    "meta_schedule.layout_rewrite_preproc": (0, 1),
    "pragma_auto_unroll_max_step": (0, MAX_UNROLL),
    "pragma_unroll_explicit": (0, 1),
    "warp_execution": (0, 1),
    "tirx.manifest_shared_memory_local_stage": (0, 1),
    "double_buffer_scope": (0, 64),
}

# Annotations with a short list of integers.
LIST_ANNOTATIONS = frozenset(["software_pipeline_stage", "software_pipeline_order", "software_pipeline_async_stages"])
MAX_PIPELINE = 64

# Annotations with text that must match in full. `schedule_rule` and `inline_rule` only name built-in rules.
TEXT_ANNOTATIONS: dict[str, re.Pattern[str]] = {
    "meta_schedule.tiling_structure": re.compile(r"[SR]{1,32}"),
    "meta_schedule.inline_rule": re.compile(r"disable"),
    "schedule_rule": re.compile(r"None|meta_schedule\.[a-z0-9_]{1,64}"),
}

# Annotations whose text is the name of an intrinsic, or empty.
INTRIN_ANNOTATIONS = frozenset(["meta_schedule.auto_tensorize", "meta_schedule.auto_tensorize_init"])

ANNOTATIONS = frozenset(INT_ANNOTATIONS) | LIST_ANNOTATIONS | frozenset(TEXT_ANNOTATIONS) | INTRIN_ANNOTATIONS

# Intrinsics that TVM registers for CPUs, with the features that the machine must have, in LLVM's spelling.
_CPU_INTRINSICS: dict[str, frozenset[str]] = {
    "dot_16x4_vnni": frozenset(["avx512vnni"]),
    "dot_16x4_avx512": frozenset(["avx512f", "avx512bw"]),
    "dot_4x4_i8i8s32_neon": frozenset(["neon"]),
    "dot_4x4_i8i8s32_sdot": frozenset(["neon", "dotprod"]),
    "dot_4x4_u8u8u32_udot": frozenset(["neon", "dotprod"]),
    "dot_4x4_u8u8i32_hdot": frozenset(["neon", "dotprod"]),
}

# Intrinsics for NVIDIA GPUs by the families of their names: the least architecture that has the instructions.
_CUDA_INTRINSICS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), arch)
    for pattern, arch in (
        (r"dp4a_(s8s8s32|s8u8s32|u8s8s32|u8u8u32)", "sm_61"),
        (r"wmma_fill_16x16x16_(f16|f32)", "sm_70"),
        (r"wmma_load_16x16x16_f16_[ab](_trans)?_shared(_dyn)?", "sm_70"),
        (r"wmma_store_16x16x16_(f16|f32)_(global|shared|shared_dyn)", "sm_70"),
        (r"wmma_sync_16x16x16_f16f16(f16|f32)(_trans)?", "sm_70"),
        (r"wmma_fill_16x16x16_s32", "sm_72"),
        (r"wmma_load_16x16x16_s8_[ab](_trans)?_shared(_dyn)?", "sm_72"),
        (r"wmma_store_16x16x16_s32_(global|shared|shared_dyn)", "sm_72"),
        (r"wmma_sync_16x16x16_s8s8s32(_trans)?", "sm_72"),
        (r"wmma_fill_8x8x32_s32", "sm_75"),
        (r"wmma_load_8x8x32_s4_(a|b_trans)_shared(_dyn)?", "sm_75"),
        (r"wmma_store_8x8x32_s32_(global|shared|shared_dyn)", "sm_75"),
        (r"wmma_sync_8x8x32_s4s4s32_trans", "sm_75"),
        (r"mma_(init_m16n8k8_(f16|f32)|load_m16n8k8_f16_[AB]_shared_dyn)", "sm_75"),
        (r"mma_(store_m16n8k8_(f16|f32)_global|sync_m16n8k8_f16f16(f16|f32))", "sm_75"),
        (r"mma_f16f16(f16|f32)(_trans_a)?(_trans_b)?", "sm_80"),
        (r"mma_i8i8i32(_trans_b)?", "sm_80"),
        (r"mma_fill_16x16_(f16|f32|i32)", "sm_80"),
        (r"mma_ldmatrix_f16_[ab](_trans)?(_dyn)?", "sm_80"),
        (r"mma_ldmatrix_i8_(a|b|b_trans)", "sm_80"),
        (r"mma_store_16x16_(f16|f32|i32)_(global|shared_dyn|shared_dyn_simple)_", "sm_80"),
        (r"mma_ldmatrix_(e4m3|e5m2)_(a|b|b_trans)", "sm_89"),
        (r"mma_(e4m3e4m3f32|e5m2e5m2f32)(_trans_b)?", "sm_89"),
    )
)


def intrinsic_features(name: str) -> frozenset[str] | None:
    """The features that a tensor intrinsic needs, or None when it is not allow-listed."""
    if name in _CPU_INTRINSICS:
        return _CPU_INTRINSICS[name]
    return next((frozenset([arch]) for pattern, arch in _CUDA_INTRINSICS if pattern.fullmatch(name)), None)
