"""Differential testing of what a client gets on a GPU: random operators compiled whole, beside PyTorch in float32.

``python -m benchmarks gpu_served OUT [--seconds S] [--seed N] [--processes P] [--kinds A,B]`` appends a line of JSON to
the file OUT for each network (:mod:`benchmarks.random_cases.operators`), and prints what came of all. Half of them have
the records of the machine's package, the others none; what serves is not run beside the plain schedule before
(``verify="never"``). A network with an open dimension is compiled once and run at several sizes. ``--only SEED``: one
network. Without a GPU networks are compiled for an H200, not run. Needs PyTorch to run.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec.structs import replace

from benchmarks.gpu_fuzz import H200, LOST
from benchmarks.random_cases.lanes import pending_of, tried_in_lanes
from benchmarks.random_cases.operators import OPEN, OPERATORS, OperatorCase, random_case
from tunehub.comparison.difference import tolerance
from tunehub.exceptions import last_line
from tunehub.tir.nodes import shape_of, tensor_type

# What is asked of one operator, relative to the largest value; more is a question of rounding or of an error.
_ASKED = {"float16": 2e-3, "bfloat16": 2e-2, "tf32": 1e-3, "float32": 1e-4}
_SMALL = 1e-4  # largest values below are no measure: half precision has few digits for them
_RUNS = 2  # threads that write over each other do not do so every time
_MOST_TERMS = 1 << 13  # of sums in half precision itself, as TVM has reductions


class ServedCase(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A network and what came of it. ``served``: what serves each of its functions; ``apart``: by size, the largest
    difference from PyTorch in float32, relative to the largest value, of which ``asked`` is wanted and ``most`` may be;
    ``failed``: why it was not compiled or run; ``refused``: TVM alone does not compile it either; ``notes`` of the hub;
    ``compile_s``: seconds."""

    seed: int
    kind: str
    precision: str
    shapes: list[str]
    records: bool
    served: list[str] = []
    apart: dict[int, float] = {}
    asked: float = 0.0
    most: float = 0.0
    failed: str | None = None
    refused: bool = False
    notes: list[str] = []
    compile_s: float = 0.0

    @property
    def wrong(self) -> bool:
        """Whether any size is further apart than a right result can be, or nothing came back."""
        return (self.failed is not None and not self.refused) or any(
            not each <= self.most for each in self.apart.values()
        )


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--seconds", default=300.0, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--processes", default=1, show_default=True)
@click.option("--kinds", default=",".join(OPERATORS), help="Separated by commas; all by default.")
@click.option("--only", type=int, help="The network of this seed.")
@click.option("--alone", is_flag=True, hidden=True, help="In this process; what a lost GPU ends.")
def main(out: Path, seconds: float, seed: int, processes: int, kinds: str, only: int | None, alone: bool) -> None:
    """Test random networks for SECONDS."""
    chosen = tuple(kinds.split(","))
    if only is not None:
        click.echo(random_case(only, chosen).mod.script())
        click.echo(msgspec.json.encode(tried(only, chosen)))
        return
    if alone:
        _test(out, seed, time.monotonic() + seconds, chosen)
        return
    tried_in_lanes(["benchmarks", "gpu_served", "--kinds", kinds], out, seconds, seed, processes)
    decoder = msgspec.json.Decoder(ServedCase)
    click.echo(json.dumps(summary(decoder.decode(line) for line in out.read_bytes().splitlines()), indent=1))


def summary(cases: Iterable[ServedCase]) -> dict[str, Any]:
    """Of each kind how many networks and shapes ran, how far the worst was apart, and which were wrong."""
    found = list(cases)
    by_kind: dict[str, Any] = {}
    for kind in sorted({case.kind for case in found}):
        own = [case for case in found if case.kind == kind]
        apart = dict.fromkeys(sorted({case.precision for case in own}), 0.0)
        for case in own:
            apart[case.precision] = max(apart[case.precision], *case.apart.values(), 0.0)
        by_kind[kind] = {"networks": len(own), "shapes": sum(len(case.apart) for case in own), "worst": apart}
    rungs = Counter(name.rpartition(" by ")[2] for case in found for name in case.served)
    return {
        "networks": len(found),
        "TVM alone refuses": sum(case.refused for case in found),
        "shapes": sum(len(case.apart) for case in found),
        "kinds": by_kind,
        "served by": dict(rungs.most_common()),
        "further apart than asked": [
            _about(case) for case in found if not case.wrong and max(case.apart.values(), default=0.0) > case.asked
        ],
        "with notes": [f"{_about(case)}: {case.notes}" for case in found if case.notes],
        "wrong": [f"{_about(case)}: {case.failed or ''}" for case in found if case.wrong],
    }


def _about(case: ServedCase) -> str:
    apart = {size: f"{each:.1e}" for size, each in case.apart.items() if not each <= case.asked}
    return f"{case.seed} {case.kind} {case.precision} {case.shapes} by {case.served} {apart or ''}"


def _test(out: Path, seed: int, end: float, kinds: tuple[str, ...]) -> None:
    """Networks of one process until ``end``; ends the process when the GPU does not answer any more."""
    rng, pending = random.Random(seed), pending_of(out)
    with out.open("ab") as lines:
        while time.monotonic() < end:
            number = rng.getrandbits(40)
            kept = replace(_case_of(random_case(number, kinds), number), failed="it does not come back")
            pending.write_bytes(msgspec.json.encode(kept) + b"\n")
            lines.write(msgspec.json.encode(tried(number, kinds)) + b"\n")
            lines.flush()
            pending.unlink()
            if _has_gpu() and not _gpu_works():
                sys.exit(LOST)


def tried(seed: int, kinds: tuple[str, ...] = ()) -> ServedCase:
    """The network of a seed, compiled, and run where there is a GPU."""
    network = random_case(seed, kinds)
    case, began = _case_of(network, seed), time.perf_counter()
    try:
        executable, report = _compiled(network, records=case.records)
    except Exception as error:  # TVM raises many kinds
        return replace(case, failed=f"compile: {last_line(error, limit=300)}", refused=_tvm_refuses(network))
    case = replace(
        case,
        served=[f"{each.op} by {each.template or each.rung}" for each in report.workloads],
        notes=[note for note in report.notes if "TVM_NUM" not in note and "precision=" not in note],
        compile_s=round(time.perf_counter() - began, 2),
    )
    return case if not _has_gpu() else _run(case, network, executable)


def _case_of(network: OperatorCase, seed: int) -> ServedCase:
    precision = network.precision if network.precision == "tf32" else network.dtype
    terms = _MOST_TERMS if "reduction" in network.kind else 1
    most = max(tolerance([precision], "narrow sums", terms=terms), _ASKED[precision])
    shapes = [f"{_text(shape_of(var))} {tensor_type(var).dtype}" for var in network.mod["main"].params]
    return ServedCase(
        seed=seed,
        kind=network.kind,
        precision=precision,
        shapes=shapes,
        records=bool(seed % 2),
        asked=_ASKED[precision],
        most=most,
    )


def _text(shape: Iterable[Any] | None) -> str:
    return "x".join(map(str, shape or ()))


def _compiled(network: OperatorCase, *, records: bool) -> tuple[Any, Any]:
    import tunehub
    from tunehub.records.lookup import EmptyLookup

    target = _target()
    hub = tunehub.open_hub(target, offline=True, verify="never", precision=network.precision)
    if not records:
        hub.lookup = EmptyLookup()
    executable = tunehub.compile(network.mod, target, hub=hub)
    return executable, hub.report()


def _tvm_refuses(network: OperatorCase) -> bool:
    """Whether TVM alone does not compile it."""
    import tvm

    try:
        tvm.compile(network.mod, _target())
    except Exception:  # TVM raises many kinds
        return True
    return False


def _target() -> Any:
    import tvm

    return tvm.target.Target(H200, host={"kind": "llvm"})


def _run(case: ServedCase, network: OperatorCase, executable: Any) -> ServedCase:
    import torch
    import tvm
    from tvm import relax

    from benchmarks.shared.torch_reference import evaluated

    apart: dict[int, float] = {}
    try:
        machine = relax.VirtualMachine(executable, tvm.cuda(0))
        for size in network.sizes or (0,):
            static = relax.transform.BindSymbolicVars({OPEN: size}, "main")(network.mod) if size else network.mod
            given = tensors(static["main"].params, case.seed + size, "cuda")
            expected = evaluated(static, given)
            for _ in range(_RUNS):
                found = machine["main"](*(tvm.runtime.from_dlpack(each) for each in given))
                apart[size] = max(apart.get(size, 0.0), _apart(torch.from_dlpack(found), expected))
    except Exception as error:  # of any kind: what TVM and PyTorch raise
        return replace(case, apart=apart, failed=f"run: {last_line(error, limit=300)}")
    return replace(case, apart=apart)


def tensors(params: Iterable[Any], seed: int, device: str) -> list[Any]:
    """Normal numbers, and so small that sums of products have about the size of 1; words are any."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    found = []
    for var in params:
        shape, dtype = shape_of(var), str(tensor_type(var).dtype)
        if dtype == "uint32":
            words = torch.randint(-(2**31), 2**31, shape, generator=generator, device=device, dtype=torch.int64)
            found.append(words.int().view(torch.uint32))
            continue
        numbers = torch.randn(shape, generator=generator, device=device)
        found.append((numbers * max(numbers.shape[-1], 1) ** -0.25).to(getattr(torch, dtype)))
    return found


def _apart(found: Any, expected: Any) -> float:
    """Relative to the largest value; the largest float where a number is not finite, as JSON has no infinity."""
    if found.shape != expected.shape:
        return sys.float_info.max
    scale = max(float(expected.abs().max()), _SMALL)
    apart = float((found.float() - expected).abs().max()) / scale
    return min(apart, sys.float_info.max) if apart == apart else sys.float_info.max


def _has_gpu() -> bool:
    import tvm

    return bool(tvm.cuda(0).exist)


def _gpu_works() -> bool:
    import tvm

    try:
        tvm.cuda(0).sync()
    except Exception:  # a kernel has left its memory: nothing runs after it
        return False
    return True
