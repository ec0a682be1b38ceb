"""In a worker process: one network compiled in several ways with TVM <= 0.19, compared and timed end to end."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tunehub.comparison.random_arrays import random_array
from tunehub.compiler.measure.quiet import Patience
from tunehub_builder.backends.relay.run_place import RunDevice, RunPlace
from tunehub_builder.gate.network_session import DEFAULT, BuiltNetwork, NetworkSession

HISTORY, GRAPH, AUTO_SCHEDULER = "history", "graph", "auto_scheduler"
_PATIENCE_S = 120.0
_CACHES = ("te_compiler", "compile_engine")  # TVM 0.9 and later, 0.8


class RelayNetworkCase(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs of a network: files with its module (TVM's JSON) and its weights, its inputs, the target
    as TVM writes it, and the modules with a user's own AutoTVM ``templates``."""

    module: str
    weights: str
    inputs: dict[str, tuple[int, ...]]
    target: str
    templates: tuple[str, ...] = ()


class _NoScheduleError(Exception):
    """A build with the auto-scheduler's records met an operator that has none, and that TVM cannot schedule."""


class RelayNetworkSession(NetworkSession):
    """Variants: TVM's ``default``, and how TVM uses records: ``history``, ``graph`` and ``auto_scheduler``."""

    def __init__(self, place: RunPlace | None = None) -> None:
        """``place``: None is the CPU."""
        self._place = place or RunPlace()
        self._place.enter()
        super().__init__(_PATIENCE_S)

    def open(self, case: str) -> None:
        """Load a :class:`RelayNetworkCase`."""
        import tvm
        from tvm import relay

        self._case = known = msgspec.json.decode(case, type=RelayNetworkCase)
        for module in known.templates:
            importlib.import_module(module)
        self._module = showing_logits(tvm.ir.load_json(Path(known.module).read_text(encoding="utf-8")))
        self._weights = relay.load_param_dict(Path(known.weights).read_bytes())
        self._target = tvm.target.Target(known.target)
        self._device = self._place.device(self._target)

    def compiled(self, variant: str, *arguments: Any) -> tuple[BuiltNetwork, Any]:
        """As the base says; the argument is the lines of the records, as ``variant`` uses them."""
        import tvm
        from tvm import relay
        from tvm.contrib import graph_executor

        _clear_compile_caches()
        config = {"relay.backend.use_auto_scheduler": True} if variant == AUTO_SCHEDULER else {}
        with ExitStack() as stack:
            if variant != DEFAULT:
                file = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".log", encoding="utf-8"))
                file.writelines(f"{line}\n" for line in arguments[0])
                file.flush()
                stack.enter_context(_records(variant, file.name))
            stack.enter_context(tvm.transform.PassContext(opt_level=3, config=config))
            try:
                library = relay.build(self._module, target=self._target, params=self._weights)
            except Exception as error:  # TVM raises whatever it runs into
                raise _explained(error, variant) from error
        with self._device.alone():
            module = graph_executor.GraphModule(library["default"](self._device.tvm))
            for name, value in self._inputs().items():
                module.set_input(name, value)
        return BuiltNetwork(outputs=partial(_outputs, module, self._device), time=partial(self._timed, module)), None

    def time(self, variant: str, runs: int, patient: bool) -> float:
        """As the base says; on a GPU nothing is repeated, but nobody else measures there."""
        timer = self._built[variant].time
        return self._device.timed(lambda: timer(runs), self._patience if patient else Patience(left=0.0))

    def _timed(self, module: Any, runs: int) -> float:
        evaluator = module.module.time_evaluator("run", self._device.tvm, number=runs, repeat=1)
        return float(evaluator().results[0])

    def _inputs(self) -> Mapping[str, Any]:
        return random_inputs(self._module, self._case.inputs)


def random_inputs(module: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """The same random numbers whenever it is asked, by the types that the Relay ``module`` declares."""
    import numpy as np

    types = {str(p.name_hint): str(p.type_annotation.dtype) for p in module["main"].params}
    rng = np.random.default_rng(0)
    return {name: random_array(rng, shape, types.get(name, "float32"), True) for name, shape in shapes.items()}


def showing_logits(module: Any) -> Any:
    """The Relay ``module``, which also gives what a softmax at its end is given.

    With random weights all classes are about equally likely, so that a wrong layer hardly shows behind the softmax:
    every output of ``relay.testing``'s mobilenet is 0.001, of numbers of some 1e-19.
    """
    import tvm
    from tvm import relay

    body = module["main"].body
    if not isinstance(body, relay.Call) or str(getattr(body.op, "name", "")) != "nn.softmax":
        return module
    shown = relay.Function(module["main"].params, relay.Tuple([body, body.args[0]]))
    others = {name: function for name, function in module.functions.items() if str(name.name_hint) != "main"}
    return relay.transform.InferType()(tvm.IRModule.from_expr(shown, others))


def _explained(error: Exception, variant: str) -> Exception:
    """``error``, or what it means: TVM prints the whole function that has no threads."""
    if variant != AUTO_SCHEDULER or "Did you forget to bind?" not in str(error):
        return error
    return _NoScheduleError("an operator without a record has no schedule for a GPU: tune all tasks of the network")


def _outputs(module: Any, device: RunDevice) -> list[Any]:
    with device.alone():
        module.run()
        return [module.get_output(i).numpy() for i in range(module.get_num_outputs())]


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
