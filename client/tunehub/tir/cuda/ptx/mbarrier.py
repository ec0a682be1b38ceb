"""Barriers in shared memory that count arrivals and bytes: PTX ISA 8.0 and later, "mbarrier", "Async proxy", "mapa"."""

from __future__ import annotations

from tunehub.tir.cuda.ptx.barriers import CLUSTER_SYNC
from tunehub.tir.cuda.ptx.function import Function, function, instruction

BARRIER_BYTES = 8


def mbarrier_init() -> Function:
    """Make a barrier at an address in shared memory that is passed each time so many threads have arrived."""
    name = "tunehub_ring_barrier"
    return instruction(name, "unsigned at, int count", "mbarrier.init.shared::cta.b64 [%0], %1;", '"r"(at), "r"(count)')


def mbarrier_init_fence(*, cluster: bool = False) -> Function:
    """All threads of a block, or of a ``cluster``, see the barriers that one of each block has made."""
    name = "tunehub_ring_set_cluster" if cluster else "tunehub_ring_set"
    met = CLUSTER_SYNC if cluster else "  __syncthreads();"
    return function(name, "", f'  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");\n{met}')


def mbarrier_arrive() -> Function:
    """A thread arrives at a barrier."""
    name = "tunehub_ring_arrive"
    return instruction(name, "unsigned at", "mbarrier.arrive.shared::cta.b64 _, [%0];", '"r"(at)')


def mbarrier_arrive_remote() -> Function:
    """A thread arrives at the barrier with this address in the block ``rank`` of its cluster: what it has read may be
    overwritten. What it has written is not said to be there, for which all of memory would be waited for."""
    return function(
        "tunehub_ring_arrive_at",
        "unsigned at, int rank",
        """  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(there) : "memory");""",
    )


def mbarrier_arrive_expect_tx(size: int) -> Function:
    """A thread arrives at a barrier to which ``size`` bytes are to come before it is passed."""
    name = f"tunehub_ring_expect_{size}"
    return instruction(name, "unsigned at", f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], {size};", '"r"(at)')


def mbarrier_arrive_with_copies() -> Function:
    """A thread's copies are there for products of others, and it arrives at a barrier."""
    return function(
        "tunehub_ring_brought",
        "unsigned at",
        """  asm volatile("cp.async.wait_group 0;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at) : "memory");""",
    )


def mbarrier_wait() -> Function:
    """Wait until a barrier has been passed for the time whose parity is given."""
    return function(
        "tunehub_ring_wait",
        "unsigned at, int parity",
        """  unsigned done;
  do {
    asm volatile("{\\n.reg .pred p;\\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\\n"
                 "selp.u32 %0, 1, 0, p;\\n}" : "=r"(done) : "r"(at), "r"(parity) : "memory");
  } while (!done);""",
    )
