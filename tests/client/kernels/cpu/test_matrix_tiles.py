"""Products and convolutions by AMX: by every choice of knobs what numpy computes, the instructions emulated in C; and
real code of them, which says what is missing where a CPU has none."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

tvm = pytest.importorskip("tvm")

from tvm import te, tirx  # noqa: E402

import tunehub  # noqa: E402
from tunehub.kernels import cpu as templates  # noqa: E402
from tunehub.kernels.cpu import amx  # noqa: E402
from tunehub.kernels.cpu.base import Rates  # noqa: E402
from tunehub.kernels.te import grouped  # noqa: E402
from tunehub.tir.guard import check_function, check_tiles, static_extents  # noqa: E402
from tunehub.tir.nodes import constant_array, parameters  # noqa: E402

from ....cpu_features import AMX, cpu, needs, needs_tvm  # noqa: E402
from ....sweeps import swept  # noqa: E402

SAPPHIRE_RAPIDS = cpu(AMX)
pytestmark = [pytest.mark.slow, needs_tvm]
MACHINE = templates.Machine(vector=16, registers=32, cores=2)
TILES = {"bfloat16": grouped.TILES, "int8": grouped.TILES_INT8}
Array = Any


def module(make: Any, *arrays: Array) -> Any:
    """A function with an epilogue: one more than what ``make`` computes of two arrays."""
    inputs = [te.placeholder(each.shape, str(each.dtype), name=f"x{i}") for i, each in enumerate(arrays)]
    result = make(*inputs)
    one = tirx.const(1, str(result.dtype))
    more = te.compute(result.shape, lambda *i: result[i] + one, name="more")
    return tvm.IRModule({"main": te.create_prim_func([*inputs, more]).with_attr("global_symbol", "main")})


def run(mod: Any, target: Any, arrays: tuple[Array, ...]) -> Array:
    output = parameters(mod["main"])[-1]
    result = tvm.runtime.tensor(np.full(static_extents(output), -7, str(output.dtype)))
    tvm.compile(mod, target=tvm.target.Target(target))["main"](*map(tvm.runtime.tensor, arrays), result)
    return result.numpy()


def choices(match: Any) -> list[Any]:
    """Some with the tiles and parts of the default, and the first of each of the others."""
    known = match.template.knob_space(match.workload, MACHINE)
    plain = [each for each in known if (each.tall, each.parts) == (known[0].tall, known[0].parts)]
    others = {(each.tall, each.parts, each.stays): each for each in reversed(known)}
    return list(dict.fromkeys([*plain[::4], *others.values()]))


def check_every_choice(make: Any, arrays: tuple[Array, ...], expected: Array) -> None:
    mod = module(make, *arrays)
    match = templates.find(mod)
    assert match is not None
    assert match.template.NAME == "matrix_tiles"
    for choice in choices(match):
        scheduled = match.template.apply(mod, match.workload, msgspec.structs.replace(choice, parallel=True)).mod
        check_function(scheduled["main"], mod["main"], SAPPHIRE_RAPIDS)
        check_tiles(scheduled["main"])
        found = run(scheduled, tunehub.host_target(), arrays).astype("float64") - 1
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max(), str(choice)


def operands(kind: str, data: tuple[int, ...], weights: tuple[int, ...]) -> tuple[Array, Array]:
    """Numbers that bfloat16 has, or all integers that instructions multiply."""
    import ml_dtypes

    rng = np.random.default_rng(0)
    if kind == "int8":
        return rng.integers(0, 256, data).astype("uint8"), rng.integers(-128, 128, weights).astype("int8")
    narrow = rng.standard_normal(weights).astype(ml_dtypes.bfloat16)
    return rng.standard_normal(data).astype(ml_dtypes.bfloat16), narrow.astype("float32")


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
@pytest.mark.parametrize("shape", swept([(1,), (1, 37)], [(1, 45), (1, 197), (2, 40), (7,), (3, 1), (1, 128)]))
@pytest.mark.few(1)
def test_products_of_any_number_of_rows(shape: tuple[int, ...], kind: str) -> None:
    data, weights = operands(kind, (*shape, 128), (128, 88))
    packed = np.asarray(constant_array(grouped.pack_dense(weights, TILES[kind], out_block=16)))
    expected = data.astype("float64") @ weights.astype("float64")
    check_every_choice(lambda x, w: grouped.dense_grouped(x, w, outputs=88), (data, packed), expected)


def convolved(data: Array, weights: Array, how: Any) -> Array:
    (down, right), dilation = how.get("strides", (1, 1)), how.get("dilation", (1, 1))
    top, left, bottom, beside = how.get("padding", (0, 0, 0, 0))
    padded = np.pad(data.astype("float64"), ((0, 0), (0, 0), (top, bottom), (left, beside)))
    rows, columns = (
        (size - by * (kernel - 1) - 1) // stride + 1
        for size, by, kernel, stride in zip(padded.shape[2:], dilation, weights.shape[2:], (down, right), strict=True)
    )
    result: Any = 0.0
    for y, x in np.ndindex(*weights.shape[2:]):
        window = padded[:, :, y * dilation[0] :: down, x * dilation[1] :: right][:, :, :rows, :columns]
        result = result + np.einsum("nchw,oc->nohw", window, weights[:, :, y, x].astype("float64"))
    return result


def in_blocks(image: Array, block: int) -> Array:
    batch, channels, *size = image.shape
    return np.ascontiguousarray(image.reshape(batch, channels // block, block, *size).transpose(0, 1, 3, 4, 2))


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    "case",
    swept(
        [("bfloat16", (7, 9), 3, {"padding": (1, 1, 1, 1)}), ("int8", (7, 5), 1, {})],
        [("bfloat16", (11, 13), 3, {"padding": (1, 0, 2, 1), "strides": (2, 2)}),
         ("int8", (8, 8), 1, {"strides": (2, 2)}), ("bfloat16", (9, 5), 1, {}),
         ("int8", (9, 9), 3, {"padding": (2, 2, 2, 2), "dilation": (2, 2)}),
         ("int8", (3, 37), 3, {"padding": (1, 1, 1, 1)})],
    ),
)  # fmt: skip
@pytest.mark.few(1)
def test_convolutions_of_any_size(case: tuple[str, tuple[int, int], int, Any]) -> None:
    kind, size, kernel, how = case
    block = TILES[kind].depth
    data, weights = operands(kind, (2, 2 * block, *size), (2 * block, 2 * block, kernel, kernel))
    packed = np.asarray(constant_array(grouped.pack_conv2d(weights, TILES[kind], in_block=block, out_block=block)))
    expected = in_blocks(convolved(data, weights, how), block)
    check_every_choice(lambda x, w: grouped.conv2d_grouped(x, w, **how), (in_blocks(data, block), packed), expected)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    "case",
    swept(
        [(3, 7, (17, 19), {"padding": (3, 3, 3, 3), "strides": (2, 2)})],
        [(1, 3, (9, 8), {"padding": (1, 1, 1, 1)}), (4, 11, (30, 35), {"strides": (4, 4), "padding": (2, 1, 0, 3)}),
         (3, 2, (5, 40), {"dilation": (2, 1)}), (2, 8, (9, 33), {"strides": (3, 1)})],
    ),
)  # fmt: skip
@pytest.mark.few(1)
def test_plain_images_are_read_in_windows(case: tuple[int, int, tuple[int, int], Any]) -> None:
    channels, kernel, size, how = case
    data, weights = operands("bfloat16", (2, channels, *size), (64, channels, kernel, kernel))
    packed = np.asarray(constant_array(grouped.pack_conv2d_windows(weights, channels=grouped.PIXEL, out_block=32)))
    image = in_blocks(np.pad(data, [(0, 0), (0, grouped.PIXEL - channels), (0, 0), (0, 0)]), grouped.PIXEL)
    expected = in_blocks(convolved(data, weights, how), 32)
    check_every_choice(lambda x, w: grouped.conv2d_windows(x, w, columns=kernel, **how), (image, packed), expected)


@pytest.mark.few(1)
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    "case",
    swept(
        [("bfloat16", 4, 17, 24, 1, {}), ("int8", 3, 40, 24, 1, {})],
        [("bfloat16", 2, 48, 64, 3, {"padding": (1, 1, 1, 1)}), ("bfloat16", 3, 80, 20, 1, {}),
         ("bfloat16", 8, 4, 4, 3, {}), ("int8", 16, 8, 8, 3, {"padding": (1, 1, 1, 1)})],
    ),
)  # fmt: skip
def test_groups_of_channels_are_read_in_whole_blocks(case: tuple[str, int, int, int, int, Any]) -> None:
    kind, groups, inputs, outputs, kernel, how = case
    logical, block = (groups * inputs, groups * outputs), TILES[kind].depth
    data, weights = operands(kind, (1, logical[0], 9, 7), (logical[1], inputs, kernel, kernel))
    constant = grouped.pack_conv2d(weights, TILES[kind], in_block=block, out_block=block, of_channels=groups)
    each = zip(np.split(data, groups, 1), np.split(weights, groups), strict=True)
    expected = np.concatenate([convolved(*pair, how) for pair in each], 1)
    arrays = (in_blocks(filled(data, block), block), np.asarray(constant_array(constant)))
    check_every_choice(
        lambda x, w: grouped.conv2d_grouped(x, w, groups=groups, channels=logical, **how),
        arrays,
        in_blocks(filled(expected, block), block),
    )


def filled(image: Array, block: int) -> Array:
    return np.pad(image, [(0, 0), (0, -image.shape[1] % block), (0, 0), (0, 0)])


def product(kind: str) -> tuple[Any, tuple[Array, Array]]:
    data, weights = operands(kind, (1, 48, 64), (64, 32))
    packed = np.asarray(constant_array(grouped.pack_dense(weights, TILES[kind], out_block=16)))
    return module(lambda x, w: grouped.dense_grouped(x, w, outputs=32), data, packed), (data, packed)


def scheduled_product(kind: str) -> tuple[Any, tuple[Array, Array]]:
    mod, arrays = product(kind)
    match = templates.find(mod)
    assert match is not None
    knobs = match.template.default_knobs(match.workload, MACHINE)
    return match.template.apply(mod, match.workload, knobs).mod, arrays


@pytest.mark.parametrize(("kind", "instruction"), [("bfloat16", "tdpbf16ps"), ("int8", "tdpbusd")])
def test_the_instructions_are_in_the_code(kind: str, instruction: str) -> None:
    mod, _ = scheduled_product(kind)
    code = tvm.compile(mod, target=SAPPHIRE_RAPIDS).mod.inspect_source("asm")
    assert instruction in code
    assert "ldtilecfg" in code
    assert "tilerelease" in code
    assert "tunehub_amx_begin" not in code  # inlined


@needs(AMX)
@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_the_instructions_of_this_cpu_compute_the_same(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    mod, arrays = scheduled_product(kind)
    found = run(mod, SAPPHIRE_RAPIDS, arrays).astype("float64") - 1
    data, weights = operands(kind, (1, 48, 64), (64, 32))
    expected = data.astype("float64") @ weights.astype("float64")
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    assert "made for AMX" not in capfd.readouterr().err


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_a_library_made_for_amx_computes_without_it_elsewhere_and_says_so(
    kind: str, refused_target: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    mod, arrays = scheduled_product(kind)
    found = run(mod, refused_target, arrays).astype("float64") - 1
    data, weights = operands(kind, (1, 48, 64), (64, 32))
    expected = data.astype("float64") @ weights.astype("float64")
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    said = capfd.readouterr().err
    assert said.count("a library was made for AMX, which this CPU lacks or Linux refuses") == 1


@pytest.mark.parametrize(
    "case", [(3, {"padding": (1, 0, 2, 1), "strides": (2, 2)}), (1, {}), (3, {"dilation": (2, 2)})]
)
@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
@pytest.mark.few(2)
def test_convolutions_made_for_amx_are_right_without_it(kind: str, case: tuple[int, Any], refused_target: Any) -> None:
    kernel, how = case
    block = TILES[kind].depth
    data, weights = operands(kind, (1, 2 * block, 11, 13), (2 * block, 2 * block, kernel, kernel))
    packed = np.asarray(constant_array(grouped.pack_conv2d(weights, TILES[kind], in_block=block, out_block=block)))
    arrays = (in_blocks(data, block), packed)
    mod = module(lambda x, w: grouped.conv2d_grouped(x, w, **how), *arrays)
    match = templates.find(mod)
    assert match is not None
    for knobs in match.template.knob_space(match.workload, MACHINE)[:2]:
        found = run(match.template.apply(mod, match.workload, knobs).mod, refused_target, arrays).astype("float64") - 1
        expected = in_blocks(convolved(data, weights, how), block)
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_targets_without_it_say_what_they_lack() -> None:
    v4 = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v4"})
    assert amx.doubt(v4, "uint8") == "the target lacks amx-tile, amx-int8"
    assert "CPUs" in str(amx.doubt(tvm.target.Target({"kind": "cuda", "arch": "sm_90"}), "bfloat16"))


def convolution(kind: str, size: int, channels: int) -> Any:
    """What the template recognises of a padded convolution of 3 × 3."""
    data, weights = operands(kind, (1, channels, size, size), (channels, channels, 3, 3))
    block = TILES[kind].depth
    packed = np.asarray(constant_array(grouped.pack_conv2d(weights, TILES[kind], in_block=block, out_block=block)))
    found = module(lambda x, w: grouped.conv2d_grouped(x, w, padding=(1, 1, 1, 1)), in_blocks(data, block), packed)
    match = templates.find(found)
    assert match is not None
    return match


@pytest.mark.parametrize(("kind", "size", "channels"), [("int8", 28, 128), ("bfloat16", 28, 128), ("bfloat16", 27, 64)])
def test_cores_have_rows_of_an_image_for_themselves_where_they_padded_it(kind: str, size: int, channels: int) -> None:
    match = convolution(kind, size, channels)
    assert match.template.default_knobs(match.workload, MACHINE).order == "rows"


@pytest.mark.parametrize(("size", "channels", "parts"), [(14, 256, 8), (28, 128, 4), (56, 32, 1)])
def test_a_long_reduction_is_in_parts_whose_weights_stay_in_the_first_cache(
    size: int, channels: int, parts: int
) -> None:
    match = convolution("bfloat16", size, channels)
    assert match.template.default_knobs(match.workload, MACHINE).parts == parts


@pytest.mark.parametrize(("two_tiles", "tall"), [(0.98, 2), (1.3, 1)])
def test_one_tile_of_rows_is_in_registers_where_cores_share_their_units(two_tiles: float, tall: int) -> None:
    match = convolution("bfloat16", 28, 128)
    machine = msgspec.structs.replace(MACHINE, rates=Rates(two_tiles=two_tiles))
    assert match.template.default_knobs(match.workload, machine).tall == tall


def test_a_record_for_tasks_that_do_not_fit_is_refused() -> None:
    mod, _ = product("bfloat16")
    match = templates.find(mod)
    assert match is not None
    knobs = match.template.default_knobs(match.workload, MACHINE)
    for wrong in ({"rows": 47}, {"blocks": 3}):
        with pytest.raises(templates.KnobError, match="does not divide"):
            match.template.apply(mod, match.workload, msgspec.structs.replace(knobs, **wrong))
