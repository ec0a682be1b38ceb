"""How warpgroups that multiply and one that copies wait for each other: a function of CUDA C++ for each step.

Source: PTX ISA 8.0 and later, "mbarrier", "barrier", "setmaxnreg", "Async proxy".
"""

from __future__ import annotations

from tunehub.cuda.hopper.ptx import INLINED, Function

BARRIER_BYTES = 8


def barrier_of() -> Function:
    """Make a barrier at an address in shared memory that is passed each time so many threads have arrived."""
    name = "tunehub_ring_barrier"
    return _one(name, "unsigned at, int count", "mbarrier.init.shared::cta.b64 [%0], %1;", '"r"(at), "r"(count)')


def barriers_set() -> Function:
    """All threads of a block see the barriers that one has made."""
    name = "tunehub_ring_set"
    return Function(
        name,
        f"""{INLINED} void {name}() {{
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  __syncthreads();
}}
""",
    )


def arrived() -> Function:
    """A thread arrives at a barrier."""
    name = "tunehub_ring_arrive"
    return _one(name, "unsigned at", "mbarrier.arrive.shared::cta.b64 _, [%0];", '"r"(at)')


def brought() -> Function:
    """A thread's copies are there for products of others, and it arrives at a barrier."""
    name = "tunehub_ring_brought"
    return Function(
        name,
        f"""{INLINED} void {name}(unsigned at) {{
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at) : "memory");
}}
""",
    )


def passed() -> Function:
    """Wait until a barrier has been passed for the time whose parity is given."""
    name = "tunehub_ring_wait"
    return Function(
        name,
        f"""{INLINED} void {name}(unsigned at, int parity) {{
  unsigned done;
  do {{
    asm volatile("{{\\n.reg .pred p;\\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\\n"
                 "selp.u32 %0, 1, 0, p;\\n}}" : "=r"(done) : "r"(at), "r"(parity) : "memory");
  }} while (!done);
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
    return Function(
        name, f'{INLINED} void {name}({parameters}) {{ asm volatile("{instruction}" :: {operands} : "memory"); }}\n'
    )
