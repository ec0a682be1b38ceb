"""A program that pt2e has quantised, against what PyTorch computed of it.

`data/quantised.pt2` is what torch.export.save of PyTorch 2.15 wrote of a small network (convolutions, a depthwise one,
a residual, pooling, two layers on a turned sequence) that torchao 0.18 had quantised for X86InductorQuantizer, `.npz`
an input with PyTorch's output, and `.json` the module that TVM 0.27's importer makes of it with tunehub's converters.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tunehub
from tunehub_builder.networks import open_model_file

from ...cpu_features import AMX, AVX2, AVX512_VNNI, AVX_VNNI, FEATURE_SETS, best_here, cpu, here, needs_tvm

tvm = pytest.importorskip("tvm")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

DATA = Path(__file__).parent / "data"
STEP = 0.0023  # of the last quantised tensor; a step of it moves an output by at most this times the largest weight


def computed(module: Any, target: Any) -> tuple[np.ndarray[Any, Any], list[str]]:
    """The output for the stored input, and the notes of the report about integers."""
    with tunehub.context(target, strict=True, layout="auto") as hub:
        executable = tvm.compile(module, target)
    with np.load(DATA / "quantised.npz") as arrays:
        (result,) = tvm.relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(arrays["x"]))
    return result.numpy(), [note for note in hub.report().notes if note.startswith("int8")]


def expected() -> np.ndarray[Any, Any]:
    with np.load(DATA / "quantised.npz") as arrays:
        return np.asarray(arrays["y"])


def check(module: Any, model: str) -> None:
    result, notes = computed(module, cpu(model))
    assert np.abs(result - expected()).max() < STEP / 2
    assert notes == ["int8: 5 of 5 convolutions and products with quantised operands compute in integers"]


@needs_tvm
@pytest.mark.parametrize("model", here(AVX2, AVX_VNNI, AVX512_VNNI, AMX))
def test_what_the_importer_gives_is_computed_in_integers_as_pytorch_computes_it(model: str) -> None:
    check(open_model_file(DATA / "quantised.json").relax_module(), model)


def test_a_quantised_program_is_imported_as_operators_that_tunehub_knows() -> None:
    pytest.importorskip("torch")
    module = open_model_file(DATA / "quantised.pt2").relax_module()
    stored = open_model_file(DATA / "quantised.json").relax_module()
    tvm.ir.assert_structural_equal(module, stored)
    check(module, best_here(FEATURE_SETS))
