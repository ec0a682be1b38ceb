"""Layouts of whole networks: results stay the same, whatever the plan, and good plans have few transforms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

tvm = pytest.importorskip("tvm")
relax = pytest.importorskip("tvm.relax")
topi = tvm.topi

from tunehub.compiler import pipeline as relax_pipeline  # noqa: E402
from tunehub.compiler.finishing import lowering_passes  # noqa: E402
from tunehub.compiler.preparing import prepare  # noqa: E402
from tunehub.graph.layout.costs import PLAIN, ConvWorkload, ModelCosts  # noqa: E402
from tunehub.graph.layout.planning import plan_layouts  # noqa: E402
from tunehub.graph.workloads import call_counts  # noqa: E402
from tunehub.tir.versions import CONSTANTS  # noqa: E402

from .made_up_costs import BlockedCosts, RandomCosts, simplified  # noqa: E402

pytestmark = pytest.mark.slow

op = relax.op
Array = np.ndarray[Any, Any]
Nets = Any
_TRANSFORMS = ("to_blocked", "from_blocked", "change_block")


def run(mod: Any, target: Any, *data: Array) -> list[Array]:
    """The outputs of ``mod`` with TVM's default schedules."""
    with target:
        lowered = tvm.transform.Sequential(lowering_passes(target))(prepare(mod, target))
    executable = tvm.compile(lowered, target, relax_pipeline=tvm.transform.Sequential([]))
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](*[tvm.runtime.tensor(array) for array in data])
    return [found.numpy()] if hasattr(found, "numpy") else [found[i].numpy() for i in range(len(found))]


def check(mod: Any, target: Any, costs: Any, blocks: tuple[int, ...], *shapes: tuple[int, ...]) -> Any:
    """Plan ``mod``, compare it with the plain module, and return it."""
    mod = simplified(mod)
    planned = plan_layouts(mod, target, costs, blocks=blocks)
    rng = np.random.default_rng(1)
    data = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    for found, expected in zip(run(planned, target, *data), run(mod, target, *data), strict=True):
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= 1e-4 * max(np.abs(expected).max(), 1e-3)
    return planned


def kernels(mod: Any) -> tuple[int, int]:
    """Calls of functions that are no views, and how many of them have a transform of layouts in them."""
    counts = call_counts(mod)
    for variable, function in mod.functions.items():
        if isinstance(function, tvm.tirx.PrimFunc) and relax.analysis.has_reshape_pattern(function):
            del counts[variable.name_hint]
    transforms = sum(count for name, count in counts.items() if any(kind in name for kind in _TRANSFORMS))
    return counts.total(), transforms


def constants(mod: Any) -> int:
    """The elements of all constants of a module."""
    found: dict[Any, int] = {}

    def visit(node: Any) -> None:
        if type(node).__name__ in CONSTANTS:
            found[node] = int(np.prod(node.data.shape if hasattr(node, "data") else node.value.shape))

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return sum(found.values())


# --- Random networks


class _Grower:
    """Grows a network step by step; ``images`` are its tensors of one size."""

    def __init__(self, nets: Nets, builder: Any, data: Any, draw: Callable[[int], int]) -> None:
        self.nets, self.builder, self.draw = nets, builder, draw
        self.images = [data]

    def step(self) -> None:
        kinds = [self.conv, self.grouped, self.depthwise, self.unary, self.constant, self.residual, self.squeeze]
        kinds += [self.concat, self.pool, self.shuffle, self.reshape, self.scalar, self.transposed]
        kinds += [self.slice, self.split, self.pad, self.resize]
        image = self.images[self.draw(len(self.images))]
        added = self.builder.emit(kinds[self.draw(len(kinds))](image))
        if self.shape(added)[2:] != self.shape(image)[2:]:
            self.images = []  # after a stride all images have the new size
        self.images.append(added)

    @staticmethod
    def shape(image: Any) -> tuple[int, ...]:
        kind = image.ty if hasattr(image, "ty") else image.struct_info
        return tuple(int(extent) for extent in kind.shape)

    def conv(self, image: Any) -> Any:
        out, kernel = (3, 8, 12, 16, 17)[self.draw(5)], (1, 3)[self.draw(2)]
        weight = self.nets.const(out, self.shape(image)[1], kernel, kernel)
        stride = 1 if self.shape(image)[2] < 4 else (1, 1, 2)[self.draw(3)]
        return op.nn.conv2d(image, weight, padding=kernel // 2, strides=stride)

    def grouped(self, image: Any) -> Any:
        channels = self.shape(image)[1]
        groups = next(g for g in (2, 3, 17, 1) if channels % g == 0)
        return op.nn.conv2d(image, self.nets.const(2 * groups, channels // groups, 1, 1), groups=groups)

    def transposed(self, image: Any) -> Any:
        if self.shape(image)[2] > 9:
            return op.nn.relu(image)
        kernel, stride = ((2, 2), (4, 2), (3, 2), (3, 1))[self.draw(4)]
        weight = self.nets.const(self.shape(image)[1], (3, 8, 12)[self.draw(3)], kernel, kernel)
        return op.nn.conv2d_transpose(image, weight, strides=stride, padding=kernel // 2 if kernel > 2 else 0)

    def depthwise(self, image: Any) -> Any:
        channels = self.shape(image)[1]
        return op.nn.conv2d(image, self.nets.const(channels, 1, 3, 3), padding=1, groups=channels)

    def unary(self, image: Any) -> Any:
        kinds = (op.nn.relu, op.sigmoid, op.tanh, op.nn.gelu, op.nn.silu, op.erf, op.exp, lambda x: op.clip(x, 0, 6))
        return kinds[self.draw(len(kinds))](image)

    def constant(self, image: Any) -> Any:
        channels = self.shape(image)[1]
        shape = ((1, channels, 1, 1), (channels, 1, 1), (1, 1, 1, 1), ())[self.draw(4)]
        values = relax.const(np.abs(self.nets.array(*shape)) + np.float32(0.5))
        return (op.add, op.multiply, op.divide, op.maximum, op.subtract)[self.draw(5)](image, values)

    def scalar(self, image: Any) -> Any:
        return op.divide(relax.const(1.0), op.add(op.exp(image), relax.const(1.0)))

    def residual(self, image: Any) -> Any:
        same = [other for other in self.images if self.shape(other) == self.shape(image)]
        return (op.add, op.multiply)[self.draw(2)](image, same[self.draw(len(same))])

    def squeeze(self, image: Any) -> Any:
        return op.multiply(image, op.sigmoid(op.mean(image, [2, 3], keepdims=True)))

    def concat(self, image: Any) -> Any:
        return op.concat([image, self.images[self.draw(len(self.images))]], axis=1)

    def slice(self, image: Any) -> Any:
        channels = self.shape(image)[1]
        begin = self.draw(channels)
        return op.strided_slice(image, [1], [begin], [begin + 1 + self.draw(channels - begin)])

    def split(self, image: Any) -> Any:
        channels = self.shape(image)[1]
        if channels < 3:
            return op.nn.relu(image)
        first = 1 + self.draw(channels - 2)
        parts = self.builder.emit(op.split(image, [first, channels - 1], axis=1))
        return relax.TupleGetItem(parts, self.draw(3))

    def pad(self, image: Any) -> Any:
        if self.shape(image)[2] > 9:
            return op.strided_slice(image, [3, -2], [-4, 1], [100, -2])
        return op.nn.pad(image, [0, 0, 0, 0, *(self.draw(3) for _ in range(4))], "constant", float(self.draw(2)))

    def resize(self, image: Any) -> Any:
        size = (4 + self.draw(5), 4 + self.draw(5))
        mode = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")[self.draw(4)]
        method = ("nearest_neighbor", "linear", "cubic")[self.draw(3)]
        return op.image.resize2d(
            image, size, layout="NCHW", method=method, coordinate_transformation_mode=mode, rounding_method="floor"
        )

    def pool(self, image: Any) -> Any:
        kind = (op.nn.max_pool2d, op.nn.avg_pool2d)[self.draw(2)]
        if self.shape(image)[2] < 3 or self.draw(2):
            return kind(image, (3, 3), padding=(1, 1), count_include_pad=bool(self.draw(2)))
        return kind(image, (3, 3), strides=(2, 2), ceil_mode=bool(self.draw(2)))

    def shuffle(self, image: Any) -> Any:
        n, c, h, w = self.shape(image)
        groups = 2 if c % 2 == 0 else 1
        split = op.permute_dims(op.reshape(image, (n, groups, c // groups, h, w)), (0, 2, 1, 3, 4))
        return op.reshape(split, (n, c, h, w))

    def reshape(self, image: Any) -> Any:
        return op.nn.softmax(image, axis=1)


def random_net(nets: Nets, seed: int, steps: int, shape: tuple[int, ...]) -> Any:
    rng = np.random.default_rng(seed)

    def make(builder: Any, data: Any) -> Any:
        grower = _Grower(nets, builder, data, lambda count: int(rng.integers(count)))
        for _ in range(steps):
            grower.step()
        last = grower.images[-1]
        pooled = builder.emit(op.mean(last, [2, 3], keepdims=bool(seed % 2)))
        return builder.emit(relax.Tuple([last, pooled, grower.images[0]]))

    return nets.build(make, shape)


@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    steps=st.integers(1, 12),
    batch=st.sampled_from([1, 3]),
    channels=st.sampled_from([1, 3, 8, 13]),
    blocks=st.sampled_from([(16, 8), (8, 4), (4,)]),
)
def test_any_plan_of_a_random_network_computes_the_same(
    nets: Nets, target: Any, seed: int, steps: int, batch: int, channels: int, blocks: tuple[int, ...]
) -> None:
    shape = (batch, channels, 7, 9)
    check(random_net(nets, seed, steps, shape), target, RandomCosts(seed), blocks, shape)


@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), batch=st.sampled_from([1, 3]))
def test_everything_in_blocks_computes_the_same(nets: Nets, target: Any, seed: int, batch: int) -> None:
    shape = (batch, 13, 6, 5)
    check(random_net(nets, seed, 10, shape), target, BlockedCosts(8), (8,), shape)


@pytest.mark.parametrize(
    ("kernel", "strides", "padding", "more"),
    [
        ((2, 2), (2, 2), (0, 0, 0, 0), (0, 0)),
        ((4, 4), (2, 2), (1, 1, 1, 1), (0, 0)),
        ((3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
        ((5, 3), (3, 2), (2, 0, 1, 1), (0, 0)),
        ((3, 3), (1, 1), (1, 1, 1, 1), (0, 0)),
        ((2, 2), (4, 4), (0, 0, 0, 0), (0, 0)),
        ((9, 9), (2, 2), (4, 4, 4, 4), (1, 1)),
        ((3, 3), (2, 2), (2, 2, 2, 2), (0, 0)),
    ],
)
@pytest.mark.parametrize("channels", [(8, 8), (5, 11)])
@pytest.mark.few(2)
def test_transposed_convolutions(
    nets: Nets, target: Any, kernel: Any, strides: Any, padding: Any, more: Any, channels: tuple[int, int]
) -> None:
    """Strides that divide the kernel or not, cut borders, grown borders, filled-up channels."""
    inputs, outputs = channels

    def make(b: Any, x: Any) -> Any:
        weight = nets.const(inputs, outputs, *kernel)
        y = op.nn.conv2d_transpose(x, weight, strides=strides, padding=padding, output_padding=more)
        return b.emit(op.nn.relu(op.add(y, nets.const(1, outputs, 1, 1))))

    planned = check(nets.build(make, (2, inputs, 6, 7)), target, BlockedCosts(8), (8,), (2, inputs, 6, 7))
    names = sorted(call_counts(prepare(planned, target)))
    last = "conv2d" if strides == (1, 1) else "shuffle"  # of pixels between those of the image
    assert any(f"{last}_add_relu" in name for name in names), names


# --- What a plan looks like


def test_conv_bias_and_relu_are_one_kernel_between_two_transforms(nets: Nets, target: Any) -> None:
    planned = check(nets.conv(channels=8, out=16), target, BlockedCosts(8), (8,), (1, 8, 8, 8))
    names = sorted(call_counts(prepare(planned, target)))
    assert len(names) == 3
    assert sum("conv2d_add_relu" in name for name in names) == 1


def test_a_residual_stays_in_the_kernel(nets: Nets, target: Any) -> None:
    planned = check(nets.residual(), target, BlockedCosts(8), (8,), (1, 8, 8, 8))
    assert kernels(prepare(planned, target)) == (4, 2)


def test_inputs_and_outputs_keep_their_layout(nets: Nets, target: Any) -> None:
    mod = simplified(nets.residual())
    planned = plan_layouts(mod, target, BlockedCosts(8), blocks=(8,))
    assert kernels(prepare(planned, target))[1] == 2
    for before, after in zip(_interface(mod), _interface(planned), strict=True):
        tvm.ir.assert_structural_equal(before, after)


def test_what_has_a_type_without_transforms_stays_plain(nets: Nets, target: Any) -> None:
    def make(b: Any, x: Any) -> Any:
        affine = relax.const(np.float32(0.1)), relax.const(np.int8(3))
        y = b.emit(op.nn.conv2d(x, nets.const(8, 8, 3, 3)))
        return b.emit(op.dequantize(b.emit(op.quantize(y, *affine, out_dtype="int8")), *affine))

    check(nets.build(make, (1, 8, 8, 8)), target, BlockedCosts(8), (8,), (1, 8, 8, 8))


def _interface(mod: Any) -> list[Any]:
    main = mod["main"]
    kind = main.ty if hasattr(main, "ty") else main.struct_info
    return [kind, main.attrs]


def test_flattening_a_pooled_image_is_free(nets: Nets, target: Any) -> None:
    def make(b: Any, x: Any) -> Any:
        y = b.emit(op.nn.conv2d(x, nets.const(16, 8, 3, 3), padding=1))
        y = b.emit(op.nn.adaptive_avg_pool2d(y, (1, 1)))
        return b.emit(op.matmul(b.emit(op.reshape(y, (2, 16))), nets.const(16, 5)))

    planned = check(nets.build(make, (2, 8, 6, 6)), target, BlockedCosts(8), (8,), (2, 8, 6, 6))
    assert kernels(prepare(planned, target))[1] == 1  # of the input


def test_a_tensor_is_transformed_once_for_all_its_readers(nets: Nets, target: Any) -> None:
    def make(b: Any, x: Any) -> Any:
        branches = [b.emit(op.nn.conv2d(x, nets.const(8, 8, 1, 1))) for _ in range(3)]
        return b.emit(op.concat(branches, axis=1))

    planned = check(nets.build(make, (1, 8, 4, 4)), target, BlockedCosts(8), (8,), (1, 8, 4, 4))
    assert kernels(prepare(planned, target))[1] == 2


@pytest.mark.parametrize(("channels", "transforms"), [((12, 8), 2), ((16, 8), 2), ((4, 20), 2), ((14, 9), 5)], ids=str)
@pytest.mark.few(2)
def test_joined_channels_stay_in_blocks_where_vectors_move_them(
    nets: Nets, target: Any, channels: tuple[int, int], transforms: int
) -> None:
    """Transforms are those of input and output; runs of fewer than four channels make the parts plain."""

    def make(b: Any, x: Any) -> Any:
        parts = [b.emit(op.nn.conv2d(x, nets.const(out, 8, 1, 1))) for out in channels]
        y = b.emit(op.nn.relu(op.concat(parts, axis=1)))
        return b.emit(op.nn.conv2d(y, nets.const(8, sum(channels), 1, 1)))

    planned = check(nets.build(make, (1, 8, 4, 4)), target, BlockedCosts(8), (8,), (1, 8, 4, 4))
    counts = call_counts(prepare(planned, target))
    assert sum(sum(map(name.count, _TRANSFORMS)) * count for name, count in counts.items()) == transforms


@pytest.mark.parametrize("kind", ["pad", "resize", "nearest", "crop", "slice", "odd slice", "split", "prelu", "clip"])
@pytest.mark.few(3)
def test_layouts_go_through(nets: Nets, target: Any, kind: str) -> None:
    """Between two convolutions nothing is transformed, only the input and the output of the network."""

    def middle(b: Any, x: Any) -> Any:
        if kind == "split":
            parts = b.emit(op.split(x, 2, axis=1))
            return op.concat([b.emit(relax.TupleGetItem(parts, i)) for i in (1, 0)], axis=1)
        if kind == "clip":
            return b.emit_te(topi.minimum, b.emit_te(topi.maximum, x, relax.const(0.0)), relax.const(6.0))
        made = {
            "pad": lambda: op.nn.pad(x, [0, 0, 0, 0, 0, 1, 2, 1], "constant", 1.0),
            "resize": lambda: op.image.resize2d(x, (9, 7), layout="NCHW", method="linear"),
            "nearest": lambda: op.image.resize2d(x, (8, 12), layout="NCHW", method="nearest_neighbor"),
            "crop": lambda: op.strided_slice(x, [2, 3], [1, 0], [-1, 3]),
            "slice": lambda: op.strided_slice(x, [1], [8], [20]),
            "odd slice": lambda: op.strided_slice(x, [1], [4], [20]),
            "prelu": lambda: op.nn.prelu(x, nets.const(24), 1),
        }
        return made[kind]()

    def make(b: Any, x: Any) -> Any:
        y = b.emit(op.nn.conv2d(x, nets.const(24, 8, 3, 3), padding=1))
        y = b.emit(middle(b, y))
        return b.emit(op.nn.conv2d(y, nets.const(16, _Grower.shape(y)[1], 1, 1)))

    planned = check(nets.build(make, (1, 8, 5, 6)), target, BlockedCosts(8), (8,), (1, 8, 5, 6))
    assert kernels(prepare(planned, target))[1] == 2


def test_division_by_filled_up_channels_stays_finite(nets: Nets, target: Any) -> None:
    def make(b: Any, x: Any) -> Any:
        y = b.emit(op.nn.conv2d(x, nets.const(5, 3, 1, 1)))
        y = b.emit(op.divide(y, relax.const(nets.array(1, 5, 1, 1) + np.float32(2))))
        return b.emit(op.nn.conv2d(y, nets.const(4, 5, 1, 1)))

    check(nets.build(make, (1, 3, 4, 4)), target, BlockedCosts(8), (8,), (1, 3, 4, 4))


def test_every_weight_is_there_once(nets: Nets, target: Any) -> None:
    mod = simplified(nets.residual(channels=16))
    planned = plan_layouts(mod, target, BlockedCosts(8), blocks=(8,))
    assert constants(prepare(planned, target)) == constants(prepare(mod, target))


def test_the_executable_holds_a_weight_once(nets: Nets, target: Any, make_hub: Any, tmp_path: Path) -> None:
    mod = nets.conv(channels=128, out=128, size=14)
    sizes = {}
    for layout in ("keep", "auto"):
        hub = make_hub(layout=layout)
        executable = relax_pipeline.compile_module(mod, target, hub)
        executable.export_library(str(tmp_path / f"{layout}.so"))
        assert not hub.failures
        sizes[layout] = (tmp_path / f"{layout}.so").stat().st_size
    weight = 128 * 128 * 3 * 3 * 4
    assert sizes["auto"] < sizes["keep"] + weight / 2 < 2 * weight


def test_a_weight_of_two_convolutions_is_packed_once(nets: Nets, target: Any) -> None:
    weight = nets.const(8, 8, 3, 3)

    def make(b: Any, x: Any) -> Any:
        y = b.emit(op.nn.conv2d(x, weight, padding=1))
        return b.emit(op.nn.conv2d(y, weight, padding=1))

    planned = plan_layouts(nets.build(make, (1, 8, 4, 4)), target, BlockedCosts(8), blocks=(8,))
    assert constants(planned) == 8 * 8 * 9


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.few(1)
def test_an_open_batch_is_planned_as_a_batch_of_one(nets: Nets, target: Any, size: int) -> None:
    weight, batch = nets.const(16, 8, 3, 3), tvm.tirx.Var("n", "int64")

    def make(b: Any, x: Any) -> Any:
        y = b.emit(op.nn.relu(b.emit(op.nn.conv2d(x, weight, padding=1))))
        return b.emit(op.mean(b.emit(op.nn.max_pool2d(y, (2, 2), (2, 2))), axis=[2, 3]))

    opened, fixed = (
        plan_layouts(nets.build(make, (n, 8, 6, 6)), target, BlockedCosts(8), blocks=(8,)) for n in (batch, size)
    )
    names = [sorted(str(v.name_hint) for v in mod.functions if v.name_hint != "main") for mod in (opened, fixed)]
    assert names[0] == names[1] and any("to_blocked" in name for name in names[0])
    data = nets.array(size, 8, 6, 6)
    results = [run(mod, target, data)[0] for mod in (opened, fixed)]
    np.testing.assert_allclose(*results, rtol=1e-5)


def test_open_sides_are_planned_as_those_of_an_image(nets: Nets, target: Any) -> None:
    """Every operator with a rule, at sizes of which some leave a remainder everywhere."""
    first, second, up = nets.const(16, 3, 3, 3), nets.const(16, 16, 3, 3), nets.const(16, 8, 4, 4)

    def make(b: Any, x: Any) -> Any:
        y = b.emit(op.nn.relu(b.emit(op.nn.conv2d(x, first, strides=2, padding=1))))
        y = b.emit(op.nn.avg_pool2d(y, (3, 3), (1, 1), 1, count_include_pad=True))
        z = b.emit(op.nn.conv2d(b.emit(op.nn.pad(y, [0, 0, 0, 0, 2, 2, 2, 2])), second, dilation=2))
        whole = b.emit(op.sigmoid(b.emit(op.mean(z, axis=[2, 3], keepdims=True))))
        z = b.emit(op.concat([b.emit(op.multiply(z, whole)), y], axis=1))
        z = b.emit(op.strided_slice(z, [1], [8], [24]))
        size = y.struct_info.shape.values if hasattr(y, "struct_info") else y.ty.shape.values
        z = b.emit(op.image.resize2d(z, relax.ShapeExpr([2 * size[2], size[3] + 1])))
        return b.emit(op.nn.conv2d_transpose(z, up, strides=(2, 2), padding=(1, 1), output_padding=(1, 0)))

    height, width = tvm.tirx.Var("h", "int64"), tvm.tirx.Var("w", "int64")
    opened = plan_layouts(nets.build(make, (1, 3, height, width)), target, BlockedCosts(8), blocks=(8,))
    names = {str(v.name_hint) for v in opened.functions}
    assert {"shuffle", "resize2d", "slice", "pad"} <= names and "conv2d_transpose" not in str(opened)
    for size in ((9, 14), (1, 7), (16, 3)):
        data = nets.array(1, 3, *size)
        fixed = nets.build(make, (1, 3, *size))
        np.testing.assert_allclose(run(opened, target, data)[0], run(fixed, target, data)[0], rtol=1e-4, atol=1e-5)


# --- What is left alone


@pytest.mark.parametrize("kind", ["variable weight", "dtype", "layout", "channels"])
def test_convolutions_that_cannot_be_packed_stay(nets: Nets, target: Any, kind: str) -> None:
    dtype = "float64" if kind == "dtype" else "float32"
    channels = tvm.tirx.Var("c", "int64") if kind == "channels" else 8

    def make(b: Any, x: Any, weight: Any) -> Any:
        weight = weight if kind in ("variable weight", "channels") else relax.const(nets.array(8, 8, 1, 1), dtype)
        layout = "NHWC" if kind == "layout" else "NCHW"
        return b.emit(op.nn.conv2d(x, weight, data_layout=layout))

    mod = nets.build(make, (1, channels, 8, 8), (8, channels, 1, 1), dtype=dtype)
    assert plan_layouts(mod, target, BlockedCosts(8), blocks=(8,)).same_as(mod)


def test_only_cpus_are_planned(nets: Nets) -> None:
    cuda = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    mod = nets.conv()
    assert plan_layouts(mod, cuda).same_as(mod)


def test_a_function_with_branches_stays(nets: Nets, target: Any) -> None:
    builder = relax.BlockBuilder()
    condition, data = nets.var("c", (), "bool"), nets.var("x", (1, 8, 4, 4))
    with builder.function("main", [condition, data]):
        y = builder.emit(relax.If(condition, op.nn.relu(data), op.nn.conv2d(data, nets.const(8, 8, 1, 1))))
        builder.emit_func_output(y)
    mod = builder.get()
    assert plan_layouts(mod, target, BlockedCosts(8), blocks=(8,)).same_as(mod)


# --- The option


def test_auto_plans_and_keep_does_not(nets: Nets, target: Any, make_hub: Any) -> None:
    mod = nets.conv(channels=64, out=64, size=14)
    names = {}
    for layout in ("keep", "auto"):
        hub = make_hub(layout=layout)
        relax_pipeline.compile_module(mod, target, hub)
        assert not hub.failures
        names[layout] = [workload.name for workload in hub.workloads]
    assert len(names["keep"]) == 1
    assert len(names["auto"]) == 3


def test_a_failing_plan_keeps_the_layouts(
    nets: Nets, target: Any, make_hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tunehub.graph.layout import planning as relax_layout

    def broken(*_: Any) -> Any:
        raise RuntimeError("no plan")

    monkeypatch.setattr(relax_layout, "plan_layouts", broken)
    hub = make_hub(layout="auto")
    relax_pipeline.compile_module(nets.conv(), target, hub)
    assert [step for step, _ in hub.failures] == ["planning layouts"]
    assert len(hub.workloads) == 1


# --- The model


def _workload(channels: int, out: int, size: int = 28, groups: int = 1) -> ConvWorkload:
    return ConvWorkload(
        batch=1,
        in_channels=channels,
        out_channels=out,
        in_size=(size, size),
        out_size=(size, size),
        kernel=(3, 3),
        groups=groups,
    )


@pytest.mark.parametrize(("channels", "out", "groups", "best"), [
    (64, 64, 1, (16, 16)), (3, 64, 1, (PLAIN, 16)), (64, 1000, 1, (16, 16)), (64, 64, 64, (16, 16)),
    (128, 128, 2, (16, 16)), (24, 24, 24, (8, 8)),
])  # fmt: skip
def test_the_model_prefers(channels: int, out: int, groups: int, best: tuple[int, int]) -> None:
    costs = ModelCosts(vector=16, cores=2)
    workload = _workload(channels, out, groups=groups)
    pairs = [(PLAIN, PLAIN), (16, 16), (8, 8)] + ([(PLAIN, 16)] if groups == 1 else [])
    assert min(pairs, key=lambda pair: costs.conv(workload, *pair)) == best


@pytest.mark.parametrize(("network", "most", "transforms"), [("squeezenet", 40, 1), ("resnet50", 57, 0)])
@pytest.mark.few(1)
def test_networks_of_the_builder_keep_their_blocks(network: str, most: int, transforms: int) -> None:
    """Kernels of the plain pipeline: 39 and 57. The 1000 channels of squeezenet do not fill their blocks."""
    pytest.importorskip("onnx")
    from tunehub_builder.networks import registry

    target = tvm.target.Target({"kind": "llvm", "num-cores": 2})
    mod = simplified(registry.get(network).relax_module())
    planned = plan_layouts(mod, target, ModelCosts(vector=16, cores=2), blocks=(16, 8))
    fused = prepare(planned, target)
    assert kernels(fused) <= (most, transforms)
    assert constants(fused) <= 1.01 * constants(prepare(mod, target))
