"""What the template for elementwise functions sees in a function: loops that are one, vectors, and moved elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, topi

from tunehub.kernels import cpu as templates
from tunehub.kernels.cpu import elementwise
from tunehub.kernels.cpu.base import Machine
from tunehub.kernels.te.blocked import from_blocked, reblock, to_blocked
from tunehub.kernels.template_fit import TemplateFit, with_short_indices

pytestmark = pytest.mark.slow

MACHINE = Machine(vector=16, registers=32, cores=2)
Make = Callable[..., Any]


def function(make: Make, *shapes: tuple[int, ...]) -> Any:
    """A function with loops of 64 bits, as Relax makes them."""
    long = [[tvm.tirx.IntImm("int64", extent) for extent in shape] for shape in shapes]
    arguments = [te.placeholder(shape, "float32", name=f"p{i}") for i, shape in enumerate(long)]
    made = te.create_prim_func([*arguments, make(*arguments)], index_dtype_override="int64")
    return tvm.IRModule({"main": made.with_attr("global_symbol", "main")})


def workload(make: Make, *shapes: tuple[int, ...]) -> elementwise.ElementwiseWorkload:
    match = templates.find(function(make, *shapes))
    assert match is not None
    assert match.template is templates.template("elementwise")
    found: elementwise.ElementwiseWorkload = match.workload
    return found


@pytest.mark.parametrize(
    ("make", "shapes", "joined"),
    [
        (lambda x: topi.tanh(topi.add(x, x)), [(1, 6, 55, 55)], 4),
        (lambda x: topi.expand_dims(topi.multiply(x, x), 1), [(1, 6, 55, 55)], 5),
        (lambda x, y: topi.tanh(topi.add(x, y)), [(1, 6, 55, 55), (1, 6, 1, 1)], 2),
        (lambda x, y: topi.tanh(topi.add(x, y)), [(6, 55), (6, 1)], 1),
        (lambda x: topi.transpose(topi.tanh(x), (0, 2, 1)), [(3, 5, 7)], 1),
        (lambda x: topi.tanh(topi.nn.pad(x, (0, 1, 1), (0, 1, 1))), [(3, 5, 7)], 1),
        (lambda x: topi.tanh(topi.add(x, x)), [(6, 55, 64)], 1),
        (lambda x: topi.tanh(x), [(6, 55, 64)], 3),
    ],
)
def test_loops_that_run_through_memory_as_one(make: Make, shapes: list[tuple[int, ...]], joined: int) -> None:
    assert workload(make, *shapes).joined == joined


def test_vectors_hold_what_lies_side_by_side_in_the_smaller_block() -> None:
    changed = workload(lambda x: topi.nn.relu(reblock(x, 32, 16)), (1, 4, 7, 7, 8))
    assert elementwise.default_knobs(changed, MACHINE).lanes == 8
    same = workload(lambda x, y: topi.nn.relu(topi.add(x, y)), (1, 4, 7, 7, 16), (1, 4, 1, 1, 16))
    assert elementwise.default_knobs(same, MACHINE).lanes == 16


def test_what_moving_elements_takes() -> None:
    def seconds(make: Make, *shapes: tuple[int, ...]) -> tuple[float, float]:
        found = workload(make, *shapes)
        return found.apart_s, found.moved_s

    joined = seconds(lambda x, y: topi.concatenate((x, y), 1), (1, 4, 7, 7, 16), (1, 8, 7, 7, 16))
    assert joined[0] == joined[1] == pytest.approx(12 * 49 * 16 * 0.08e-9)
    assert seconds(lambda x: topi.transpose(x, (1, 0)), (64, 96)) == pytest.approx((64 * 96 * 0.2e-9,) * 2)
    apart, moved = seconds(lambda x: topi.reshape(from_blocked(x, 512), (1, 25088)), (1, 32, 7, 7, 16))
    assert moved > apart, "each element is found by divisions"
    apart, moved = seconds(lambda x: topi.reshape(topi.transpose(x, (0, 2, 1, 3)), (1, 128, 768)), (1, 12, 128, 64))
    assert moved < apart, "vectors lie within the rows of a head"
    assert seconds(lambda x: topi.nn.relu(x), (64, 96)) == (0.0, 0.0)
    assert seconds(lambda x: topi.concatenate((topi.nn.relu(x), x), 0), (64, 96)) == (0.0, 0.0)


@pytest.mark.parametrize(("cores", "gains"), [(1, False), (2, True)])
def test_copies_gain_by_threads_alone(cores: int, gains: bool) -> None:
    large = workload(lambda x: topi.concatenate((x, x), 1), (1, 20, 28, 28, 16))
    assert elementwise.gains(large, Machine(vector=16, registers=32, cores=cores)) == gains


def test_remainders_are_cut_off_where_loops_count_in_64_bits() -> None:
    """TVM drops the hint with the 64-bit variable that it names; vectors then get a condition for each element."""
    mod = function(lambda x, y: topi.tanh(topi.add(x, y)), (64, 197), (64, 1))
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2})
    fit = TemplateFit(mod, target)
    assert fit.match is not None
    scheduled = fit.by_default(fit.match).mod
    assert any(" < " not in line for line in _inside_vectors(scheduled, target))
    knobs = elementwise.ElementwiseKnobs(lanes=4, parallel=False)
    as_it_is = elementwise.apply(mod, fit.match.workload, knobs).mod
    assert all(" < " in line for line in _inside_vectors(as_it_is, target))


def _inside_vectors(mod: Any, target: Any) -> list[str]:
    """The first line in each vectorised loop once TVM has cut its loops."""
    from tvm.ir.instrument import pass_instrument

    texts: list[str] = []

    @pass_instrument
    class After:
        def run_after_pass(self, mod: Any, info: Any) -> None:
            if str(info.name).endswith("LoopPartition"):
                texts.append(mod.script(show_meta=False))

    with tvm.transform.PassContext(instruments=[After()]):
        tvm.tirx.build(mod, target=target)
    lines = texts[0].splitlines()
    return [lines[i + 1] for i, line in enumerate(lines) if "T.vectorized" in line]


def test_only_functions_with_short_shapes_are_narrowed() -> None:
    short = with_short_indices(function(lambda x: topi.tanh(x), (6, 55)))
    assert "int64" not in short.script()
    numbers = te.placeholder((6, 55), "int64", name="p")
    plain = te.create_prim_func([numbers, topi.add(numbers, numbers)])
    mod = tvm.IRModule({"main": plain.with_attr("global_symbol", "main")})
    assert with_short_indices(mod).same_as(mod)
    large = function(lambda x: topi.tanh(x), (1 << 16, 1 << 15))
    assert with_short_indices(large).same_as(large)


@pytest.mark.parametrize(("channels", "size", "padding"), [(3, (9, 70), 3), (4, (5, 64), 0), (2, (3, 1), 1)])
def test_blocks_of_a_few_channels_are_vectors_of_pixels(channels: int, size: tuple[int, int], padding: int) -> None:
    def make(x: Any) -> Any:
        return to_blocked(topi.nn.pad(topi.tanh(x), (0, 0, padding, padding), name="pad"), 4)

    mod = function(make, (1, channels, *size))
    match = templates.find(mod)
    assert match is not None and match.workload.enters
    (knobs, *_) = match.template.knob_space(match.workload, MACHINE)
    scheduled = match.template.apply(with_short_indices(mod), match.workload, knobs).mod
    x = np.random.default_rng(1).standard_normal((1, channels, *size)).astype("float32")
    expected = np.zeros((1, 1, size[0] + 2 * padding, size[1] + 2 * padding, 4), "float32")
    inside = expected[0, 0, padding : padding + size[0], padding : padding + size[1], :channels]
    inside[:] = np.tanh(x[0]).transpose(1, 2, 0)
    result = tvm.runtime.tensor(np.full_like(expected, 7))
    built = tvm.tirx.build(scheduled, target={"kind": "llvm", "mcpu": "x86-64-v2"})
    built["main"](tvm.runtime.tensor(x), result)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_many_joined_images_in_blocks_have_one_loop_over_pixels() -> None:
    """LLVM would unroll the inner one of two, with every image in each step."""

    def make(scale: Any, *images: Any) -> Any:
        return topi.nn.relu(topi.multiply(topi.concatenate(images, axis=1), scale))

    shapes = [(1, channels, 5, 6, 16) for channels in (2, 1, 3, 1, 1, 2)]
    mod = function(make, (1, 10, 1, 1, 16), *shapes)
    match = templates.find(mod)
    assert match is not None
    (knobs, *_) = match.template.knob_space(match.workload, MACHINE)
    scheduled = match.template.apply(with_short_indices(mod), match.workload, knobs).mod
    assert "T.grid(1, 10, 30, 1)" in scheduled.script()
    rng = np.random.default_rng(2)
    scale, *images = (rng.standard_normal(shape).astype("float32") for shape in [(1, 10, 1, 1, 16), *shapes])
    expected = np.maximum(np.concatenate(images, axis=1) * scale, 0)
    result = tvm.runtime.tensor(np.full_like(expected, 7))
    built = tvm.tirx.build(scheduled, target={"kind": "llvm", "mcpu": "x86-64-v2"})
    built["main"](*map(tvm.runtime.tensor, (scale, *images)), result)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6)


def test_pixels_of_few_channels_may_be_converted_as_they_are_made() -> None:
    x = te.placeholder((1, 3, 8, 8), "float32", name="x")
    made = to_blocked(x, 4)
    for last, enters in ((topi.cast(made, "bfloat16"), True), (topi.nn.relu(made), False)):
        mod = tvm.IRModule({"main": te.create_prim_func([x, last]).with_attr("global_symbol", "main")})
        match = templates.find(mod)
        assert match is not None
        assert match.workload.enters == enters
