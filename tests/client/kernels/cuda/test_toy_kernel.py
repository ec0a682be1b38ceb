"""A kernel that is added as CONTRIBUTING.md says: it wins and loses by its seconds, serves a compile, and records name
it. No GPU."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import relax, te, topi

import tunehub
from tunehub.compiler.current import version_of
from tunehub.compiler.schedule.ladder import schedule_function
from tunehub.kernels.cpu import KnobError
from tunehub.kernels.cuda import rules, templates
from tunehub.kernels.cuda.knobs import TileChoice, by_knobs, knob_space
from tunehub.records.lookup import EmptyLookup
from tunehub.tir.keys import workload_key
from tunehub.tir.nodes import main_module, tensor_class
from tunehub_registry.template_record import TemplateRecord

from ...compiler.conftest import FakeHub
from ...compiler.outputs import difference, one_after_the_other
from . import toy_kernel
from .scheduled import H200, ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line of the registry, and that of an index of records."""
    monkeypatch.setattr(rules, "RULES", (*rules.RULES, toy_kernel))
    monkeypatch.setitem(templates.VERSIONS, toy_kernel.NAME, toy_kernel.VERSION)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(toy_kernel.TIMES, toy_kernel.NAME, 1e-6)


def _product(rows: int = 48, columns: int = 96, depth: int = 64) -> Any:
    x, w = te.placeholder((rows, depth), name="x"), te.placeholder((depth, columns), name="w")
    return tvm.IRModule({"main": te.create_prim_func([x, w, topi.matmul(x, w)], index_dtype_override="int64")})


def _served(mod: Any, lookup: Any = None) -> Any:
    return schedule_function(mod["main"], H200, lookup or EmptyLookup())[0]


def _has_blocks_of_128(schedule: Any) -> bool:
    return re.search(r"thread_binding\(.*128.*threadIdx", schedule.mod["main"].script()) is not None


def test_it_serves_where_it_should_take_least_and_not_where_another_one_should(
    monkeypatch: pytest.MonkeyPatch, fast: None
) -> None:
    outcome = _served(_product())
    assert outcome.served is not None and outcome.served.template == toy_kernel.NAME
    assert outcome.served.predicted_s is not None and 0 < outcome.served.predicted_s < 1e-9
    assert difference(one_after_the_other(outcome.schedule.mod), _product()) < 1e-5
    monkeypatch.setitem(toy_kernel.TIMES, toy_kernel.NAME, 1e6)
    other = _served(_product())
    assert other.served is None or other.served.template != toy_kernel.NAME


def test_its_next_tile_serves_where_the_first_cannot_be_built(monkeypatch: pytest.MonkeyPatch, fast: None) -> None:
    build = toy_kernel.build

    def refused(workload: Any, tile: Any) -> Any:
        if tile.threads == 256:
            raise ValueError("too many threads")
        return build(workload, tile)

    monkeypatch.setattr(toy_kernel, "build", refused)
    assert _has_blocks_of_128(_served(_product()).schedule)


@pytest.mark.parametrize("step", ["match", "candidates", "build"])
def test_an_error_inside_of_it_is_a_rejection_with_its_reason_and_others_serve(
    step: str, monkeypatch: pytest.MonkeyPatch, fast: None
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError(f"a fault in {step}")

    without = _served(_product(128, 768, 768))
    monkeypatch.setattr(toy_kernel, step, broken)
    monkeypatch.setattr(rules, "RULES", (toy_kernel, *rules.RULES[:-1]))
    outcome = _served(_product(128, 768, 768))
    assert f"a fault in {step}" in [each.reason for each in outcome.rejected if each.template == toy_kernel.NAME]
    assert outcome.served is not None and without.served is not None
    assert outcome.served.template != toy_kernel.NAME


def test_a_compile_is_served_by_it(fast: None) -> None:
    x, w = (relax.Var(name, tensor_class()(shape, "float32")) for name, shape in (("x", (48, 64)), ("w", (64, 96))))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(relax.op.matmul(x, w)))
        builder.emit_func_output(result)
    with tunehub.context(H200, registry=[str(ROOT)], verify="never") as hub:
        pass
    with H200:
        tunehub.pipeline(H200, hub=hub)(builder.get())
    assert [(each.rung, each.template) for each in hub.report().workloads] == [("template", toy_kernel.NAME)]


def test_a_record_names_one_of_its_tiles() -> None:
    """Whose promise is bad: what a record says counts."""
    mod = main_module(_product()["main"])
    choice = next(each for each in reversed(knob_space(mod, H200)) if each.template == toy_kernel.NAME)
    assert choice == TileChoice(template="toy", version=1, knobs={"threads": 128})
    record = TemplateRecord(
        exact=workload_key(mod), op="product", run_s=(1e-6,), default_s=1e-3, source="test", template=choice.template,
        version=choice.version, knobs=dict(choice.knobs),
    )  # fmt: skip
    assert record.version == version_of(record.template)
    outcome = _served(mod, FakeHub([record]))
    assert outcome.rung == "exact" and outcome.served is not None and outcome.served.template == toy_kernel.NAME
    assert _has_blocks_of_128(outcome.schedule)


@pytest.mark.parametrize("knobs", [{"threads": 48}, {"threads": 1 << 20}, {"threads": "all"}, {"warps": 4}, {}])
def test_a_record_is_held_to_its_bounds(knobs: dict[str, Any]) -> None:
    with pytest.raises(KnobError):
        by_knobs(_product(), H200, TileChoice(template="toy", version=1, knobs=knobs))
