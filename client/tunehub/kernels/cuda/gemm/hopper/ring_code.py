"""How warpgroups that multiply and those that copy wait for each other, and what the copy engine (TMA) brings: a
function of CUDA C++ for each step.

Source: PTX ISA 8.0 and later, "mbarrier", "barrier", "setmaxnreg", "Async proxy", "cp.async.bulk.tensor", "mapa".
"""

from __future__ import annotations

from tunehub.tir.cuda.ptx import INLINED, Function

BARRIER_BYTES = 8
_MET = """  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");"""
_BOX = "cp.async.bulk.tensor.{dimensions}d.shared::cluster.global.mbarrier::complete_tx::bytes"


def barrier_of() -> Function:
    """Make a barrier at an address in shared memory that is passed each time so many threads have arrived."""
    name = "tunehub_ring_barrier"
    return _one(name, "unsigned at, int count", "mbarrier.init.shared::cta.b64 [%0], %1;", '"r"(at), "r"(count)')


def barriers_set(*, cluster: bool = False) -> Function:
    """All threads of a block, or of a ``cluster``, see the barriers that one of each block has made."""
    name = "tunehub_ring_set_cluster" if cluster else "tunehub_ring_set"
    met = _MET if cluster else "  __syncthreads();"
    return _function(name, "", f'  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");\n{met}')


def arrived() -> Function:
    """A thread arrives at a barrier."""
    name = "tunehub_ring_arrive"
    return _one(name, "unsigned at", "mbarrier.arrive.shared::cta.b64 _, [%0];", '"r"(at)')


def arrived_at() -> Function:
    """A thread arrives at the barrier with this address in the block ``rank`` of its cluster: what it has read may be
    overwritten. What it has written is not said to be there, for which all of memory would be waited for."""
    return _function(
        "tunehub_ring_arrive_at",
        "unsigned at, int rank",
        """  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(there) : "memory");""",
    )


def expected(size: int) -> Function:
    """A thread arrives at a barrier to which ``size`` bytes are to come before it is passed."""
    name = f"tunehub_ring_expect_{size}"
    return _one(name, "unsigned at", f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], {size};", '"r"(at)')


def box_brought() -> Function:
    """Bring a box of a matrix, from the place ``x`` along its rows and the row ``y`` on, into the shared memory of this
    block; a barrier counts its bytes."""
    return _function(
        "tunehub_ring_box",
        "unsigned to, unsigned long long map, unsigned barrier, int x, int y",
        f"""  asm volatile("{_BOX.format(dimensions=2)} [%0], [%1, {{%3, %4}}], [%2];"
               :: "r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y) : "memory");""",
    )


def box_shared() -> Function:
    """As :func:`box_brought`, into the memory of those blocks of a cluster whose bits ``mask`` has."""
    return _function(
        "tunehub_ring_box_shared",
        "unsigned to, unsigned long long map, unsigned barrier, int x, int y, int mask",
        f"""  asm volatile("{_BOX.format(dimensions=2)}.multicast::cluster [%0], [%1, {{%3, %4}}], [%2], %5;"
               :: "r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "h"((unsigned short)mask) : "memory");""",
    )


def box_of_several() -> Function:
    """As :func:`box_brought`, of the matrix ``z`` of several."""
    return _function(
        "tunehub_ring_box_of",
        "unsigned to, unsigned long long map, unsigned barrier, int x, int y, int z",
        f"""  asm volatile("{_BOX.format(dimensions=3)} [%0], [%1, {{%3, %4, %5}}], [%2];"
               :: "r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z) : "memory");""",
    )


def brought() -> Function:
    """A thread's copies are there for products of others, and it arrives at a barrier."""
    return _function(
        "tunehub_ring_brought",
        "unsigned at",
        """  asm volatile("cp.async.wait_group 0;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at) : "memory");""",
    )


def passed() -> Function:
    """Wait until a barrier has been passed for the time whose parity is given."""
    return _function(
        "tunehub_ring_wait",
        "unsigned at, int parity",
        """  unsigned done;
  do {
    asm volatile("{\\n.reg .pred p;\\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\\n"
                 "selp.u32 %0, 1, 0, p;\\n}" : "=r"(done) : "r"(at), "r"(parity) : "memory");
  } while (!done);""",
    )


def cluster_met() -> Function:
    """Wait for all threads of a cluster, those of warps that have parted, too, and see what they have written."""
    return _function("tunehub_ring_met", "", f"  __syncwarp();\n{_MET}")


def group_met() -> Function:
    """Wait for the other threads of a warpgroup, at the barrier of the number given."""
    return _one("tunehub_ring_group", "int number", "bar.sync %0, 128;", '"r"(number)')


def kept() -> Function:
    """Two sums into shared memory, as no statement of TIR, which TVM would set barriers for all threads around."""
    operands = '"r"(at), "f"(x), "f"(y)'
    return _one("tunehub_ring_keep", "unsigned at, float x, float y", "st.shared.v2.f32 [%0], {%1, %2};", operands)


def taken() -> Function:
    """Four sums from shared memory."""
    name = "tunehub_ring_take"
    return Function(
        name,
        f"""{INLINED} float4 {name}(unsigned at) {{
  float4 v;
  asm volatile("ld.shared.v4.f32 {{%0, %1, %2, %3}}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at) : "memory");
  return v;
}}
""",
    )


def turn_awaited(threads: int) -> Function:
    """Wait for what others let begin with :func:`turn_given`: the barrier of the number given, of all ``threads``."""
    name = f"tunehub_ring_turn_{threads}"
    return _one(name, "int turn", f"bar.sync %0, {threads};", '"r"(turn)')


def turn_given(threads: int) -> Function:
    """Let others begin, and do not wait."""
    name = f"tunehub_ring_give_{threads}"
    return _one(name, "int turn", f"bar.arrive %0, {threads};", '"r"(turn)')


def registers(count: int, *, more: bool) -> Function:
    """A warpgroup has ``count`` registers a thread from now on, more or fewer than at the launch."""
    name = f"tunehub_ring_registers_{count}_{int(more)}"
    return _one(name, "", f"setmaxnreg.{'inc' if more else 'dec'}.sync.aligned.u32 {count};", "")


def _one(name: str, parameters: str, instruction: str, operands: str) -> Function:
    return _function(name, parameters, f'  asm volatile("{instruction}" :: {operands} : "memory");')


def _function(name: str, parameters: str, body: str) -> Function:
    return Function(name, f"{INLINED} void {name}({parameters}) {{\n{body}\n}}\n")
