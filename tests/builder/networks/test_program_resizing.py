"""Images in other sizes, and what PyTorch composes, are what PyTorch computes; this needs PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tunehub
from tunehub_builder.networks import open_model_file

tvm = pytest.importorskip("tvm")
torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

X = torch.randn(2, 3, 5, 6, generator=torch.Generator().manual_seed(0))


def image(axes: int, **named: Any) -> Callable[[Any], Any]:
    def resized(x: Any) -> Any:
        return torch.nn.functional.interpolate({1: x[0], 2: x, 3: x[None]}[axes], **named)

    return resized


def padded(mode: str) -> Callable[[Any], Any]:
    return lambda x: torch.nn.functional.pad(x, (2, 1, 0, 3), mode=mode)


def by_grid(x: Any) -> Any:
    return torch.nn.functional.grid_sample(x, x[:, :2].permute(0, 2, 3, 1), align_corners=False)


CASES: Mapping[str, Callable[[Any], Any]] = {
    "nearest": image(2, size=(7, 9)),
    "nearest of a line": image(1, size=9),
    "nearest of a volume": image(3, size=(2, 7, 9)),
    "nearest, exact": image(2, size=(7, 4), mode="nearest-exact"),
    "nearest by a scale": image(2, scale_factor=1.5),
    "nearest, halved": image(2, scale_factor=0.5),
    "nearest, doubled": image(2, scale_factor=2),
    "linear": image(1, size=9, mode="linear"),
    "bilinear": image(2, size=(7, 9), mode="bilinear"),
    "bilinear by a scale": image(2, scale_factor=1.5, mode="bilinear"),
    "bilinear, corners": image(2, scale_factor=1.5, mode="bilinear", align_corners=True),
    "trilinear": image(3, size=(2, 7, 9), mode="trilinear"),
    "cubic by a scale": image(2, scale_factor=1.5, mode="bicubic"),
    "bilinear, antialiased": image(2, size=(3, 4), mode="bilinear", antialias=True),
    "cubic, antialiased": image(2, scale_factor=0.5, mode="bicubic", antialias=True),
    "reflection": padded("reflect"),
    "replication": padded("replicate"),
    "a grid": by_grid,
    "selu": torch.nn.functional.selu,
    "elu": lambda x: torch.nn.functional.elu(x, 0.7),
    "instance norm": torch.nn.functional.instance_norm,
    "variances": lambda x: torch.var_mean(x, (1, 2), correction=0, keepdim=True),
    "any": lambda x: torch.where(torch.isinf(x).any(), x, x * 2),
    "a selection": lambda x: torch.select_scatter(x, x[:, 0] * 2, 1, 1),
}


class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
    """All of the cases, so that one program is compiled."""

    def forward(self, x: Any) -> Any:
        results = [case(x) for case in CASES.values()]
        return [each for found in results for each in (found if isinstance(found, tuple) else (found,))]


def test_programs_compute_what_pytorch_does(tmp_path: Path) -> None:
    path, target = tmp_path / "all.pt2", tvm.target.Target({"kind": "llvm"})
    torch.export.save(torch.export.export(Model().eval(), (X,)), path)
    module = open_model_file(path).relax_module()
    with tunehub.context(target, offline=True):
        machine = tvm.relax.VirtualMachine(tvm.compile(module, target), tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(X.numpy()))
    for number, (ours, theirs) in enumerate(zip(found, Model()(X), strict=True)):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5, err_msg=f"output {number}")
