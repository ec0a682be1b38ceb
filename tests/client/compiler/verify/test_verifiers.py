"""What every verifier keeps to, and what those that run schedules say of wrong ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import tvm
from tvm import relax, te, tirx

from tunehub.compiler.verify import session as verify_session
from tunehub.compiler.verify import workers as workers_module
from tunehub.compiler.verify.inputs import Drawn
from tunehub.compiler.verify.limits import VerifyLimits
from tunehub.compiler.verify.network import NetworkVerifySession
from tunehub.compiler.verify.port import KernelVerdict, ScheduledFunction, ScheduleVerifier
from tunehub.compiler.verify.session import VerifySession, lacks_memory
from tunehub.compiler.verify.static import StaticVerifier
from tunehub.tir.branches import SizeBranch, joined, size_of
from tunehub.tir.cuda.fault import Fault
from tunehub.tir.nodes import tensor_class
from tunehub.tir.symbols import PROBES
from tunehub.tir.workload import workload_text

from .conftest import KINDS, asked, fault_of_spoilt, matmul, spoilt

pytestmark = pytest.mark.slow

Make = Callable[[str], ScheduleVerifier]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.few(2)
def test_a_right_schedule_passes_and_a_wrong_one_does_only_where_nothing_is_verified(
    kind: str, verifier_of: Make
) -> None:
    verifier = verifier_of(kind)
    verifier.begin()
    right, wrong = asked("right"), asked("wrong")
    verifier.submit(wrong)
    verifier.submit(right)
    assert verifier.verdict(right).refusal is None
    found = verifier.verdict(wrong)
    assert (found.refusal is None) == (kind == "trusting")
    assert verifier.verdict(wrong) == found
    verifier.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_verifier_may_be_closed_at_any_time(kind: str, verifier_of: Make) -> None:
    verifier_of(kind).close()
    begun = verifier_of(kind)
    begun.begin()
    begun.submit(asked("right"))
    begun.close()
    begun.close()


def test_a_schedule_has_one_key_and_another_one_another() -> None:
    assert asked("right").key == asked("right").key
    assert len({asked(name).key for name in ("right", "wrong", "hangs", "crashes")}) == 4


def test_what_is_wrong_is_said_in_fields_and_the_next_schedule_is_judged_by_a_new_process(workers: Any) -> None:
    verifier = workers(VerifyLimits(run_s=6.0))
    found = {name: verifier.verdict(asked(name)) for name in ("wrong", "writes nothing", "hangs", "crashes")}
    assert {verdict.check for verdict in found.values()} == {"run"}
    refusals = {name: verdict.refusal for name, verdict in found.items()}
    assert refusals["wrong"].difference > refusals["wrong"].tolerance == 1e-4
    assert (refusals["writes nothing"].difference, refusals["writes nothing"].reason) == (None, None)
    assert refusals["hangs"].reason == "running it took longer than its limit"
    assert "crashed its process" in refusals["crashes"].reason
    assert verifier.verdict(asked("right")) == KernelVerdict(check="run")


def test_a_schedule_that_cannot_be_built_is_refused_with_the_reason(workers: Any) -> None:
    refusal = workers().verdict(asked("does not build")).refusal
    assert refusal is not None and refusal.check == "run"
    assert "no_such_function_anywhere" in refusal.reason or "crashed its process" in refusal.reason


def test_without_processes_the_static_check_has_the_word(
    workers: Any, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    verifier = workers(otherwise=StaticVerifier(target, fault_of_spoilt, "unused"))
    right, wrong = (verifier.verdict(asked(name)) for name in ("right", "wrong"))
    assert right.refusal is None and right.check == "static"
    assert "cannot start" in right.not_run
    assert "its sums start at 1" in wrong.refusal.reason


@pytest.mark.parametrize("fault", [None, "race: shared memory"])
def test_the_static_check_that_a_compile_leaves_to_a_process_comes_before_the_run(
    fault: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, ran = workers_module._VerifyWorker(lambda: None, VerifyLimits(), None), KernelVerdict(check="run")
    monkeypatch.setattr(worker, "_must", lambda request, _limit_s: fault if request[0] == "fault" else None)
    monkeypatch.setattr(worker, "_run", lambda *_: ran)
    assert worker.judge("original", "scheduled", "main") == ran
    found = worker.judge("original", "scheduled", "main", unchecked=True)
    assert found == ran if fault is None else (found.refusal is not None and found.refusal.reason == fault)


def test_what_a_function_writes_must_be_known_to_run_it(workers: Any) -> None:
    unknown = asked("hangs")
    found = workers().verdict(type(unknown)(exact="0", original=unknown.scheduled, scheduled=unknown.scheduled))
    assert found == KernelVerdict(check="static", not_run="what it writes is not known")


@pytest.mark.parametrize(
    ("error", "lacks"),
    [
        ("CUDA: out of memory", True),
        ("CUDAError: cudaErrorMemoryAllocation", True),
        ("std::bad_alloc", True),
        ("CUDA_ERROR_ILLEGAL_ADDRESS", False),
    ],
)
def test_a_lack_of_memory_says_nothing_about_a_schedule(error: str, lacks: bool) -> None:
    assert lacks_memory(error) == lacks


def open_rows(most: int | None = None) -> Any:
    """Rows of any number times a matrix; right up to ``most`` rows, zero after that."""
    rows = tirx.Var("n", "int64")
    a, b = te.placeholder((rows, 8), name="a"), te.placeholder((8, 8), name="b")
    k = te.reduce_axis((0, 8), name="k")

    def product(i: Any, j: Any) -> Any:
        value = a[i, k] * b[k, j]
        return te.sum(value if most is None else tirx.if_then_else(i < most, value, 0.0), axis=k)

    return te.create_prim_func([a, b, te.compute((rows, 8), product, name="c")])


def product(extent: int) -> Any:
    """A product of two square matrices."""
    return te.create_prim_func(matmul(extent))


@pytest.mark.parametrize("size", [8, 320])  # few steps: the loops as they are written; many: those of the template
def test_a_static_schedule_is_compared_with_what_needs_no_record(target: Any, size: int) -> None:
    session = VerifySession(str(target))
    session.refer(workload_text(product(size)))
    for scheduled, right in ((product(size), True), (spoilt(product(size)), False)):
        found = session.judge(workload_text(scheduled))
        assert found.error is None and found.difference is not None
        assert (found.difference <= found.tolerance) == right


def test_a_schedule_with_other_parameters_is_refused_before_it_runs(target: Any) -> None:
    session = VerifySession(str(target))
    session.refer(workload_text(product(8)))
    assert session.judge(workload_text(product(16))).error == "its parameters are not those of the function"


@pytest.mark.parametrize(("most", "right"), [(None, True), (64, False), (2, False), (128, True)])
def test_a_schedule_for_any_number_of_rows_is_run_with_several(target: Any, most: int | None, right: bool) -> None:
    session = VerifySession(str(target))
    session.refer(workload_text(open_rows()))
    found = session.judge(workload_text(open_rows(most)))
    assert found.error is None and found.difference is not None
    assert (found.difference <= found.tolerance) == right


def test_a_schedule_is_run_at_the_sizes_that_it_names_too(target: Any) -> None:
    session = VerifySession(str(target))
    session.refer(workload_text(open_rows()))
    found = session.judge(workload_text(open_rows(128).with_attr(PROBES, [[200]])))
    assert found.error is None and found.difference is not None and found.difference > found.tolerance


def test_sizes_at_which_the_plain_schedule_cannot_run_are_named(target: Any) -> None:
    session, own, other = VerifySession(str(target)), open_rows(), tvm.s_tir.renew_defs(open_rows())
    branches = [SizeBranch(up_to=10**13 - 1, function=own), SizeBranch(up_to=None, function=other)]
    huge = joined(own, size_of(own), branches)
    session.refer(workload_text(open_rows()))
    found = session.judge(workload_text(huge))
    assert found.error is None and found.difference == 0.0
    assert found.not_run is not None and "= 10000000000000: " in found.not_run
    assert session.judge(workload_text(open_rows())).not_run is None


def test_sizes_that_would_take_too_long_are_named_and_not_run(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of products of language models, one branch is for more rows than places of 32 bits reach: gigabytes."""
    monkeypatch.setattr(verify_session, "MOST_RUN", 1000)
    session = VerifySession(str(target))
    session.refer(workload_text(open_rows()))
    monkeypatch.setattr(session, "_try", lambda *_: pytest.fail("it was run"))
    found = session.judge(workload_text(open_rows(128).with_attr(PROBES, [[200]])))
    assert found.error is None and found.difference == 0.0
    assert found.not_run == "n = 200: more than 1000 elements"


def test_what_is_too_large_to_be_run_serves_only_if_the_static_check_finds_nothing(workers: Any, target: Any) -> None:
    own, other = open_rows(), tvm.s_tir.renew_defs(open_rows())
    branches = [SizeBranch(up_to=10**12 - 1, function=own), SizeBranch(up_to=None, function=other)]
    rows = joined(own, size_of(own), branches)
    named = ScheduledFunction(exact="rows", original=open_rows(), scheduled=rows)
    right = workers().verdict(named)
    assert right.check == "run" and right.not_run is not None and "n = 1000000000000: " in right.not_run
    wrong = StaticVerifier(target, lambda *_: Fault("unproven", "c"), "unused")
    refusal = workers(otherwise=wrong).verdict(named).refusal
    assert refusal is not None and refusal.check == "static"


def test_the_text_of_what_is_asked_for_next_is_checked_while_a_schedule_is_run(workers: Any, target: Any) -> None:
    """Five checks of a second each followed the runs of a language model's products, which had ended long before."""
    own, texts = open_rows(), []
    asked = []
    for last in (10**12 - 1, 10**13 - 1):
        branches = [SizeBranch(up_to=last, function=own), SizeBranch(up_to=None, function=tvm.s_tir.renew_defs(own))]
        asked.append(ScheduledFunction(exact="rows", original=own, scheduled=joined(own, size_of(own), branches)))
    verifier = workers(otherwise=StaticVerifier(target, lambda function, _: texts.append(function), "unused"))
    for each in asked:
        verifier.submit(each)
    assert verifier.verdict(asked[0]).check == "run" and len(texts) == 2
    assert verifier.verdict(asked[1]).check == "run" and len(texts) == 2


def test_weights_are_drawn_once_for_all_sizes(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, ...]] = []
    draw = Drawn.array
    monkeypatch.setattr(Drawn, "array", lambda self: (drawn.append(self.shape), draw(self))[1])
    session = VerifySession(str(target))
    session.refer(workload_text(open_rows()))
    sizes = len(drawn) - 1
    assert session.judge(workload_text(open_rows(150).with_attr(PROBES, [[140]]))).difference == 0.0
    assert drawn.count((8, 8)) == 1 and sizes > 1 and len(drawn) == sizes + 2
    session.refer(workload_text(open_rows()))
    assert drawn.count((8, 8)) == 2


def test_a_whole_network_with_open_dimensions_is_compared_at_several_sizes(nets: Any, target: Any) -> None:
    rows = tirx.Var("n", "int64")
    weight = nets.const(8, 8)
    mod = nets.build(lambda b, x: b.emit(relax.op.matmul(x, weight)), (rows, 8))
    other = nets.build(lambda b, x: b.emit(relax.op.matmul(x, nets.const(8, 8))), (rows, 8))
    with target:
        right, wrong = (relax.get_pipeline("default")(each) for each in (mod, other))
    session = NetworkVerifySession(str(target))
    session.refer(str(tvm.ir.save_json(mod)))
    differences = [session.compare(str(tvm.ir.save_json(each))) for each in (right, wrong)]
    assert differences[0].difference <= differences[0].tolerance < differences[1].difference
    assert len(session._cases) >= 4


def test_why_a_network_refuses_every_size_is_said(nets: Any, target: Any) -> None:
    seven = tensor_class()((7, 8), "float32")
    mod = nets.build(lambda b, x: b.emit(relax.op.exp(b.match_cast(x, seven))), (tirx.Var("n", "int64"), 8))
    with pytest.raises(Exception, match=r"(?i)match"):
        NetworkVerifySession(str(target)).refer(str(tvm.ir.save_json(mod)))


class _NoFork:
    """A launcher without processes: they cannot be started, or end at once."""

    def __init__(self, *_: Any, starts: bool, **__: Any) -> None:
        self._starts = starts

    def launch(self, child: Any) -> _NoFork:
        if not self._starts:
            raise OSError("no forks today")
        child.close()
        return self

    def end(self, *, at_once: bool) -> int:
        return 1

    def stop(self) -> None:
        """There is nothing to stop."""


@pytest.mark.parametrize("starts", [False, True])
def test_where_no_process_can_be_forked_a_new_interpreter_verifies(
    workers: Any, monkeypatch: pytest.MonkeyPatch, starts: bool
) -> None:
    monkeypatch.setattr(workers_module, "ForkServer", partial(_NoFork, starts=starts))
    verifier = workers()
    verifier.begin()
    assert verifier.verdict(asked("right")) == KernelVerdict(check="run")
