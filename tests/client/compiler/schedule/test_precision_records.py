"""Records for workloads in bfloat16 and 8 bits: what serves, and hostile ones that ask for what is not there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import tvm
from tvm import relax

from tunehub.compiler.pipeline import compile_module
from tunehub.compiler.preparing import prepare
from tunehub.compiler.schedule.ladder import schedule_function
from tunehub.kernels.cpu import KnobError
from tunehub.kernels.template_fit import TemplateFit
from tunehub.records.lookup import EmptyLookup
from tunehub.report.text import rejection_text
from tunehub.tir.keys import anchor_key, workload_key
from tunehub.tir.nodes import main_module
from tunehub_registry.template_record import TemplateRecord

from ....cpu_features import AMX, AVX2, AVX512_BF16, cpu, here, needs_tvm
from ..conftest import Nets

pytestmark = [pytest.mark.slow, needs_tvm]
PAIRS, TILES, PLAIN = AVX512_BF16, AMX, AVX2


def product(nets: Nets) -> Any:
    """A product that every precision has kernels for."""
    return nets.build(lambda b, x: b.emit(relax.op.nn.relu(relax.op.matmul(x, nets.const(64, 32)))), (48, 64))


def quantised(nets: Nets) -> Any:
    """The same with operands of 8 bits."""
    weight = relax.const(np.random.default_rng(1).integers(-127, 128, (64, 32)).astype("int8"))
    scale, zero = relax.const(np.float32(0.02)), relax.const(np.uint8(0))

    def make(b: Any, x: Any) -> Any:
        narrow = b.emit(relax.op.quantize(x, scale, zero, out_dtype="uint8"))
        data = b.emit(relax.op.dequantize(narrow, scale, zero, out_dtype="float32"))
        wide = b.emit(relax.op.dequantize(weight, scale, relax.const(np.int8(0)), out_dtype="float32"))
        return b.emit(relax.op.nn.relu(b.emit(relax.op.matmul(data, wide))))

    return nets.build(make, (48, 64))


def heavy(mod: Any, target: Any, template: str, precision: Any = "bf16") -> Any:
    """The function of ``mod`` for ``target`` that ``template`` is for."""
    functions = prepare(mod, target, layout="auto", precision=precision).functions.values()
    alone = [main_module(each) for each in functions if isinstance(each, tvm.tirx.PrimFunc)]
    found = [(each, TemplateFit(each, target).match) for each in alone]
    (one,) = (each for each, match in found if match is not None and template == match.template.NAME)
    return one


def record_of(mod: Any, target: Any, **changes: Any) -> TemplateRecord:
    """What the default knobs would be as a record."""
    fit = TemplateFit(mod, target)
    assert fit.match is not None
    own = fit.match.template
    fields: dict[str, Any] = {
        "exact": workload_key(mod), "anchor": anchor_key(mod), "op": "product", "run_s": (1e-6,), "default_s": 1e-3,
        "template": own.NAME, "version": own.VERSION, "knobs": msgspec.to_builtins(fit.knob_space(fit.match)[-1]),
        "source": "template", **changes,
    }  # fmt: skip
    return TemplateRecord(**fields)


CASES = [
    ("product", "bf16", PAIRS, "dense", "AVX512_BF16"),
    ("product", "bf16", TILES, "matrix_tiles", "amx-bf16"),
    ("quantised", "float32", "cascadelake", "dense", "avx512vnni"),
    ("quantised", "float32", TILES, "matrix_tiles", "amx-int8"),
]


@pytest.mark.parametrize(("network", "precision", "name", "template", "feature"), CASES)
def test_a_record_serves_its_precision_and_no_cpu_without_the_instruction(
    nets: Nets, make_hub: Any, network: str, precision: Any, name: str, template: str, feature: str
) -> None:
    mod = heavy(globals()[network](nets), cpu(name), template, precision)
    lookup = make_hub(records=[record_of(mod, cpu(name))]).lookup
    outcome, served = schedule_function(mod["main"], cpu(name), lookup)
    assert (outcome.rung, served is None) == ("exact", False)
    for found in (lookup, EmptyLookup()):  # LLVM would end the process, whoever asked for the instruction
        outcome, served = schedule_function(mod["main"], cpu(PLAIN), found)
        assert served is None
        assert any(feature in rejection_text(item) for item in outcome.rejected), outcome.rejected


def test_knobs_of_another_precision_or_group_are_refused(nets: Nets) -> None:
    pairs = heavy(product(nets), cpu(PAIRS), "dense")
    fit, good = TemplateFit(pairs, cpu(PAIRS)), record_of(pairs, cpu(PAIRS))
    tiles = record_of(heavy(product(nets), cpu(TILES), "matrix_tiles"), cpu(TILES))
    for changes, reason in (
        ({"template": tiles.template, "version": tiles.version, "knobs": tiles.knobs}, "is for the template 'matrix_t"),
        ({"knobs": {**good.knobs, "group": 4}}, "unknown field `group`"),
        ({"knobs": {**good.knobs, "lanes": 8}}, "lanes: 8 does not fit"),
        ({"knobs": tiles.knobs}, "field"),
    ):
        named = SimpleNamespace(**{"template": "dense", "version": good.version, "knobs": good.knobs, **changes})
        with pytest.raises(KnobError, match=reason):
            fit.by_knobs(named)


def outputs(mod: Any, target: Any, hub: Any, data: Any) -> Any:
    executable = compile_module(mod, target, hub)
    assert not hub.failures
    return relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(data)).numpy()


@pytest.mark.parametrize("name", here(PAIRS, TILES))
def test_a_record_of_float32_under_a_stolen_key_leaves_the_result_right(nets: Nets, make_hub: Any, name: str) -> None:
    mod, data, target = product(nets), nets.array(48, 64), cpu(name)
    expected = outputs(mod, target, make_hub(layout="auto"), data)
    whole = prepare(mod, target, layout="auto").functions.values()
    (float32,) = (main_module(f) for f in whole if isinstance(f, tvm.tirx.PrimFunc))
    narrow = prepare(mod, target, layout="auto", precision="bf16").functions.values()
    alone = [main_module(f) for f in narrow if isinstance(f, tvm.tirx.PrimFunc)]
    stolen = [record_of(float32, target, exact=workload_key(each), anchor=anchor_key(each)) for each in alone]
    found = outputs(mod, target, make_hub(layout="auto", precision="bf16", records=stolen), data)
    apart = np.abs(found - expected).max() / np.abs(expected).max()
    assert 0 < apart < 2e-2
