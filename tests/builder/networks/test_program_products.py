"""Products and convolutions of PyTorch's programs have the type of their operands."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tunehub
from tunehub.tir.nodes import shape_of, tensor_class, tensor_type
from tunehub_builder.networks import open_model_file
from tunehub_builder.networks.program_products import product_convert_map

tvm = pytest.importorskip("tvm")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def products(relax: Any) -> dict[str, Any]:
    """What TVM's converters write: operators whose results are float32, by a name for each."""
    conv = {"padding": 1, "dilation": 2, "groups": 2, "out_dtype": "float32"}
    transposed = {"strides": 2, "output_padding": 1, "out_dtype": "float32"}
    return {
        "matmul": ((3, 8), (8, 5), lambda x, w: relax.op.matmul(x, w, out_dtype="float32")),
        "conv1d": ((1, 4, 9), (6, 2, 3), lambda x, w: relax.op.nn.conv1d(x, w, **conv)),
        "conv2d": ((1, 4, 9, 9), (6, 2, 3, 3), lambda x, w: relax.op.nn.conv2d(x, w, **conv)),
        "transposed": ((1, 4, 9, 9), (4, 6, 3, 3), lambda x, w: relax.op.nn.conv2d_transpose(x, w, **transposed)),
    }


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int64"])
@pytest.mark.parametrize("name", ["matmul", "conv1d", "conv2d", "transposed"])
def test_a_product_keeps_its_sizes_and_has_its_operands_type(name: str, dtype: str) -> None:
    from tvm import relax

    x_shape, w_shape, product = products(relax)[name]
    x, w = (relax.Var(each, tensor_class()(shape, dtype)) for each, shape in (("x", x_shape), ("w", w_shape)))
    own = relax.BlockBuilder()
    importer: Any = SimpleNamespace(block_builder=own)
    importer.create_convert_map = lambda: {"mm.default": lambda _: importer.block_builder.emit(product(x, w))}
    with own.function("main", [x, w]):
        with own.dataflow():
            made = product_convert_map()["mm.default"](
                SimpleNamespace(meta={"val": SimpleNamespace(dtype=dtype)}), importer
            )
            plain = own.emit(product(x, w))
            result = own.emit_output(made)
        own.emit_func_output(result)
    assert (str(tensor_type(made).dtype), str(tensor_type(plain).dtype)) == (dtype, "float32")
    assert shape_of(made) == shape_of(plain)
    assert importer.block_builder is own


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_program_in_half_precision_with_autocast_and_no_grad(dtype: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Half(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.conv = torch.nn.Linear(9, 5), torch.nn.Conv2d(3, 5, 3)
            self.register_buffer("odd", torch.arange(12.0)[1:10])  # not where TVM takes it as it lies

        @torch.no_grad()  # type: ignore[untyped-decorator]
        def angles(self, x: Any) -> Any:
            with torch.autocast("cpu", enabled=False):
                return torch.cos(self.odd.float() * x.float())

        def forward(self, x: Any, image: Any) -> Any:
            return self.linear(x) @ self.conv(image).flatten(2)[0], self.angles(x).to(x.dtype)

    given = torch.randn(4, 9), torch.randn(1, 3, 6, 6)
    model, halves = Half().eval(), [each.to(getattr(torch, dtype)) for each in given]
    expected = model(*given)
    path = tmp_path / "half.pt2"
    torch.export.save(torch.export.export(model.to(getattr(torch, dtype)), tuple(halves)), path)
    module, target = open_model_file(path).relax_module(), tvm.target.Target({"kind": "llvm"})
    with tunehub.context(target, offline=True):
        machine = tvm.relax.VirtualMachine(tvm.compile(module, target), tvm.cpu())
    found = machine["main"](*[tvm.runtime.from_dlpack(each) for each in halves])
    for ours, theirs in zip(found, expected, strict=True):
        assert str(ours.dtype) == dtype
        difference = torch.from_dlpack(ours).float().numpy() - theirs.detach().numpy()
        assert np.abs(difference).max() < 0.1
