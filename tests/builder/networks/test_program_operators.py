"""Operators of PyTorch's programs, imported, are those of NumPy, and of PyTorch where that is installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tunehub
from tunehub.tir.nodes import tensor_class
from tunehub_builder.networks import ModelFileError, open_model_file
from tunehub_builder.networks.program_operators import operator_convert_map

tvm = pytest.importorskip("tvm")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

X = np.random.default_rng(0).standard_normal((2, 3, 5, 6)).astype("float32")
ROWS, PLACES = np.array([[1], [0]]), np.array([0, 2, -1])
NUMBERS = np.array([[-7, -3, 0], [3, 8, 7]])


def run(module: Any, *given: Any) -> list[Any]:
    target = tvm.target.Target({"kind": "llvm"})
    with tunehub.context(target, offline=True):
        built = tvm.compile(module, target)
    found = tvm.relax.VirtualMachine(built, tvm.cpu())["main"](*map(tvm.runtime.tensor, given))
    return [each.numpy() for each in ([found] if hasattr(found, "numpy") else found)]


def converted(operator: str, *arguments: Any, dtype: str = "float32", pick: int = 0, **named: Any) -> list[Any]:
    """What a converter makes of arrays and other ``arguments``; of several results that of number ``pick``."""
    from tvm import relax

    arrays = [each for each in arguments if isinstance(each, np.ndarray)]
    listed = [each for part in arguments if isinstance(part, list) for each in part if isinstance(each, np.ndarray)]
    builder, variables = relax.BlockBuilder(), {}
    for number, each in enumerate([*arrays, *listed]):
        variables[id(each)] = relax.Var(f"x{number}", tensor_class()(each.shape, str(each.dtype)))

    def variable(value: Any) -> Any:
        return [*map(variable, value)] if isinstance(value, list) else variables.get(id(value), value)

    importer = SimpleNamespace(block_builder=builder, retrieve_args=lambda _: [*map(variable, arguments)])
    target = SimpleNamespace(__name__=operator)
    node = SimpleNamespace(kwargs=named, target=target, meta={"val": SimpleNamespace(dtype=f"torch.{dtype}")})
    with builder.function("main", [*variables.values()]):
        with builder.dataflow():
            made = operator_convert_map()[operator](node, importer)
            made = builder.emit_output(made[pick] if isinstance(made, tuple) else made)
        builder.emit_func_output(made)
    return run(builder.get(), *arrays, *listed)


INDICES: list[list[Any]] = [
    [None, PLACES],
    [None, PLACES, ROWS],
    [ROWS, None, PLACES],
    [None, PLACES, None, ROWS],
    [ROWS, ROWS + 1],
    [None, None, PLACES.astype("int32"), ROWS],
]  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.parametrize("indices", INDICES, ids=lambda each: str([np.shape(at) for at in each]))
def test_several_axes_are_indexed_at_once(indices: list[Any]) -> None:
    (found,) = converted("index.Tensor", X, indices)
    assert np.array_equal(found, X[tuple(slice(None) if each is None else each for each in indices)])


def test_masks_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="masks"):
        converted("index.Tensor", X, [X > 0])


def test_windows_and_columns() -> None:
    (windows,) = converted("unfold.default", X, -2, 3, 2)
    assert np.array_equal(windows, np.lib.stride_tricks.sliding_window_view(X, 3, 2)[:, :, ::2])
    (columns,) = converted("im2col.default", X, [2, 3], [2, 1], [1, 2], [1, 3])
    padded = np.pad(X, ((0, 0), (0, 0), (1, 1), (2, 2)))
    views = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, :, ::3, ::2]
    assert np.array_equal(columns, views.transpose(0, 1, 4, 5, 2, 3).reshape(columns.shape))
    (image,) = converted("col2im.default", columns[1], [5, 6], [2, 3], [2, 1], [1, 2], [1, 3])
    counts = converted("im2col.default", np.ones_like(X), [2, 3], [2, 1], [1, 2], [1, 3])[0]
    times = converted("col2im.default", counts, [5, 6], [2, 3], [2, 1], [1, 2], [1, 3])[0]
    assert np.allclose(image, X[1] * times[1])


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("mode", "by", "dtype"), [("floor", 2, "int64"), ("trunc", 2.5, "float32"), (None, 2, "float32")]
)
def test_quotients_are_rounded_as_asked(mode: str | None, by: float, dtype: str) -> None:
    (found,) = converted("div.Tensor_mode", NUMBERS, by, dtype=dtype, rounding_mode=mode)
    round_ = {"floor": np.floor, "trunc": np.trunc, None: np.asarray}[mode]
    assert found.dtype == dtype and np.allclose(found, round_(NUMBERS / by))


def test_extremes_of_some_axes_and_of_all() -> None:
    assert np.array_equal(converted("amax.default", X, [0, -1], True)[0], X.max((0, -1), keepdims=True))
    assert np.array_equal(converted("amin.default", X)[0], X.min())


def test_least_elements_and_their_places() -> None:
    least, places = X.min(1), X.argmin(1)
    for number, expected in enumerate((least, places)):
        (found,) = converted("min.dim", X, 1, pick=number)
        assert np.array_equal(found, expected)


def test_elements_are_scattered_and_put() -> None:
    index = np.array([[[[0]], [[0]], [[2]]]], "int64") + np.zeros(X.shape, "int64")
    sums, largest = np.zeros_like(X), np.full_like(X, -9)
    for place in np.ndindex(*X.shape):
        to = (place[0], index[place], *place[2:])
        sums[to] += X[place]
        largest[to] = max(largest[to], X[place])
    zeros = np.zeros_like(X)
    np.testing.assert_allclose(converted("scatter_add.default", zeros, 1, index, X)[0], sums, rtol=1e-5)
    assert np.array_equal(converted("scatter_reduce.two", zeros - 9, 1, index, X, "amax")[0], largest)
    with pytest.raises(NotImplementedError, match="include_self=False"):
        converted("scatter_reduce.two", zeros, 1, index, X, "sum", include_self=False)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(
    "indices", [[None, PLACES[:2]], [ROWS, PLACES[:2]], [None, ROWS, PLACES[:2]], [ROWS, None, PLACES[:2]]]
)
def test_values_are_put_in_several_axes(indices: list[Any], adds: bool) -> None:
    places = tuple(slice(None) if each is None else each for each in indices)
    values, expected = X[places] * 2 + 1, X.copy()
    expected[places] = expected[places] + values if adds else values
    np.testing.assert_allclose(converted("index_put.default", X, indices, values, adds)[0], expected, rtol=1e-5)


def test_distances_variances_powers_and_sums_of_a_batch() -> None:
    apart = np.sqrt(((X[0][:, :, None] - X[1][:, None]) ** 2).sum(-1))
    np.testing.assert_allclose(converted("_cdist_forward.default", X[0], X[1], 2.0, None)[0], apart, rtol=1e-5)
    with pytest.raises(NotImplementedError, match="by the norm 1"):
        converted("_cdist_forward.default", X[0], X[1], 1.0, None)
    np.testing.assert_allclose(converted("var.default", X, [1, 2], 1.0)[0], X.var((1, 2), ddof=1), rtol=1e-4)
    np.testing.assert_allclose(converted("exp2.default", X)[0], np.exp2(X), rtol=1e-5)
    added = X[0, 0, :, :5] * 0.5 + 2 * sum(X[0, at] @ X[1, at].T for at in range(3))
    found = converted("addbmm.default", X[0, 0, :, :5], X[0], X[1].transpose(0, 2, 1), beta=0.5, alpha=2)[0]
    np.testing.assert_allclose(found, added, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("operator", "expected"), [("__lshift__.Scalar", NUMBERS << 2), ("__rshift__.Scalar", NUMBERS >> 2)]
)
def test_numbers_are_shifted(operator: str, expected: Any) -> None:
    assert np.array_equal(converted(operator, NUMBERS, 2)[0], expected)


def test_places_of_largest_elements_are_refused() -> None:
    used = SimpleNamespace(users=[SimpleNamespace(args=(None, 1))])
    with pytest.raises(NotImplementedError, match="the places"):
        operator_convert_map()["max_pool2d_with_indices.default"](used, SimpleNamespace())


def test_largest_elements_of_parts_of_images() -> None:
    whole = converted("adaptive_max_pool2d.default", X[..., :4, :], [2, 3])[0]
    assert np.array_equal(whole, X[..., :4, :].reshape(2, 3, 2, 2, 3, 2).max((3, 5)))
    parts = converted("adaptive_max_pool2d.default", X[0], [2, 4])[0]
    rows, columns = ((0, 3), (2, 5)), ((0, 2), (1, 3), (3, 5), (4, 6))
    assert np.array_equal(parts, [[[c[a:b, d:e].max() for d, e in columns] for a, b in rows] for c in X[0]])


def test_types_and_numbers_are_those_of_pytorch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    n, f, m = torch.tensor(NUMBERS), torch.tensor(NUMBERS) / 2.5, torch.tensor(NUMBERS[::-1] - 2)
    double = torch.tensor(2.5, dtype=torch.float64)
    cases: Sequence[Callable[[Any, Any, Any], Any]] = [
        *(lambda n, f, m: n * 0.5, lambda n, f, m: 0.5 - n, lambda n, f, m: n / 2, lambda n, f, m: n / m),
        *(lambda n, f, m: f // 2, lambda n, f, m: f // m, lambda n, f, m: n // m, lambda n, f, m: n % 2.5),
        *(lambda n, f, m: torch.add(f, m, alpha=2), lambda n, f, m: torch.sub(n, m, alpha=3)),
        *(lambda n, f, m: torch.add(f, 1, alpha=2), lambda n, f, m: n.abs() ** 0.5, lambda n, f, m: 2.0**n),
        *(lambda n, f, m: (n > 0) + 1, lambda n, f, m: (n > 0) * 0.5, lambda n, f, m: n > 0.5),
        *(lambda n, f, m: n == f, lambda n, f, m: f * double, lambda n, f, m: n.clamp(-1.5, 2.5)),
        *(lambda n, f, m: (n > 0).cumsum(1), lambda n, f, m: torch.div(n, m, rounding_mode="trunc")),
        *(lambda n, f, m: torch.where(n > 0, n, f), lambda n, f, m: torch.maximum(n, f)),
        *(lambda n, f, m: torch.log(n * n + 1), lambda n, f, m: torch.rsqrt(n.abs() + 1)),
        lambda n, f, m: torch.nn.functional.unfold(f[None, None], 2, padding=1),
    ]

    class All(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, *given: Any) -> Any:
            return tuple(case(*given) for case in cases)

    program = torch.export.export(All(), (n, f, m))
    torch.export.save(program, tmp_path / "all.pt2")
    found = run(open_model_file(tmp_path / "all.pt2").imported().module, *(each.numpy() for each in (n, f, m)))
    for number, (ours, theirs) in enumerate(zip(found, All()(n, f, m), strict=True)):
        assert ours.dtype == theirs.numpy().dtype and np.allclose(ours, theirs.numpy(), atol=1e-6), number


def test_a_mask_in_a_program_is_named_by_its_node(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Masked(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x[x > 0]

    torch.export.save(torch.export.export(Masked(), (torch.randn(4, 4),)), tmp_path / "mask.pt2")
    with pytest.raises(ModelFileError, match=r"the operator aten.index.Tensor \(node index\).*masks"):
        open_model_file(tmp_path / "mask.pt2").imported()


def test_attention_whose_views_contradict_how_pytorch_decomposes_it(tmp_path: Path) -> None:
    """As GPT-2 has it with more than one sequence."""
    torch = pytest.importorskip("torch")

    class Attention(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.joined, self.weight = torch.nn.Linear(16, 48), torch.nn.Parameter(torch.randn(16, 16))

        def forward(self, x: Any) -> Any:
            heads = [each.view(3, 5, 4, 4).transpose(1, 2) for each in self.joined(x).split(16, -1)]
            found = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
            rows = found.transpose(1, 2).contiguous().reshape(3, 5, -1).contiguous().view(-1, 16)
            return (rows @ self.weight).view(x.shape)

    model, x = Attention().eval(), torch.randn(3, 5, 16)
    path = tmp_path / "attention.pt2"
    torch.export.save(torch.export.export(model, (x,)), path)
    (found,) = run(open_model_file(path).relax_module(), x.numpy())
    np.testing.assert_allclose(found, model(x).detach().numpy(), rtol=1e-4, atol=1e-5)
