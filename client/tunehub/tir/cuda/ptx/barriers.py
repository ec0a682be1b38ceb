"""How threads of a block or of a cluster of blocks wait for one another: PTX ISA 8.0 and later, "barrier",
"barrier.cluster", "griddepcontrol"."""

from __future__ import annotations

from tunehub.tir.cuda.ptx.function import INLINED, Function, function, instruction

CLUSTER_SYNC = """  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");"""


def cluster_sync() -> Function:
    """Wait for all threads of a cluster of blocks, whose shared memory can be read from then on."""
    name = "tunehub_cluster_waited"
    return Function(
        name,
        f"""{INLINED} void {name}() {{
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}}
""",
    )


def cluster_sync_of_parted_warps() -> Function:
    """Wait for all threads of a cluster, those of warps that have parted, too, and see what they have written."""
    return function("tunehub_ring_met", "", f"  __syncwarp();\n{CLUSTER_SYNC}")


def bar_sync_warpgroup() -> Function:
    """Wait for the other threads of a warpgroup, at the barrier of the number given."""
    return instruction("tunehub_ring_group", "int number", "bar.sync %0, 128;", '"r"(number)')


def bar_sync(threads: int) -> Function:
    """Wait for what others let begin with :func:`bar_arrive`: the barrier of the number given, of all ``threads``."""
    name = f"tunehub_ring_turn_{threads}"
    return instruction(name, "int turn", f"bar.sync %0, {threads};", '"r"(turn)')


def bar_arrive(threads: int) -> Function:
    """Let others begin, and do not wait."""
    name = f"tunehub_ring_give_{threads}"
    return instruction(name, "int turn", f"bar.arrive %0, {threads};", '"r"(turn)')


def griddepcontrol_wait() -> Function:
    """Wait until all that was started before is done, and its results can be seen."""
    name = "tunehub_after_the_kernel_before"
    return Function(
        name,
        f"""{INLINED} void {name}() {{
  asm volatile("griddepcontrol.wait;" ::: "memory");
}}
""",
    )
