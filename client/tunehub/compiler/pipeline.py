"""Where the hub meets current TVM (0.25 and newer): the compile pipeline with records between fusion and lowering.

Nothing here reads packages: records come from a :class:`tunehub.records.lookup.RecordLookup`, and every outcome goes to
the hub's report. The steps: :mod:`tunehub.compiler.preparing`, :mod:`tunehub.compiler.module_records`,
:mod:`tunehub.compiler.finishing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING

from tunehub.comparison.guess import GUESS_MARGIN
from tunehub.compiler.finishing import finish
from tunehub.compiler.module_records import ModuleRecords
from tunehub.compiler.patch import DefaultPipelinePatch
from tunehub.compiler.preparing import NARROW_PRECISIONS, prepare
from tunehub.compiler.schedule.ladder import Scheduling
from tunehub.compiler.verify.port import ScheduleVerifier, TrustingVerifier
from tunehub.graph.numerics.known_mistakes import wrong_operators
from tunehub.graph.workloads import call_counts, workloads
from tunehub.interrupts import heeding
from tunehub.kernels.template_fit import published_rates
from tunehub.tir.nodes import calls_in
from tunehub.tir.symbols import symbols_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tunehub.compiler.hub import Hub
    from tunehub.graph.types import Executable, Params
    from tunehub.options import Sizes
    from tunehub.target.types import Target
    from tunehub.tir.types import Array, DeviceTensor, IRModule, Pass, PassContext


def build_pipeline(target: Target, hub: Hub, specialize: Sizes | None = None) -> Pass:
    """Return the module pass that compiles for ``target`` with the records of ``hub``; ``specialize``: see
    :mod:`tunehub.graph.shapes.specialize`. The pass raises SettingError for sizes that do not fit a module.

    When a step of the hub fails, the module goes through TVM's default pipeline and the hub warns
    (``strict``: the hub raises).
    """
    import tvm

    @tvm.transform.module_pass(opt_level=0, name="tunehub.pipeline")  # type: ignore[untyped-decorator]
    def tunehub_pipeline(mod: IRModule, _context: PassContext) -> IRModule:
        _check_constants(mod, hub)
        original = _named_for(target, mod)
        mod = _specialized(original, specialize, hub)
        if not _may_serve(mod, target, hub):
            return _plain_pipeline(target)(mod)
        try:
            with heeding(), published_rates(hub.published_profile), _verifying(hub, target) as verifier:
                hub.step("graph")
                mod = _with_own_attention(mod, target, hub)
                known: dict[str, Scheduling] = {}
                prepared = _prepare_for(hub, mod, target, known)
                _measure(prepared, target, hub, known)
                checked = _with_checked_indices(prepared, mod, target, hub)
                finished = _scheduled_and_finished(checked, target, hub, verifier, known)
            hub.leaves_wrong(wrong_operators(calls_in(mod), target))
            _note_weights(finished, hub)
            if hub.verification is not None and hub.verification.whole_networks:
                hub.verification.check_network(mod, finished, target, hub.note)
            hub.step("code")
            return finished
        except Exception as error:
            hub.failed("compiling with records", error)
            return _plain_pipeline(target)(original)

    return tunehub_pipeline


def _with_checked_indices(prepared: IRModule, mod: IRModule, target: Target, hub: Hub) -> IRModule:
    """``prepared``, made of ``mod``, in which inputs that are indices are checked first, where the hub wants it: on
    GPUs only sizes, which the host knows."""
    from tunehub.graph.checked_indices import index_limits, with_checked_indices

    if not hub.check_indices:
        return prepared
    limits = index_limits(mod, values=target.kind.name == "llvm")
    return with_checked_indices(prepared, limits) if limits else prepared


def _check_constants(mod: IRModule, hub: Hub) -> None:
    """Raise IndexOfNoRowError where a constant of ``mod`` indexes what is not there, if the hub is to check;
    ConstantTooLargeError for what would be computed of constants."""
    from tunehub.graph.constant_sizes import check_constant_sizes
    from tunehub.graph.indexed_rows import check_constant_indices

    check_constant_sizes(mod)
    if hub.check_indices:
        check_constant_indices(mod)


def _measure(mod: IRModule, target: Target, hub: Hub, known: dict[str, Scheduling]) -> None:
    """Measure the functions of ``mod``, a prepared module, that have no record, if the hub is asked to. Those in
    ``known`` are to be scheduled again then."""
    if hub.measuring is not None:
        known.clear()
        from tunehub.compiler.measure.missing import measure_missing

        functions = ((str(variable.name_hint), function) for variable, function in workloads(mod))
        measure_missing(functions, target, hub, hub.measuring)


def explain_module(
    mod: IRModule, target: Target, hub: Hub, params: Params | None = None, specialize: Sizes | None = None
) -> None:
    """Put into the report of ``hub`` what :func:`compile_module` would do with ``mod``. No code is generated. Raises as
    that."""
    bound = _bound(mod, params)
    _check_constants(bound, hub)
    bound = _specialized(_named_for(target, bound), specialize, hub)
    if not _may_serve(bound, target, hub):
        return
    try:
        with heeding(), published_rates(hub.published_profile), _verifying(hub, target, explaining=True) as verifier:
            known: dict[str, Scheduling] = {}
            bound = _with_own_attention(bound, target, hub)
            apply_records(_prepare_for(hub, bound, target, known), target, hub, verifier, known)
        hub.leaves_wrong(wrong_operators(calls_in(bound), target))
    except Exception as error:
        hub.failed("explaining the module", error)


def prepared_for(mod: IRModule, target: Target, hub: Hub) -> IRModule:
    """``mod`` as a compile with ``hub`` has it before it is scheduled, see
    :func:`tunehub.compiler.preparing.prepare`."""
    hub.step("graph")
    with heeding(), published_rates(hub.published_profile):
        return _prepare_for(hub, _named_for(target, mod), target)


def schedulings(prepared: IRModule, target: Target, hub: Hub) -> dict[str, Scheduling]:
    """What serves each function of ``prepared``, by name, verified as in a compile; the report of ``hub`` says so."""
    hub.step("schedule")
    with heeding(), published_rates(hub.published_profile), _verifying(hub, target) as verifier:
        records = ModuleRecords(prepared, target, hub, verifier, {})
        records.verified.settle()
        records.report()
    return records.by_name()


def _specialized(mod: IRModule, sizes: Sizes | None, hub: Hub) -> IRModule:
    """``mod`` with functions for ``sizes``; as it is when they cannot be made. Raises SettingError for wrong ones."""
    if sizes is None:
        return mod
    from tunehub.graph.shapes.specialize import check_sizes, specialized

    check_sizes(mod, sizes)
    try:
        return specialized(mod, sizes)
    except Exception as error:
        hub.failed("making functions for chosen sizes", error)
        return mod


def _with_own_attention(mod: IRModule, target: Target, hub: Hub) -> IRModule:
    """``mod`` with our kernels of attention over a paged cache."""
    from tunehub.graph.attention.paged_cache import with_own_attention

    return with_own_attention(mod, target, hub.note, narrow=hub.precision in NARROW_PRECISIONS)


def _note_weights(finished: IRModule, hub: Hub) -> None:
    """Say what functions for chosen sizes hold beside what the one for all sizes holds."""
    from tunehub.graph.shapes.specialize import note_of_weights

    text = note_of_weights(finished)
    if text is not None:
        hub.note(text)


def _may_serve(mod: IRModule, target: Target, hub: Hub) -> bool:
    """Whether the hub can serve ``mod`` by its nature; if not, the hub says why."""
    from tunehub.graph.effects import hidden_effects

    if target.kind.name != hub.host.kind:  # TVM itself never compares the target of a record
        hub.fall_back(f"they are for {hub.host.kind}, the module is compiled for {target.kind.name}")
        return False
    hidden = hidden_effects(mod)
    if hidden is not None:
        hub.fall_back(f"{hidden}, which other functions call, calls packed functions for their side effects")
        return False
    return True


def _named_for(target: Target, mod: IRModule) -> IRModule:
    """``mod`` with names of inputs that code for ``target`` can have."""
    if target.kind.name == "llvm":
        return mod
    from tunehub.graph.names import with_identifiers

    return with_identifiers(mod)


def _prepare_for(hub: Hub, mod: IRModule, target: Target, known: dict[str, Scheduling] | None = None) -> IRModule:
    """The module in the layouts that the hub asks for; when they cannot be planned, in its own. GPUs have their own.
    What was scheduled to find out whether it can be is put into ``known``, by name."""
    if target.kind.name == "cuda":
        chosen = _with_channels_last(_prepared_for_gpu(mod, target, hub), mod, target, hub)
        return _with_winograd(chosen, target, hub, {})
    if hub.layout == "auto":
        try:
            planned = prepare(mod, target, layout="auto", precision=hub.precision, winograd=hub.winograd, note=hub.note)
            return _with_winograd(planned, target, hub, {} if known is None else known)
        except Exception as error:
            hub.failed("planning layouts", error)
    return prepare(mod, target)


def _prepared_for_gpu(mod: IRModule, target: Target, hub: Hub) -> IRModule:
    """Quantised models in integers, unless layouts are to be kept."""
    if hub.layout == "auto":
        try:
            return prepare(mod, target, layout="auto", precision=hub.precision, note=hub.note)
        except Exception as error:
            hub.failed("computing in integers", error)
    return prepare(mod, target, precision=hub.precision)


def _with_winograd(prepared: IRModule, target: Target, hub: Hub, known: dict[str, Scheduling]) -> IRModule:
    """``prepared`` with convolutions by Winograd's algorithm where the hub may and that should be faster."""
    if not hub.winograd or hub.precision == "tf32":
        return prepared
    try:
        if target.kind.name == "cuda":
            from tunehub.compiler.winograd import cuda as on_cuda  # CPUs need none of it

            return on_cuda.with_winograd(prepared, target, hub.lookup, hub.note)
        if target.kind.name == "llvm":
            from tunehub.compiler.winograd.cpu import with_winograd

            written, schedulings = with_winograd(prepared, target, hub.lookup, hub.note)
            known.update(schedulings)
            return written
    except Exception as error:
        hub.failed("writing convolutions by Winograd's algorithm", error)
    return prepared


def _with_channels_last(prepared: IRModule, mod: IRModule, target: Target, hub: Hub) -> IRModule:
    """``mod`` with channels last where that serves it; ``prepared``, its own order, where records are for that and are
    not slower than convolutions with channels last should be, by the margin of every guess, or where few convolutions
    should gain less than transposing takes."""
    from tunehub.graph.layout.cuda.channels_last import wants_channels_last
    from tunehub.graph.layout.cuda.payoff import pays

    if not wants_channels_last(mod, target, hub.precision):
        return prepared
    recorded_s, channels_last_s = _recorded_and_channels_last(prepared, target, hub)
    if 0.0 < recorded_s < GUESS_MARGIN * channels_last_s:
        return prepared
    try:
        chosen = prepare(mod, target, layout=hub.layout, channels_last=True, precision=hub.precision)
        return chosen if pays(prepared, chosen, target, hub.precision) else prepared
    except Exception as error:
        hub.failed("channels last", error)
        return prepared


def _recorded_and_channels_last(prepared: IRModule, target: Target, hub: Hub) -> tuple[float, float]:
    """What all convolutions of ``prepared`` that have exact records take by these, and should take with channels
    last."""
    from tunehub.kernels.cuda.gemm.hopper.rule import channels_last_s
    from tunehub.kernels.cuda.gemm.tensor_core.sketch import matmul_of
    from tunehub.kernels.devices.known import device_of
    from tunehub.tir.keys import workload_key
    from tunehub.tir.nodes import main_module

    counts, device, recorded_s, expected_s = call_counts(prepared), device_of(target), 0.0, 0.0
    for variable, function in workloads(prepared):
        single = main_module(function)
        matmul = None if symbols_of(function) else matmul_of(single)
        if matmul is None or not (matmul.rows_first or matmul.window > 1):
            continue
        found = hub.lookup.by_exact(workload_key(single))
        if found is not None:
            count = counts[str(variable.name_hint)]
            recorded_s += count * found.record.mean_s
            expected_s += count * channels_last_s(matmul, device)
    return recorded_s, expected_s


def compile_module(
    mod: IRModule, target: Target, hub: Hub, params: Params | None = None, specialize: Sizes | None = None
) -> Executable:
    """Compile ``mod`` with the records of ``hub``; the executable is what ``tvm.compile`` returns.

    ``params`` (name → array) are bound into ``main`` first: bound weights are packed once, at compile time.
    ``specialize``: sizes by open dimension for which ``main`` has functions of their own
    (:mod:`tunehub.graph.shapes.specialize`); raises SettingError for those that do not fit ``mod``.
    A failure after the pipeline (code generation) leads to one more attempt with TVM's default pipeline.
    """
    import tvm

    mod = _bound(mod, params)
    _check_constants(mod, hub)
    with heeding():
        chosen = _specialized(mod, specialize, hub)
        try:
            with activate(hub):
                return tvm.compile(chosen, target, relax_pipeline=build_pipeline(target, hub))
        except Exception as error:
            hub.failed("generating code for the scheduled module", error)
            return tvm.compile(mod, target, relax_pipeline=_plain_pipeline(target))


def apply_records(
    mod: IRModule,
    target: Target,
    hub: Hub,
    verifier: ScheduleVerifier | None = None,
    known: Mapping[str, Scheduling] | None = None,
) -> IRModule:
    """Return ``mod`` with every PrimFunc scheduled for which there is a record or a template that applies; ``known``:
    those that are scheduled already, by name.

    A function without either stays as it is, and the report says which rung serves it. Raises ScheduleRefusedError in
    strict mode for a schedule that ``verifier`` refuses; None verifies nothing.
    """
    records = ModuleRecords(mod, target, hub, verifier or TrustingVerifier(), known or {})
    records.verified.settle()
    records.report()
    return records.module()


def _scheduled_and_finished(
    mod: IRModule, target: Target, hub: Hub, verifier: ScheduleVerifier, known: Mapping[str, Scheduling]
) -> IRModule:
    """``mod`` after :func:`apply_records` and :func:`finish`, which goes on while schedules are verified. Where one is
    refused it was in vain, and so was an error that it raised."""
    hub.step("schedule")
    records = ModuleRecords(mod, target, hub, verifier, known, _patch.kernels.begin)
    hub.step("lower")
    finished = _finished(records, target)
    if records.verified.settle():
        finished = _finished(records, target)
    if isinstance(finished, Exception):
        raise finished  # nothing of this module serves, and the report does not say so
    records.report()
    return finished


def _finished(records: ModuleRecords, target: Target) -> IRModule | Exception:
    """The module with what serves now after :func:`finish`, or the error that this raised."""
    records.replaced.clear()
    try:
        return finish(records.module(), target, records.replaced)
    except Exception as error:  # of a schedule that will be refused, maybe
        return error


def _verifying(hub: Hub, target: Target, *, explaining: bool = False) -> AbstractContextManager[ScheduleVerifier]:
    """What verifies the schedules of a module, as a context."""
    if hub.verification is None:
        return nullcontext(TrustingVerifier())
    return hub.verification.verifying(target, explaining=explaining)


_patch = DefaultPipelinePatch(build_pipeline)
activate, install, uninstall = _patch.activate, _patch.install, _patch.uninstall


def _plain_pipeline(target: Target) -> Pass:
    """What ``tvm.compile`` would run without the hub (``relax/vm_build.py``)."""
    import tvm

    from tunehub.graph.boolean_sums import boolean_sums_as_integers
    from tunehub.graph.gathers import quiet_gathers

    default, by_target = _patch.originals()
    mends = [boolean_sums_as_integers, quiet_gathers]
    return tvm.transform.Sequential([*mends, by_target(target) if "gpu" in target.keys else default()])


def _bound(mod: IRModule, params: Params | None) -> IRModule:
    from tvm import relax

    if not params:
        return mod
    return relax.transform.BindParams("main", {name: _tensor(value) for name, value in params.items()})(mod)


def _tensor(value: Array | DeviceTensor) -> DeviceTensor:
    import tvm

    return value if hasattr(value, "numpy") else tvm.runtime.tensor(value)
