"""In a worker process: one network compiled in several ways with TVM <= 0.19, compared and timed end to end."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import msgspec

from tunehub.measure.difference import difference
from tunehub.measure.quiet import clear_of_the_pool, undisturbed
from tunehub.measure.session import random_array

DEFAULT, HISTORY, GRAPH, AUTO_SCHEDULER = "default", "history", "graph", "auto_scheduler"
_PAUSE_S = 0.05
_CACHES = ("te_compiler", "compile_engine")  # TVM 0.9 and later, 0.8


class NetworkCase(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs of a network: files with its module (TVM's JSON) and its weights, its inputs, the target
    as TVM writes it, and the modules with a user's own AutoTVM ``templates``."""

    module: str
    weights: str
    inputs: dict[str, tuple[int, ...]]
    target: str
    templates: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkSampleOptions:
    """In each of ``rounds`` every variant runs for ``warm_up_s``, then for ``sample_s``, after a pause. In seconds.

    Idle threads of a pool spin for a while, and after a pause the system often puts two of them on one core. Samples
    that other programs disturb are taken again for ``patience_s``.
    """

    rounds: int
    sample_s: float
    warm_up_s: float
    patience_s: float


class NetworkSession:
    """What a worker remembers between requests: one network, and the variants that are built. Public methods are the
    requests."""

    def __init__(self) -> None:
        os.environ["TOPHUB_LOCATION"] = "NONE"  # or TVM asks the network for records
        self._case: NetworkCase | None = None
        self._variants: dict[str, Any] = {}

    def task(self, name: str, case: str) -> None:
        """Load the network ``name``, a :class:`NetworkCase` as JSON; whatever was built before is forgotten."""
        import tvm
        from tvm import relay

        self._variants.clear()
        self._case = known = msgspec.json.decode(case, type=NetworkCase)
        for module in known.templates:
            importlib.import_module(module)
        self._module = tvm.ir.load_json(Path(known.module).read_text(encoding="utf-8"))
        self._weights = relay.load_param_dict(Path(known.weights).read_bytes())
        self._target = tvm.target.Target(known.target)
        self._device = tvm.device(str(self._target.kind.name), 0)

    def build(self, variant: str, lines: Sequence[str]) -> None:
        """Compile the network with the records in ``lines``, as ``variant`` uses them."""
        import tvm
        from tvm import relay
        from tvm.contrib import graph_executor

        _clear_compile_caches()
        config = {"relay.backend.use_auto_scheduler": True} if variant == AUTO_SCHEDULER else {}
        with ExitStack() as stack:
            file = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".log", encoding="utf-8"))
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            if variant != DEFAULT:
                stack.enter_context(_records(variant, file.name))
            stack.enter_context(tvm.transform.PassContext(opt_level=3, config=config))
            library = relay.build(self._module, target=self._target, params=self._weights)
        module = graph_executor.GraphModule(library["default"](self._device))
        for name, value in self._inputs().items():
            module.set_input(name, value)
        self._variants[variant] = module

    def difference(self, variant: str) -> float:
        """Run ``variant`` once; the largest difference of an output from the default's, relative to its largest."""
        found, expected = self._outputs(variant), self._outputs(DEFAULT)
        return difference(found, expected)

    def sample(self, variants: Sequence[str], options: NetworkSampleOptions) -> dict[str, tuple[float, ...]]:
        """Times of one run in seconds, by variant: the mean of each round."""
        samples: dict[str, list[float]] = {variant: [] for variant in variants}
        began = perf_counter()
        with clear_of_the_pool():
            single = {variant: self._time(variant, 1) for variant in variants}
            for _ in range(options.rounds):
                for variant in variants:
                    sleep(_PAUSE_S)
                    self._time(variant, _runs(options.warm_up_s, single[variant]))
                    runs = _runs(options.sample_s, single[variant])
                    sampled = partial(self._sampled, variant, runs)
                    patient = perf_counter() - began < options.patience_s
                    samples[variant] += undisturbed(sampled) if patient else sampled()
        return {variant: tuple(times) for variant, times in samples.items()}

    def drop(self) -> None:
        """Forget the network."""
        self._variants.clear()
        self._module = self._weights = None

    def _time(self, variant: str, runs: int) -> float:
        timer = self._variants[variant].module.time_evaluator("run", self._device, number=runs, repeat=1)
        return float(timer().results[0])

    def _sampled(self, variant: str, runs: int) -> tuple[float, ...]:
        return (self._time(variant, runs),)

    def _outputs(self, variant: str) -> list[Any]:
        module = self._variants[variant]
        module.run()
        return [module.get_output(i).numpy() for i in range(module.get_num_outputs())]

    def _inputs(self) -> Mapping[str, Any]:
        """The same random numbers for every variant, by the types that the module declares."""
        import numpy as np

        assert self._case is not None
        types = {str(p.name_hint): str(p.type_annotation.dtype) for p in self._module["main"].params}
        rng = np.random.default_rng(0)
        return {
            name: random_array(rng, shape, types.get(name, "float32"), True)
            for name, shape in self._case.inputs.items()
        }


def _runs(seconds: float, single_s: float) -> int:
    return max(1, round(seconds / max(single_s, 1e-6)))


def _records(variant: str, path: str) -> Any:
    """TVM's own context for the records in a file."""
    if variant == AUTO_SCHEDULER:
        from tvm import auto_scheduler

        return auto_scheduler.ApplyHistoryBest(path)
    from tvm import autotvm

    return autotvm.apply_graph_best(path) if variant == GRAPH else autotvm.apply_history_best(path)


def _clear_compile_caches() -> None:
    """Forget kernels that were compiled with other records, where this TVM keeps them between builds."""
    for name in _CACHES:
        try:
            importlib.import_module(f"tvm.relay.backend.{name}").get().clear()
        except ImportError:
            continue
