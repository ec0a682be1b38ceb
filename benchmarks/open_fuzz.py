"""Differential testing of open dimensions on this CPU: random modules, compiled once, run at one size after the other.

``python -m benchmarks open_fuzz OUT [--seconds S] [--seed N] [--processes P]`` appends a line of JSON to the file OUT
for each module, and prints what came of all. Reference is what TVM's default compile of the same module computes; where
that differs, the module compiled by TVM for the very size has the last word. Inputs that break what a module says of
its shapes must be refused where TVM alone refuses them. ``--only SEED`` tries one module and says more.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np

from benchmarks.random_cases.lanes import pending_of, tried_in_lanes
from benchmarks.random_cases.open_modules import Array, OpenModule, random_open_module, sizes_by_name
from tunehub.exceptions import last_line

_SIZES = 7
_TOLERANCE = 2e-4
_LAYOUTS = ("auto", "auto", "keep")
_SPECIALIZED = 0.1
_SUMS = frozenset(
    ("reduction", "arg_reduction", "product", "attention", "image_norm", "norm", "softmax", "pool", "convolution",
     "block", "dense", "spread")
)  # fmt: skip
_OF_THE_MACHINE = ("TVM_NUM", "rules go by")
"""What notes say where they tell of the machine, not of a module that tunehub left to TVM."""


class OpenTrial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A module and what came of it. ``refused``: why TVM alone does not compile it; ``left``: why tunehub left it to
    TVM; ``wrong``: what was wrong at which size; ``failed``: what tunehub raised, or that the process ended; ``rungs``
    of its workloads with symbols; ``sizes`` that ran; ``odd``: TVM's own code is wrong there."""

    seed: int
    steps: list[str]
    layout: str = ""
    refused: str | None = None
    left: list[str] = []
    wrong: list[str] = []
    failed: str | None = None
    rungs: dict[str, int] = {}
    sizes: int = 0
    raised: int = 0
    odd: list[str] = []


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--seconds", default=300.0, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--processes", default=1, show_default=True)
@click.option("--only", type=int, help="One module.")
@click.option("--alone", is_flag=True, hidden=True, help="In this process, which a module may end.")
def main(out: Path, seconds: float, seed: int, processes: int, only: int | None, alone: bool) -> None:
    """Try random modules for SECONDS."""
    if only is not None:
        click.echo(random_open_module(only).mod.script())
        click.echo(msgspec.json.encode(tried(only)))
        return
    if alone:
        _test(out, seed, time.monotonic() + seconds)
        return
    tried_in_lanes(["benchmarks", "open_fuzz"], out, seconds, seed, processes)
    decoder = msgspec.json.Decoder(OpenTrial)
    click.echo(
        json.dumps(
            summary(decoder.decode(line) for line in out.read_bytes().splitlines() if line.endswith(b"}")), indent=1
        )
    )


def summary(trials: Iterable[OpenTrial]) -> dict[str, Any]:
    """How many modules and sizes ran, by rung, and those with which something is wrong."""
    found = list(trials)
    rungs: Counter[str] = Counter()
    for trial in found:
        rungs.update(trial.rungs)
    return {
        "modules": len(found),
        "TVM alone refuses": sum(trial.refused is not None for trial in found),
        "sizes": sum(trial.sizes for trial in found),
        "raised as with TVM alone": sum(trial.raised for trial in found),
        "TVM's code is wrong": [f"{trial.seed} {trial.odd[0]}" for trial in found if trial.odd],
        "rungs": dict(rungs.most_common()),
        "left to TVM": [f"{trial.seed} {trial.left}" for trial in found if trial.left],
        "wrong": [f"{trial.seed} {trial.wrong}" for trial in found if trial.wrong],
        "failed": [f"{trial.seed} {trial.failed}" for trial in found if trial.failed],
    }


def _test(out: Path, seed: int, end: float) -> None:
    """Modules of one process until ``end``."""
    rng, pending = random.Random(seed), pending_of(out)
    with out.open("ab") as lines:
        while time.monotonic() < end:
            number = rng.getrandbits(40)
            kept = OpenTrial(seed=number, steps=[], failed="the process ended")
            pending.write_bytes(msgspec.json.encode(kept) + b"\n")
            lines.write(msgspec.json.encode(tried(number)) + b"\n")
            lines.flush()
            pending.unlink()


def tried(seed: int) -> OpenTrial:
    """The module of a seed, compiled and run beside TVM's."""
    import tvm

    import tunehub

    module, rng = random_open_module(seed), random.Random(seed)
    trial = OpenTrial(seed=seed, steps=list(module.steps), layout=rng.choice(_LAYOUTS))
    target = tunehub.host_target()
    try:
        plain = tvm.compile(module.mod, target)
    except Exception as error:
        return msgspec.structs.replace(trial, refused=last_line(error, limit=200))
    hub = tunehub.open_hub(target, offline=True, layout=trial.layout)
    specialize = {name: [1, 5] for name in _chosen(module, rng)} or None
    try:
        executable = tunehub.compile(module.mod, target, hub=hub, specialize=specialize)
    except Exception as error:
        return msgspec.structs.replace(trial, failed=last_line(error, limit=300))
    report = hub.report()
    rungs = Counter(f"{each.rung} {each.template or ''}".strip() for each in report.workloads if each.symbols)
    left = [note for note in report.notes if not any(told in note for told in _OF_THE_MACHINE)]
    return _run(msgspec.structs.replace(trial, rungs=dict(rungs), left=left), module, plain, executable, rng)


def _chosen(module: OpenModule, rng: random.Random) -> list[str]:
    names = [str(symbol.name) for symbol in module.symbols]
    return names[:1] if rng.random() < _SPECIALIZED else []


def _run(trial: OpenTrial, module: OpenModule, plain: Any, executable: Any, rng: random.Random) -> OpenTrial:
    import tvm
    from tvm import relax

    ours, theirs = (relax.VirtualMachine(each, tvm.cpu()) for each in (executable, plain))
    wrong, odd, raised, ran = [], [], 0, 0
    cases = [(values, None) for values in module.sizes(rng, _SIZES)]
    cases += [(values, rng.randrange(len(module.parameters))) for values, _ in cases[1:3]]
    for values, changed in cases:
        inputs = module.inputs(values, trial.seed, odd=changed)
        where = f"{sizes_by_name(module, values)}" + (f", input {changed} is larger" if changed is not None else "")
        expected, found = outcome(theirs, inputs), outcome(ours, inputs)
        raised += isinstance(expected, str) and isinstance(found, str)
        ran += 1
        nothing = min(values, default=1) <= trial.steps.count("slice")  # each may leave one element less
        unset = nothing and not _SUMS.isdisjoint(trial.steps)  # TVM writes no sum of nothing
        difference = _difference(expected, found, only_shapes=unset)
        if difference is None:
            continue
        again = _exactly(module, values, inputs) if changed is None else None
        if again is not None and _difference(again, found) is None:
            odd.append(f"{where}: {difference}")
        else:
            wrong.append(f"{where}: {difference}")
    return msgspec.structs.replace(trial, wrong=wrong, odd=odd, raised=raised, sizes=ran)


def _exactly(module: OpenModule, values: Sequence[int], inputs: Sequence[Array]) -> Any:
    """What TVM computes that compiles the module for these sizes only; an error as text."""
    import tvm
    from tvm import relax

    import tunehub

    bound = relax.transform.BindSymbolicVars(dict(sizes_by_name(module, values)), "main")(module.mod)
    try:
        executable = tvm.compile(bound, tunehub.host_target())
    except Exception as error:
        return last_line(error, limit=120)
    return outcome(relax.VirtualMachine(executable, tvm.cpu()), inputs)


def outcome(machine: Any, inputs: Sequence[Array]) -> list[Array] | str:
    """What a module computes, or its error as text."""
    import tvm

    tensors = [tvm.runtime.tensor(each) for each in inputs]
    try:
        outputs = [each.numpy() for each in _flat(machine["main"](*tensors))]
    except Exception as error:
        return last_line(error, limit=200)
    pairs = enumerate(zip(inputs, tensors, strict=True))
    changed = [at for at, (before, after) in pairs if not np.array_equal(before, after.numpy())]
    return f"inputs {changed} were written" if changed else outputs


def _flat(result: Any) -> list[Any]:
    return [result] if hasattr(result, "numpy") else [each for part in result for each in _flat(part)]


def _difference(expected: list[Array] | str, found: list[Array] | str, *, only_shapes: bool = False) -> str | None:
    """How far two outcomes are apart; None where they agree."""
    if isinstance(expected, str) or isinstance(found, str):
        if isinstance(expected, str) == isinstance(found, str):
            return None
        return f"TVM raises {expected}" if isinstance(expected, str) else f"raises {found}"
    for number, (one, other) in enumerate(zip(expected, found, strict=True)):
        if one.shape != other.shape or one.dtype != other.dtype:
            return f"output {number} is {other.shape} {other.dtype}, not {one.shape} {one.dtype}"
        if only_shapes:
            continue
        scale = float(np.nanmax(np.abs(one), initial=0.0, where=np.isfinite(one)))
        if not np.allclose(other, one, rtol=_TOLERANCE, atol=_TOLERANCE * max(scale, 1e-3), equal_nan=True):
            apart = np.abs(one.astype("float64") - other) > _TOLERANCE * max(scale, 1e-3)
            first = np.argwhere(apart)[:1].tolist()
            return f"output {number} {one.shape}: {int(apart.sum())} elements differ, first {first}"
    return None
