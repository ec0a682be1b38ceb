"""What a record computes here is compared with TVM's default in all its numbers, not in those that are stated."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

np = pytest.importorskip("numpy")
tvm = pytest.importorskip("tvm")

from tvm import te  # noqa: E402

from tunehub.compiler.verify.inputs import apart  # noqa: E402
from tunehub.tir.keys import workload_key  # noqa: E402
from tunehub.tir.nodes import main_module  # noqa: E402
from tunehub_builder.review.running import RunChecks, _RecordCheck  # noqa: E402
from tunehub_builder.submission.session import ComputedOutputs, SubmissionSession, samples_apart  # noqa: E402
from tunehub_registry.submission import OutputDigest  # noqa: E402

pytestmark = pytest.mark.fast

SIZE = 1000
OWN, HOST = {"kind": "llvm", "mcpu": "own"}, {"kind": "llvm"}


class Session(SubmissionSession):
    """Runs nothing: records give what they are told to."""

    given: Sequence[Any] = ()

    def _compiled(self, module: Any, target: Any) -> Any:
        return target

    def _scheduled(self, exact: str, target: Any, line: bytes) -> Any:
        return self._modules[exact]

    def _run_on(self, library: Any, arrays: list[Any], shapes: Any, target: Any) -> Any:
        right = next(array for array in arrays if array is not None) * 2
        return [self.given if library == OWN else right]


@pytest.fixture
def session() -> tuple[Session, str]:
    data = te.placeholder((SIZE,), name="data")
    mod = main_module(te.create_prim_func([data, te.compute((SIZE,), lambda i: data[i] * 2.0)]))
    made = Session()
    key = workload_key(mod)
    made._modules[key] = mod
    return made, key


def outputs_of(session: Session, key: str, wrong: int | None) -> tuple[ComputedOutputs, ComputedOutputs]:
    """Of a record, a number of whose output is wrong, and of TVM's default."""
    session.given = session.outputs(key, HOST, None) and session._before[1][0].copy()  # type: ignore[index]
    if wrong is not None:
        session.given[wrong] += 100  # type: ignore[index]
    record = session.outputs(key, OWN, b"{}", (), "signed")
    return record, session.outputs(key, HOST, None, (), "signed")


def test_one_wrong_number_between_those_that_are_stated_is_seen(session: tuple[Session, str]) -> None:
    record, default = outputs_of(*session, wrong=1)
    assert samples_apart(record.outputs[0], default.outputs[0]) == 0
    assert default.apart is not None and default.apart > 1


def test_right_outputs_are_not_apart_and_other_runs_are_not_compared(session: tuple[Session, str]) -> None:
    made, key = session
    _, default = outputs_of(made, key, wrong=None)
    assert default.apart == 0
    assert made.outputs(key, HOST, None, (), "positive").apart is None


@pytest.mark.parametrize(("wrong", "refused"), [(None, 0), (1, 1)])
def test_a_review_refuses_it(session: tuple[Session, str], wrong: int | None, refused: int) -> None:
    made, key = session
    record, default = outputs_of(made, key, wrong)
    # The submitter states what the record gives.
    stated = OutputDigest(exact=key, candidate="f" * 16, kind="signed", inputs=record.inputs, outputs=record.outputs)
    contents: Any = SimpleNamespace(outputs={(key, ()): stated})
    found = RunChecks(workloads=[], replay=[], roofline=[], outputs=[])
    check = _RecordCheck(contents, SimpleNamespace(exact=key), SimpleNamespace(alive=True, start=None), found)  # type: ignore[arg-type]
    answers = iter([record, default])
    check._computed = lambda *_: next(answers)  # type: ignore[method-assign]
    reasons = []
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tunehub_builder.review.running.record_line", lambda _: b"{}")
            check._check_outputs(made.facts(key), OWN, ())
    except Exception as error:
        reasons.append(str(error))
    assert len(reasons) == refused and all("all numbers compared" in reason for reason in reasons)
    assert found.whole == 1


def test_equal_infinities_do_not_differ_and_others_do() -> None:
    infinite, finite = np.array([1.0, np.inf], "float32"), np.array([1.0, 2.0], "float32")
    assert apart([infinite], [infinite]) == 0
    assert apart([infinite], [finite]) == apart([finite], [infinite]) == apart([infinite], [-infinite]) == float("inf")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_sum_at_the_end_of_a_types_range_may_round_to_infinity(dtype: str) -> None:
    """One output of 8,192 of Phi-3-mini's SiLU(gate) * up in 4 bits did, and its kernel was refused for it."""
    import ml_dtypes

    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    largest = float(ml_dtypes.finfo(kind).max)
    infinite, near = (np.array([1.0, last * largest], kind) for last in (-np.inf, -0.99))
    assert 0 < apart([infinite], [near]) < 0.02 and 0 < apart([near], [infinite]) < 0.02
    assert apart([infinite], [-near]) == apart([infinite], [near / 4]) == float("inf")
