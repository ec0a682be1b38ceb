"""Where the hub meets current TVM (0.25 and newer): the compile pipeline with records between fusion and lowering.

Nothing here reads packages: records come from a :class:`tunehub.records.lookup.RecordLookup`, and every outcome goes to
the hub's report. The order of passes is TVM's own (``relax/backend/*/pipeline.py``) with the hub's steps in between.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from tunehub.cuda.headers import missing_for_tensor_cores
from tunehub.exceptions import CompileStepError
from tunehub.interrupts import heeding, raise_if_asked
from tunehub.records.ladder import StepRejected
from tunehub.records.never_worse import GUESS_MARGIN
from tunehub.relax.element_types import product_types
from tunehub.relax.known_mistakes import wrong_operators
from tunehub.relax.lowering import IS_SCHEDULED, is_scheduled
from tunehub.relax.nodes import buffer_kind, calls_in, operator_of, parameters, plain_extent, same_extent, tensor_type
from tunehub.relax.patch import DefaultPipelinePatch
from tunehub.relax.schedule.ladder import Scheduled, Scheduling
from tunehub.relax.schedule.template_fit import machine_for, published_rates
from tunehub.relax.schedule.verified import VerifiedFunctions, VerifiedScheduling
from tunehub.relax.symbols import symbol_name, symbols_of
from tunehub.report.model import WorkloadReport
from tunehub.report.text import passed_over, rejection_text
from tunehub.verify.port import ScheduleVerifier, TrustingVerifier

if TYPE_CHECKING:
    from tunehub.hub import Hub
    from tunehub.options import Layout, Precision, Sizes
    from tunehub.relax.layout.narrowing import Narrowing

_DEFAULT_SCHEDULE = "ApplyDefaultSchedule"
_NARROW = ("bf16", "auto")  # precisions that may round operands to bfloat16
_BACKENDS = {"llvm": "cpu_generic", "cuda": "cuda", "rocm": "rocm"}


def prepare(
    mod: Any,
    target: Any,
    *,
    layout: Layout = "keep",
    turned: bool = False,
    precision: Precision = "float32",
    winograd: bool = False,
    note: Callable[[str], None] | None = None,
) -> Any:
    """Return ``mod`` simplified, legalised and fused as :func:`build_pipeline` does it: what remains are workloads.

    The builder tunes the functions of this module, so that a package and a compile agree on what a workload is. On CPUs
    constant arguments are marked as free to change their layout (weights are packed at compile time), and
    ``layout="auto"`` chooses the layouts of operators (:mod:`tunehub.relax.layout.planning`), packs the weights of
    matmuls and writes exp, erf and the like as polynomials (:mod:`tunehub.relax.fast_math`); modules for
    targets that are no CPUs keep theirs. With it, quantised models compute in integers where the CPU has instructions
    for that (:mod:`tunehub.relax.quantised.integers`), and ``note`` is told how much of them. ``turned``: channels are
    last (:mod:`tunehub.cuda.channels_last`).
    ``precision``: ``tf32`` gives products in float32 weights that tensor cores can read; ``bf16`` rounds operands of
    products and convolutions on CPUs that multiply these faster, but of those that :mod:`tunehub.relax.winograd` makes
    faster (``winograd``) not; ``auto`` does so where that is known.
    """
    import tvm
    from tvm import relax

    from tunehub.relax.bounds import within_bounds
    from tunehub.relax.effects import keep_effects, plain_casts
    from tunehub.relax.reshapes import reshapes_are_views

    simplify = _simplifying_passes(mod)
    planning = [_layout_pass(target, precision=precision, winograd=winograd)] if layout == "auto" and simplify else []
    passes = [
        within_bounds,
        keep_effects,
        *(_quantised_passes(target, note) if planning else []),
        *simplify,
        *_attention_passes(target),
        *_turning_passes(turned=turned),
        *_accuracy_passes(target, precision),
        *planning,
        *relax.pipeline.library_dispatch_passes(target),
        *_legalizing_passes(target),
        plain_casts,
        reshapes_are_views,
    ]
    if target.kind.name == "llvm":
        passes.append(relax.transform.AttachAttrLayoutFreeBuffers())
    with target:
        return tvm.transform.Sequential(passes)(mod)


def build_pipeline(target: Any, hub: Hub, specialize: Sizes | None = None) -> Any:
    """Return the module pass that compiles for ``target`` with the records of ``hub``; ``specialize``: see
    :mod:`tunehub.relax.specialize`. The pass raises SettingError for sizes that do not fit a module.

    When a step of the hub fails, the module goes through TVM's default pipeline and the hub warns
    (``strict``: the hub raises).
    """
    import tvm

    @tvm.transform.module_pass(opt_level=0, name="tunehub.pipeline")  # type: ignore[untyped-decorator]
    def tunehub_pipeline(mod: Any, _context: Any) -> Any:
        original = _named_for(target, mod)
        mod = _specialized(original, specialize, hub)
        if not _may_serve(mod, target, hub):
            return _plain_pipeline(target)(mod)
        try:
            with heeding(), published_rates(hub.published_profile), _verifying(hub, target) as verifier:
                hub.step("graph")
                known: dict[str, Scheduling] = {}
                prepared = _prepare_for(hub, mod, target, known)
                _measure(prepared, target, hub, known)
                finished = _scheduled_and_finished(prepared, target, hub, verifier, known)
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


def _measure(mod: Any, target: Any, hub: Hub, known: dict[str, Scheduling]) -> None:
    """Measure the functions of ``mod``, a prepared module, that have no record, if the hub is asked to. Those in
    ``known`` are to be scheduled again then."""
    if hub.measuring is not None:
        known.clear()
        from tunehub.measure.missing import measure_missing

        workloads = ((str(variable.name_hint), function) for variable, function in _workloads(mod))
        measure_missing(workloads, target, hub, hub.measuring)


def explain_module(
    mod: Any, target: Any, hub: Hub, params: dict[str, Any] | None = None, specialize: Sizes | None = None
) -> None:
    """Put into the report of ``hub`` what :func:`compile_module` would do with ``mod``. No code is generated. Raises as
    that."""
    bound = _specialized(_named_for(target, _bound(mod, params)), specialize, hub)
    if not _may_serve(bound, target, hub):
        return
    try:
        with heeding(), published_rates(hub.published_profile), _verifying(hub, target, explaining=True) as verifier:
            known: dict[str, Scheduling] = {}
            apply_records(_prepare_for(hub, bound, target, known), target, hub, verifier, known)
        hub.leaves_wrong(wrong_operators(calls_in(bound), target))
    except Exception as error:
        hub.failed("explaining the module", error)


def prepared_for(mod: Any, target: Any, hub: Hub) -> Any:
    """``mod`` as a compile with ``hub`` has it before it is scheduled, see :func:`prepare`."""
    hub.step("graph")
    with heeding(), published_rates(hub.published_profile):
        return _prepare_for(hub, _named_for(target, mod), target)


def schedulings(prepared: Any, target: Any, hub: Hub) -> dict[str, Scheduling]:
    """What serves each function of ``prepared``, by name, verified as in a compile; the report of ``hub`` says so."""
    hub.step("schedule")
    with heeding(), published_rates(hub.published_profile), _verifying(hub, target) as verifier:
        records = _ModuleRecords(prepared, target, hub, verifier, {})
        records.verified.settle()
        records.report()
    return records.by_name()


def _specialized(mod: Any, sizes: Sizes | None, hub: Hub) -> Any:
    """``mod`` with functions for ``sizes``; as it is when they cannot be made. Raises SettingError for wrong ones."""
    if sizes is None:
        return mod
    from tunehub.relax.specialize import check_sizes, specialized

    check_sizes(mod, sizes)
    try:
        return specialized(mod, sizes)
    except Exception as error:
        hub.failed("making functions for chosen sizes", error)
        return mod


def _note_weights(finished: Any, hub: Hub) -> None:
    """Say what functions for chosen sizes hold beside what the one for all sizes holds."""
    from tunehub.relax.specialize import note_of_weights

    text = note_of_weights(finished)
    if text is not None:
        hub.note(text)


def _may_serve(mod: Any, target: Any, hub: Hub) -> bool:
    """Whether the hub can serve ``mod`` by its nature; if not, the hub says why."""
    from tunehub.relax.effects import hidden_effects

    if target.kind.name != hub.host.kind:  # TVM itself never compares the target of a record
        hub.fall_back(f"they are for {hub.host.kind}, the module is compiled for {target.kind.name}")
        return False
    hidden = hidden_effects(mod)
    if hidden is not None:
        hub.fall_back(f"{hidden}, which other functions call, calls packed functions for their side effects")
        return False
    return True


def _named_for(target: Any, mod: Any) -> Any:
    """``mod`` with names of inputs that code for ``target`` can have."""
    if target.kind.name == "llvm":
        return mod
    from tunehub.relax.names import with_identifiers

    return with_identifiers(mod)


def _prepare_for(hub: Hub, mod: Any, target: Any, known: dict[str, Scheduling] | None = None) -> Any:
    """The module in the layouts that the hub asks for; when they cannot be planned, in its own. GPUs have their own.
    What was scheduled to find out whether it can be is put into ``known``, by name."""
    if target.kind.name == "cuda":
        turned = _turned(prepare(mod, target, precision=hub.precision), mod, target, hub)
        return _with_winograd(turned, target, hub, {})
    if hub.layout == "auto":
        try:
            planned = prepare(mod, target, layout="auto", precision=hub.precision, winograd=hub.winograd, note=hub.note)
            return _with_winograd(planned, target, hub, {} if known is None else known)
        except Exception as error:
            hub.failed("planning layouts", error)
    return prepare(mod, target)


def _with_winograd(prepared: Any, target: Any, hub: Hub, known: dict[str, Scheduling]) -> Any:
    """``prepared`` with convolutions by Winograd's algorithm where the hub may and that should be faster."""
    if not hub.winograd or hub.precision == "tf32":
        return prepared
    try:
        if target.kind.name == "cuda":
            from tunehub.cuda.winograd import module as on_cuda  # CPUs need none of it

            return on_cuda.with_winograd(prepared, target, hub.lookup, hub.note)
        if target.kind.name == "llvm":
            from tunehub.relax.winograd.module import with_winograd

            written, schedulings = with_winograd(prepared, target, hub.lookup, hub.note)
            known.update(schedulings)
            return written
    except Exception as error:
        hub.failed("writing convolutions by Winograd's algorithm", error)
    return prepared


def _turned(prepared: Any, mod: Any, target: Any, hub: Hub) -> Any:
    """``mod`` with channels last where that serves it; ``prepared``, its own order, where records are for that and are
    not slower than turned convolutions should be, by the margin of every guess."""
    from tunehub.cuda.channels_last import turns

    if not turns(mod, target, hub.precision):
        return prepared
    recorded_s, turned_s = _recorded_and_turned(prepared, hub)
    if 0.0 < recorded_s < GUESS_MARGIN * turned_s:
        return prepared
    try:
        return prepare(mod, target, turned=True, precision=hub.precision)
    except Exception as error:
        hub.failed("turning images", error)
        return prepared


def _recorded_and_turned(prepared: Any, hub: Hub) -> tuple[float, float]:
    """What all convolutions of ``prepared`` that have exact records take by these, and should take with channels
    last."""
    from tunehub.cuda.hopper.rule import turned_s
    from tunehub.cuda.tensor_core import matmul_of
    from tunehub.relax.keys import workload_key
    from tunehub.relax.nodes import main_module

    counts, recorded_s, expected_s = call_counts(prepared), 0.0, 0.0
    for variable, function in _workloads(prepared):
        single = main_module(function)
        matmul = None if symbols_of(function) else matmul_of(single)
        if matmul is None or not (matmul.rows_first or matmul.window > 1):
            continue
        found = hub.lookup.by_exact(workload_key(single))
        if found is not None:
            count = counts[str(variable.name_hint)]
            recorded_s, expected_s = recorded_s + count * found.record.mean_s, expected_s + count * turned_s(matmul)
    return recorded_s, expected_s


def compile_module(
    mod: Any, target: Any, hub: Hub, params: dict[str, Any] | None = None, specialize: Sizes | None = None
) -> Any:
    """Compile ``mod`` with the records of ``hub``; the executable is what ``tvm.compile`` returns.

    ``params`` (name → array) are bound into ``main`` first: bound weights are packed once, at compile time.
    ``specialize``: sizes by open dimension for which ``main`` has functions of their own
    (:mod:`tunehub.relax.specialize`); raises SettingError for those that do not fit ``mod``.
    A failure after the pipeline (code generation) leads to one more attempt with TVM's default pipeline.
    """
    import tvm

    mod = _bound(mod, params)
    with heeding():
        chosen = _specialized(mod, specialize, hub)
        try:
            with activate(hub):
                return tvm.compile(chosen, target, relax_pipeline=build_pipeline(target, hub))
        except Exception as error:
            hub.failed("generating code for the scheduled module", error)
            return tvm.compile(mod, target, relax_pipeline=_plain_pipeline(target))


def apply_records(
    mod: Any,
    target: Any,
    hub: Hub,
    verifier: ScheduleVerifier | None = None,
    known: Mapping[str, Scheduling] | None = None,
) -> Any:
    """Return ``mod`` with every PrimFunc scheduled for which there is a record or a template that applies; ``known``:
    those that are scheduled already, by name.

    A function without either stays as it is, and the report says which rung serves it. Raises ScheduleRefusedError in
    strict mode for a schedule that ``verifier`` refuses; None verifies nothing.
    """
    records = _ModuleRecords(mod, target, hub, verifier or TrustingVerifier(), known or {})
    records.verified.settle()
    records.report()
    return records.module()


def _scheduled_and_finished(
    mod: Any, target: Any, hub: Hub, verifier: ScheduleVerifier, known: Mapping[str, Scheduling]
) -> Any:
    """``mod`` after :func:`apply_records` and :func:`_finish`, which goes on while schedules are verified. Where one is
    refused it was in vain, and so was an error that it raised."""
    hub.step("schedule")
    records = _ModuleRecords(mod, target, hub, verifier, known)
    hub.step("lower")
    finished = _finished(records, target)
    if records.verified.settle():
        finished = _finished(records, target)
    records.report()
    if isinstance(finished, Exception):
        raise finished
    return finished


def _finished(records: _ModuleRecords, target: Any) -> Any:
    """The module with what serves now after :func:`_finish`, or the error that this raised."""
    records.replaced.clear()
    try:
        return _finish(records.module(), target, records.replaced)
    except Exception as error:  # of a schedule that will be refused, maybe
        return error


class _ModuleRecords:
    """A prepared module whose functions are scheduled by the records of a hub, as far as verified. ``replaced``: the
    functions whose default schedule is not TVM's own, and why, by name."""

    def __init__(
        self, mod: Any, target: Any, hub: Hub, verifier: ScheduleVerifier, known: Mapping[str, Scheduling]
    ) -> None:
        self._mod, self._hub, self._target = mod, hub, target
        self._number = hub.begin_module()
        self._workloads = list(_workloads(mod))
        self.replaced: dict[str, StepRejected] = {}
        self._remaining: Literal["default", "dlight"] = "default" if target.kind.name == "llvm" else "dlight"
        wants = hub.verification.wants if hub.verification is not None else lambda _: False
        self.verified = VerifiedFunctions(self._schedulings(known), verifier, wants)

    def _schedulings(self, known: Mapping[str, Scheduling]) -> Iterator[Scheduling]:
        for variable, function in self._workloads:
            raise_if_asked()
            scheduled = known.get(str(variable.name_hint))
            if scheduled is not None:
                yield scheduled.under_name_of(function)
            else:
                yield Scheduling(function, self._target, self._hub.lookup, precision=self._hub.precision)

    def by_name(self) -> dict[str, Scheduling]:
        """What serves each function now."""
        pairs = zip(self._workloads, self.verified.items, strict=True)
        return {str(variable.name_hint): item.scheduling for (variable, _), item in pairs}

    def module(self) -> Any:
        """The module with what serves now."""
        import tvm

        updated = tvm.IRModule(dict(self._mod.functions.items()), attrs=self._mod.attrs)
        for (variable, _), item in zip(self._workloads, self.verified.items, strict=True):
            scheduled = item.scheduling.function
            if scheduled is not None:
                updated.update_func(variable, scheduled.with_attr(IS_SCHEDULED, True))
        return updated

    def report(self) -> None:
        """Tell the hub what serves, and what was refused."""
        calls = call_counts(self._mod)
        for (variable, function), item in zip(self._workloads, self.verified.items, strict=True):
            name = str(variable.name_hint)  # not TVM's str, which 0.25 frees twice when it is copied
            line = _report(item, name, self._remaining, self.replaced.get(name))
            report = replace(line, count=calls[name], module=self._number)
            self._hub.add(report, function)
            for rejected in report.refused:
                if rejected.refusal is not None and rejected.refusal.check == "run":  # the static check is as any guard
                    self._hub.refused(name, rejection_text(rejected))
        self._tell_of_missing_headers()
        self._tell_of_precision()
        self._tell_of_profile()

    def _tell_of_precision(self) -> None:
        """What a precision other than float32 did."""
        precision = self._hub.precision
        if precision in _NARROW:
            from tunehub.templates.pairs import is_paired

            count = sum(is_paired(function) for _, function in self._workloads)
            text = f"{count} functions multiply operands that are rounded to bfloat16"
            why = f"nothing is rounded: {self._why_not_paired()}"
            self._hub.note(f"precision={precision}: {text if count else why}")
        elif precision == "tf32":
            from tunehub.cuda.hopper.tf32 import NAME

            served = (item.scheduling.served for item in self.verified.items)
            count = sum(each is not None and each.template == NAME for each in served)
            self._hub.note(f"precision=tf32: {count} functions in float32 multiply operands that are rounded to TF32")

    def _tell_of_profile(self) -> None:
        """Whose measurements of this CPU the rules went by."""
        source = machine_for(self._target).profile if self._target.kind.name == "llvm" else None
        if source is not None:
            self._hub.note(f"where there is no record, rules go by {source}")

    def _why_not_paired(self) -> str:
        from tunehub.relax.layout.narrowing import doubt  # few ask for it

        if self._target.kind.name != "llvm":
            return "it is for CPUs"
        if self._hub.layout != "auto":
            return "layouts are kept"
        found = doubt(self._target, machine_for(self._target), asked=self._hub.precision == "bf16")
        return found or "no product or convolution has constant weights of a fitting shape"

    def _tell_of_missing_headers(self) -> None:
        """A module that would be several times as fast should not be left so without a word."""
        missing = missing_for_tensor_cores() if self._remaining == "dlight" else None
        if missing is None:
            return
        outcomes = [item.scheduling.outcome for item in self.verified.items]
        without = sum(any(str(missing).startswith(r.reason or "-") for r in found.rejected) for found in outcomes)
        if without:
            reason = f"{without} functions do without tensor cores: {missing.reason}"
            problem = CompileStepError(reason, remedy=missing.remedy, cause="CUDA's headers")
            self._hub.failed("scheduling for tensor cores", problem)


def _verifying(hub: Hub, target: Any, *, explaining: bool = False) -> Any:
    """What verifies the schedules of a module, as a context."""
    if hub.verification is None:
        return nullcontext(TrustingVerifier())
    return hub.verification.verifying(target, explaining=explaining)


def _report(item: VerifiedScheduling, name: str, remaining: str, replaced: StepRejected | None) -> WorkloadReport:
    """The report's line of a function; ``remaining`` is the rung of those that nothing of the hub schedules, and
    ``replaced`` why that is not the rung of this one."""
    outcome: Scheduled = item.scheduling.outcome
    served, rung = outcome.served, outcome.rung or ("plain" if replaced is not None else remaining)
    rejected = outcome.rejected if served is not None or replaced is None else (*outcome.rejected, replaced)
    report = WorkloadReport(
        name=name,
        op=name,
        rung=rung,
        exact=outcome.exact,
        anchor=outcome.anchor,
        default_s=outcome.default_s,
        skipped=tuple(map(rejection_text, rejected)),
        passed_over=passed_over(rung, outcome.anchor, rejected),
        verified=item.verdict.check,
        not_run=item.verdict.not_run,
        refused=tuple(each for each in rejected if each.refusal is not None),
        symbols=tuple(map(symbol_name, symbols_of(item.scheduling.original))),
        types=product_types(item.scheduling.original),
    )
    if served is None:
        return report
    return replace(
        report,
        package=served.package,
        run_s=served.run_s,
        template=served.template,
        source=served.source,
        predicted_s=served.predicted_s,
        sizes=served.sizes,
    )


def _workloads(mod: Any) -> Iterator[tuple[Any, Any]]:
    """The functions of ``mod`` to be scheduled, with their variables."""
    import tvm
    from tvm import relax

    for variable, function in mod.functions.items():
        if not isinstance(function, tvm.tirx.PrimFunc) or is_scheduled(function):
            continue
        if not (relax.analysis.has_reshape_pattern(function) and _keeps_all(function)):
            yield variable, function  # of the others TVM makes views, as long as nobody schedules them


def _keeps_all(function: Any) -> bool:
    """Whether the result of ``function`` has as many elements as its only input: a slice looks like a reshape, too."""
    shapes = [buffer_kind(buffer).shape for buffer in parameters(function)]
    first, *others = [math.prod(map(plain_extent, shape)) for shape in shapes]
    return all(same_extent(first, size) for size in others)


_patch = DefaultPipelinePatch(build_pipeline)
activate, install, uninstall = _patch.activate, _patch.install, _patch.uninstall


def _plain_pipeline(target: Any) -> Any:
    """What ``tvm.compile`` would run without the hub (``relax/vm_build.py``)."""
    default, by_target = _patch.originals()
    return by_target(target) if "gpu" in target.keys else default()


def _finish(mod: Any, target: Any, replaced: dict[str, StepRejected]) -> Any:
    """Pack constant weights, give the remaining functions their default schedule, and lower. Those whose default
    schedule is not TVM's own are put into ``replaced``, by name."""
    import tvm
    from tvm import relax

    if target.kind.name == "llvm":
        from tunehub.relax.buffer_layouts import with_defined_layouts
        from tunehub.relax.own_arguments import mark_own_arguments
        from tunehub.relax.packing import pack_weights

        mod = with_defined_layouts(_split_packing(mod))
        passes = [pack_weights, mark_own_arguments]
    else:
        from tunehub.cuda.default import checked

        passes = [p for p in relax.pipeline.legalize_passes(target) if _DEFAULT_SCHEDULE in str(p.info.name)]
        if target.kind.name == "cuda":
            passes = [checked(each, target, replaced.__setitem__) for each in passes]
    with target:
        return tvm.transform.Sequential([*passes, *_lowering_passes(target)])(mod)


def _split_packing(mod: Any) -> Any:
    """Split the packing of weights off the scheduled functions; the others are set aside meanwhile.

    TVM's SplitLayoutRewritePreproc visits every function, and fails for one without blocks of its own
    (``split_layout_rewrite_preproc.cc``), such as sorting, cumulative sums or scattering.
    """
    import tvm
    from tvm import relax

    aside = {
        variable: function
        for variable, function in mod.functions.items()
        if isinstance(function, tvm.tirx.PrimFunc) and not is_scheduled(function)
    }
    kept = {variable: function for variable, function in mod.functions.items() if variable not in aside}
    split = relax.transform.SplitLayoutRewritePreproc()(tvm.IRModule(kept, attrs=mod.attrs))
    return tvm.IRModule({**dict(split.functions.items()), **aside}, attrs=split.attrs)


def _lowering_passes(target: Any) -> list[Any]:
    from importlib import import_module

    from tvm import relax

    package = _BACKENDS.get(target.kind.name)
    # relax.pipeline.dataflow_lower_passes fails for these: their packages do not export it, only the module has it.
    pipeline = relax.pipeline if package is None else import_module(f"tvm.relax.backend.{package}.pipeline")
    return [*pipeline.dataflow_lower_passes(target), *pipeline.finalize_passes(target)]


def _simplifying_passes(mod: Any) -> list[Any]:
    """Batch norms in inference mode go into convolutions; one in training mode keeps the module as it is."""
    from tvm import relax

    from tunehub.relax.raising import raise_kernels
    from tunehub.relax.simplify import NARROW, simplify

    norms = [call for call in calls_in(mod) if operator_of(call) == "relax.nn.batch_norm"]
    if any(call.attrs.training for call in norms):
        return []
    narrow = any(str(tensor_type(call.args[0]).dtype) in NARROW for call in norms)
    return [
        relax.transform.CanonicalizeBindings(),
        *([] if narrow else [relax.transform.FoldBatchnormToConv2D()]),
        simplify,
        raise_kernels,
        relax.transform.DecomposeOpsForInference(),
        relax.transform.CanonicalizeBindings(),
    ]


def _quantised_passes(target: Any, note: Callable[[str], None] | None) -> list[Any]:
    """Models in QDQ form in integers, on CPUs."""
    import tvm
    from tvm import relax

    if target.kind.name != "llvm":
        return []
    from tunehub.relax.quantised.integers import in_integers
    from tunehub.templates.dot_product import dot_product_of

    @tvm.transform.module_pass(opt_level=0, name="tunehub.in_integers")  # type: ignore[untyped-decorator]
    def quantised(mod: Any, _context: Any) -> Any:
        return in_integers(mod, dot_product_of(target), note)

    return [relax.transform.CanonicalizeBindings(), quantised]


def _legalizing_passes(target: Any) -> list[Any]:
    """TVM's own; before it folds constants, those that need no code are."""
    from tvm import relax

    from tunehub.relax.constants import evaluate_constants

    found = []
    for each in relax.pipeline.legalize_passes(target):
        name = str(each.info.name)
        found += [evaluate_constants] if name == "FoldConstant" else []
        found += [] if _DEFAULT_SCHEDULE in name else [each]
    return found


def _turning_passes(*, turned: bool) -> list[Any]:
    """Images in the order that the GPU computes best, with what was turned twice taken out."""
    import tvm
    from tvm import relax

    if not turned:
        return []
    from tunehub.cuda.channels_last import channels_last

    @tvm.transform.module_pass(opt_level=0, name="tunehub.channels_last")  # type: ignore[untyped-decorator]
    def turn(mod: Any, _context: Any) -> Any:
        return channels_last(mod)

    return [turn, relax.transform.CanonicalizeBindings()]


def _accuracy_passes(target: Any, precision: Precision) -> list[Any]:
    """What keeps TVM's code for ``target`` from wrong results, and products as that target computes them best."""
    if target.kind.name != "cuda":
        return []
    from tunehub.cuda.accurate_math import accurate_math
    from tunehub.cuda.products import gpu_products, gpu_products_in_tf32
    from tunehub.cuda.wide_sums import wide_sums

    return [accurate_math, wide_sums, gpu_products_in_tf32 if precision == "tf32" else gpu_products]


def _attention_passes(target: Any) -> list[Any]:
    """Attention as one function each. Before images are turned: TVM's ConvertLayout fails on a ``squeeze`` whose axis
    counts from the end (0.27: ``std::bad_alloc``), as vision transformers have it in front of their heads."""
    if target.kind.name != "cuda":
        return []
    from tunehub.cuda.attention.joining import join_attention
    from tunehub.cuda.attention.rule import serves

    return [join_attention] if serves(target) else []


def _layout_pass(target: Any, *, precision: Precision, winograd: bool) -> Any:
    import tvm

    @tvm.transform.module_pass(opt_level=0, name="tunehub.plan_layouts")  # type: ignore[untyped-decorator]
    def planned(mod: Any, _context: Any) -> Any:
        from tunehub.relax.fast_math import fast_math
        from tunehub.relax.layout.planning import plan_layouts
        from tunehub.relax.quantised.rounding import quantise_in_vectors

        if target.kind.name != "llvm":
            return mod
        narrowing = _narrowing(target, precision, winograd=winograd)
        return quantise_in_vectors(fast_math(plan_layouts(mod, target, narrowing=narrowing)))

    return planned


def _narrowing(target: Any, precision: Precision, *, winograd: bool) -> Narrowing | None:
    """What has operands in bfloat16 on ``target``; None where that is not wanted or would not be faster."""
    if precision not in _NARROW:
        return None
    from tunehub.relax.layout.narrowing import Narrowing, doubt
    from tunehub.templates import amx

    machine = machine_for(target)
    if doubt(target, machine, asked=precision == "bf16"):
        return None
    return Narrowing(machine=machine, winograd=winograd, tiles=amx.doubt(target, "bfloat16") is None)


def call_counts(mod: Any) -> Counter[str]:
    """How often each PrimFunc is called by the graph."""
    counts: Counter[str] = Counter()
    for call in calls_in(mod):
        if operator_of(call).startswith("relax.call_tir"):
            counts[str(call.args[0].name_hint)] += 1
    return counts


def _bound(mod: Any, params: dict[str, Any] | None) -> Any:
    from tvm import relax

    if not params:
        return mod
    return relax.transform.BindParams("main", {name: _tensor(value) for name, value in params.items()})(mod)


def _tensor(value: Any) -> Any:
    import tvm

    return value if hasattr(value, "numpy") else tvm.runtime.tensor(value)
