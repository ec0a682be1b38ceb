"""Quantised models in integers: equal to numpy's with every instruction that this CPU has; reasons for the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te

from tunehub.comparison.difference import tolerance
from tunehub.compiler.hub import Hub
from tunehub.compiler.pipeline import compile_module
from tunehub.compiler.preparing import prepare
from tunehub.compiler.verify.network import _half as types_of_verified
from tunehub.graph.quantised.integers import in_integers
from tunehub.kernels.cpu.dot_product import DotProduct, dot_product_of
from tunehub.kernels.te.grouped import conv2d_grouped
from tunehub.kernels.template_fit import TemplateFit
from tunehub.policy import Policy
from tunehub.registries.resolution import Resolution
from tunehub.target.descriptors import descriptor_of
from tunehub.tir.nodes import buffer_kind, main_module, parameters, tensor_class

from ....cpu_features import AMX, AVX2, AVX512, AVX512_VNNI, AVX_VNNI, best_here, here, needs_tvm
from ....cpu_features import cpu as cpu_of
from ....sweeps import covering

pytestmark = pytest.mark.slow

op = relax.op
Array = np.ndarray[Any, Any]
WEIGHTS = {AVX512_VNNI: (4, 16, 4), AVX512: (8, 16, 2), AVX_VNNI: (2, 8, 4), AVX2: (4, 8, 2)}
CPUS = tuple(WEIGHTS)
DATA, MIDDLE = (np.float32(0.03), 121), (np.float32(0.11), 0)


def cpu(name: str) -> Any:
    return cpu_of(name, cores=1)


class Model:
    """A Relax function in QDQ form that is written call by call."""

    def __init__(self, shape: tuple[int, ...], dtype: str = "uint8") -> None:
        self.rng, self.dtype = np.random.default_rng(1), dtype
        self.builder = relax.BlockBuilder()
        self.input = relax.Var("x", tensor_class()(shape, "float32"))

    def build(self, make: Callable[[Any], Any]) -> Any:
        with self.builder.function("main", [self.input]):
            with self.builder.dataflow():
                result = self.builder.emit_output(make(self.input))
            self.builder.emit_func_output(result)
        return self.builder.get()

    def quantised(self, x: Any, affine: tuple[Any, int]) -> Any:
        """Quantised and dequantised."""
        zero = affine[1] - (128 if self.dtype == "int8" else 0)
        constants = relax.const(affine[0]), relax.const(np.asarray(zero, self.dtype))
        q = self.builder.emit(op.quantize(x, *constants, out_dtype=self.dtype))
        return self.builder.emit(op.dequantize(q, *constants))

    def weight(self, shape: tuple[int, ...], axis: int) -> tuple[Any, Array, Array]:
        values = self.rng.integers(-128, 128, shape).astype("int8")
        scales = self.rng.uniform(0.001, 0.01, shape[axis]).astype("float32")
        zeros = relax.const(np.zeros(shape[axis], "int8"))
        return (
            self.builder.emit(op.dequantize(relax.const(values), relax.const(scales), zeros, axis=axis)),
            values,
            scales,
        )

    def bias(self, steps: Array, scales: Array) -> Any:
        zeros = relax.const(np.zeros(len(steps), "int32"))
        bias = self.builder.emit(op.dequantize(relax.const(steps), relax.const(scales), zeros, axis=0))
        return self.builder.emit(op.reshape(bias, (1, -1, 1, 1)))


def quantised(x: Array, affine: tuple[Any, int]) -> Array:
    return np.clip(np.rint(x / affine[0]) + affine[1], 0, 255)


def convolved(q: Array, weight: Array, strides: int, padding: int, groups: int) -> Array:
    padded = np.pad(q, ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2))
    windows = np.lib.stride_tricks.sliding_window_view(padded, weight.shape[2:], (2, 3))[:, :, ::strides, ::strides]
    apart = zip(np.split(windows, groups, 1), np.split(weight.astype("float64"), groups), strict=True)
    return np.concatenate([np.einsum("nchwpq,kcpq->nkhw", *each, optimize=True) for each in apart], 1)


def run(mod: Any, target: Any, x: Array, winograd: bool = False) -> tuple[Array, Any]:
    host = descriptor_of(target)
    resolution, policy = Resolution(host=host, chosen=None), Policy(strict=True)
    hub = Hub(target=target, host=host, resolution=resolution, policy=policy, layout="auto", winograd=winograd)
    executable = compile_module(mod, target, hub)
    report = hub.report()
    hub.close()
    return relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy(), report


CONVOLUTIONS = (  # size, channels, kernel, strides, groups, type
    (28, 3, 7, 2, 1, "uint8"),
    (23, 32, 3, 1, 1, "uint8"),  # rows that tiles do not divide
    (28, 24, 1, 1, 1, "int8"),
    (28, 32, 3, 2, 32, "uint8"),
    (9, 16, 3, 1, 16, "int8"),  # two outputs of each input
    (9, 24, 3, 1, 4, "uint8"),  # six inputs of a group, where instructions add up four
    (10, 64, 3, 2, 8, "uint8"),
    (7, 96, 1, 1, 2, "uint8"),
)


@pytest.mark.few(4)
@needs_tvm
@pytest.mark.parametrize(("convolution", "name"), covering(CONVOLUTIONS, here(*CPUS)))
def test_a_convolution_is_that_of_integers(convolution: tuple[int, int, int, int, int, str], name: str) -> None:
    size, channels, kernel, strides, groups, dtype = convolution
    model, outputs, padding = Model((1, channels, size, size), dtype), 32, kernel // 2
    steps = model.rng.integers(-5000, 5000, outputs).astype("int32")
    found: dict[str, Array] = {}

    def make(x: Any) -> Any:
        data = model.quantised(x, DATA)
        weight, found["weight"], found["scales"] = model.weight((outputs, channels // groups, kernel, kernel), 0)
        y = model.builder.emit(op.nn.conv2d(data, weight, strides=strides, padding=padding, groups=groups))
        y = model.builder.emit(op.add(y, model.bias(steps, found["scales"] * DATA[0])))
        return model.quantised(model.builder.emit(op.nn.relu(y)), MIDDLE)

    mod = model.build(make)
    x = np.random.default_rng(2).uniform(-3, 3, (1, channels, size, size)).astype("float32")
    result, report = run(mod, cpu(name), x)
    sums = convolved(quantised(x, DATA) - DATA[1], found["weight"], strides, padding, groups)
    sums = sums + steps.reshape(1, -1, 1, 1)
    factor = (DATA[0] * found["scales"] / MIDDLE[0]).astype("float32").reshape(1, -1, 1, 1)
    expected = np.clip(np.rint(sums.astype("float32") * factor), 0, 255)
    difference = np.abs(np.rint(result / MIDDLE[0]) - expected)
    assert difference.max() <= 1
    assert (difference > 0).mean() < 1e-3
    assert any(note.startswith("int8: 1 of 1 ") for note in report.notes), report.notes
    (kernel,) = (item for item in report.workloads if "int8" in item.name)
    assert kernel.rung == "template", kernel.skipped


@needs_tvm
@pytest.mark.parametrize(("rows", "name"), covering([1, 6, 37], here(*CPUS)))
@pytest.mark.few(4)
def test_a_product_with_a_turned_weight_is_that_of_integers(name: str, rows: int) -> None:
    model, found = Model((rows, 48)), dict[str, Array]()

    def make(x: Any) -> Any:
        data = model.quantised(x, DATA)
        weight, found["weight"], found["scales"] = model.weight((40, 48), 0)
        y = model.builder.emit(op.matmul(data, model.builder.emit(op.permute_dims(weight))))
        return model.quantised(y, (MIDDLE[0], 100))

    mod = model.build(make)
    x = np.random.default_rng(2).uniform(-3, 3, (rows, 48)).astype("float32")
    result, report = run(mod, cpu(name), x)
    sums = (quantised(x, DATA) - DATA[1]) @ found["weight"].astype("float64").T
    factor = (DATA[0] * found["scales"] / MIDDLE[0]).astype("float32")
    expected = np.clip(np.rint(sums.astype("float32") * factor) + 100, 0, 255) - 100
    assert np.abs(np.rint(result / MIDDLE[0]) - expected).max() == 0
    assert any(note.startswith("int8: 1 of 1 ") for note in report.notes)


@needs_tvm
def test_residual_additions_pooling_and_reshapes_between_integers_keep_to_one_step() -> None:
    name = best_here(CPUS)
    model = Model((1, 16, 8, 8))

    def make(x: Any) -> Any:
        data = model.quantised(x, DATA)
        weight, *_ = model.weight((16, 16, 3, 3), 0)
        y = model.quantised(model.builder.emit(op.nn.conv2d(data, weight, padding=1)), (MIDDLE[0], 128))
        y = model.quantised(model.builder.emit(op.nn.relu(model.builder.emit(op.add(y, data)))), MIDDLE)
        y = model.quantised(model.builder.emit(op.nn.max_pool2d(y, (2, 2), strides=2)), MIDDLE)
        y = model.quantised(model.builder.emit(op.nn.adaptive_avg_pool2d(y, (1, 1))), MIDDLE)
        y = model.quantised(model.builder.emit(op.reshape(y, (1, 16))), MIDDLE)
        last, *_ = model.weight((16, 16), 1)
        return model.builder.emit(op.matmul(y, last))

    mod = model.build(make)
    x = np.random.default_rng(2).uniform(-3, 3, (1, 16, 8, 8)).astype("float32")
    result, report = run(mod, cpu(name), x)
    plain = relax.VirtualMachine(tvm.compile(mod, cpu(name)), tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    assert np.abs(result - plain).max() <= MIDDLE[0] * 128 * 0.01 * 4
    assert any(note.startswith("int8: 2 of 2 ") for note in report.notes)
    functions = prepare(mod, cpu(name), layout="auto").functions.items()
    pooling = [function for variable, function in functions if "max_pool" in variable.name_hint]
    assert [str(buffer_kind(parameters(function)[0]).dtype) for function in pooling] == ["uint8"]


@needs_tvm
@pytest.mark.parametrize("name", [AMX, AVX512_VNNI])
def test_groups_between_convolutions_of_all_channels_have_the_instruction_of_these(name: str) -> None:
    model = Model((1, 128, 14, 14))

    def make(x: Any) -> Any:
        for groups in (1, 8, 1):
            weight, *_ = model.weight((128, 128 // groups, 1, 1), 0)
            x = model.builder.emit(op.nn.conv2d(model.quantised(x, DATA), weight, groups=groups))
        return x

    functions = prepare(model.build(make), cpu(name), layout="auto").functions
    names = [variable.name_hint for variable in functions if "conv2d_int8" in variable.name_hint]
    assert len(names) == 3
    assert all(("_amx" in each) == (name == AMX) for each in names)
    assert len([variable for variable in functions if "blocked" in variable.name_hint]) == 2  # at both ends


def test_what_stays_in_float_says_why() -> None:
    model, notes = Model((1, 32, 8, 8)), list[str]()

    def make(x: Any) -> Any:
        data = model.quantised(x, DATA)
        weight, *_ = model.weight((32, 8, 3, 3), 1)
        y = model.builder.emit(op.nn.conv2d(data, weight, groups=4))
        other, *_ = model.weight((32, 32, 3, 3), 0)
        return model.builder.emit(op.nn.conv2d(y, other))

    mod = model.build(make)
    kept = in_integers(mod, DotProduct(lanes=16, group=4), notes.append)
    assert kept is mod
    (note,) = notes
    assert note.startswith("int8: 0 of 2 convolutions and products")
    assert "scales along another axis than that of outputs" in note
    assert "only one of its operands is quantised" in note
    notes.clear()
    assert in_integers(mod, None, notes.append) is mod
    assert "no instruction" in notes[0]
    assert "stays float32" in notes[0]


@pytest.mark.few(1)
@needs_tvm
@pytest.mark.parametrize("groups", [1, 4, 32])
def test_without_an_instruction_convolutions_are_those_of_float32_with_rounding_behind_them(groups: int) -> None:
    """No tensor has 8 bits, and weights are constants: else images and weights keep layouts that nothing is fast in."""
    model, target = Model((1, 32, 9, 9)), tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 1})

    def make(x: Any) -> Any:
        for _ in range(2):
            weight, *_ = model.weight((32, 32 // groups, 3, 3), 0)
            y = model.builder.emit(op.nn.conv2d(model.quantised(x, DATA), weight, groups=groups))
            x = model.quantised(model.builder.emit(op.nn.relu(y)), MIDDLE)
        return x

    mod = model.build(make)
    x = np.random.default_rng(2).uniform(-3, 3, (1, 32, 9, 9)).astype("float32")
    result, report = run(mod, target, x)
    plain = relax.VirtualMachine(tvm.compile(mod, target), tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    steps = np.abs(np.rint((result - plain) / MIDDLE[0]))
    assert steps.max() <= 1
    assert (steps > 0).mean() < 0.01
    prepared = prepare(mod, target, layout="auto").functions.values()
    functions = [each for each in prepared if isinstance(each, tvm.tirx.PrimFunc)]
    assert {str(buffer_kind(each).dtype) for function in functions for each in parameters(function)} == {"float32"}
    convolutions = [item for item in report.workloads if item.name.startswith("fused") and "round" in item.name]
    assert convolutions
    assert all(item.rung == "template" for item in convolutions)


def test_kinds_without_a_kernel_are_counted() -> None:
    model, notes = Model((1, 16, 30)), list[str]()

    def make(x: Any) -> Any:
        weight, *_ = model.weight((32, 16, 3), 0)
        return model.builder.emit(op.nn.conv1d(model.quantised(x, DATA), weight))

    mod = model.build(make)
    assert in_integers(mod, DotProduct(lanes=16, group=4), notes.append) is mod
    (note,) = notes
    assert note.startswith("int8: 0 of 1 ") and note.endswith("1 in float32: there is no integer kernel for conv1d")


@needs_tvm
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.few(1)
def test_clipping_between_equal_scales_is_of_integers(dtype: str) -> None:
    """As XNNPACKQuantizer has it: a convolution is quantised before its activation, and again behind it."""
    name = best_here(CPUS)
    model = Model((1, 32, 28, 28), dtype)

    def make(x: Any) -> Any:
        weight, *_ = model.weight((32, 32, 1, 1), 0)
        y = model.quantised(model.builder.emit(op.nn.conv2d(model.quantised(x, DATA), weight)), (MIDDLE[0], 100))
        return model.quantised(model.builder.emit(op.clip(y, -1.0, 6.0)), (MIDDLE[0], 100))

    mod = model.build(make)
    x = np.random.default_rng(2).uniform(-3, 3, (1, 32, 28, 28)).astype("float32")
    result, report = run(mod, cpu(name), x)
    plain = relax.VirtualMachine(tvm.compile(mod, cpu(name)), tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    assert np.abs(result - plain).max() <= 1.01 * MIDDLE[0] and (np.abs(result - plain) > 0.01).mean() < 1e-3
    (kernel,) = (item for item in report.workloads if "conv2d" in item.name)
    assert kernel.name.count("quantize") <= 2, "what is clipped is quantised once, and dequantised for the output"


def test_signed_data_that_others_read_stay_signed() -> None:
    model, notes = Model((1, 32, 8, 8), "int8"), list[str]()

    def make(x: Any) -> Any:
        constants = relax.const(DATA[0]), relax.const(np.int8(3))
        q = model.builder.emit(op.quantize(x, *constants, out_dtype="int8"))
        weight, *_ = model.weight((32, 32, 3, 3), 0)
        y = model.builder.emit(op.nn.conv2d(model.builder.emit(op.dequantize(q, *constants)), weight))
        return relax.Tuple([y, q])

    in_integers(model.build(make), DotProduct(lanes=16, group=4), notes.append)
    assert "8 signed bits" in notes[0]


@needs_tvm
@pytest.mark.parametrize(
    ("name", "lanes", "group"), [(AVX512_VNNI, 16, 4), (AVX512, 16, 2), (AVX_VNNI, 8, 4), (AVX2, 8, 2)]
)
def test_the_instruction_is_what_the_target_has(name: str, lanes: int, group: int) -> None:
    assert dot_product_of(cpu(name)) == DotProduct(lanes=lanes, group=group)
    assert dot_product_of(cpu("x86-64-v2")) is None


@needs_tvm
@pytest.mark.parametrize(
    ("name", "code"),
    [
        (AVX512_VNNI, "vpdpbusd\t%zmm"),
        (AVX_VNNI, "vpdpbusd\t%ymm"),
        (AVX512, "vpmaddwd\t%zmm"),
        (AVX2, "vpmaddwd\t%ymm"),
    ],
)
def test_the_code_has_the_instruction_also_for_cpus_that_this_one_is_not(name: str, code: str) -> None:
    weight = te.placeholder((2, 1, 3, 3, *WEIGHTS[name]), "int8" if WEIGHTS[name][-1] == 4 else "int16")
    lanes = WEIGHTS[name][1]
    data = te.placeholder((1, 1, 14, 14, lanes), "uint8")
    function = te.create_prim_func([data, weight, conv2d_grouped(data, weight, padding=(1, 1, 1, 1))])
    fit = TemplateFit(main_module(function), cpu(name))
    assert fit.match is not None
    built = tvm.tirx.build(fit.by_default(fit.match).mod, target=cpu(name))
    operands = [line for line in built.inspect_source("asm").splitlines() if code.split("\t")[0] in line]
    assert any(code[-4:] in line for line in operands), operands[:3]


@needs_tvm
def test_a_network_of_integers_may_be_a_step_from_the_plain_one() -> None:
    model = Model((1, 32, 28, 28))

    def make(x: Any) -> Any:
        weight, *_ = model.weight((32, 32, 1, 1), 0)
        return model.builder.emit(op.nn.conv2d(model.quantised(x, DATA), weight))

    mod = model.build(make)
    assert types_of_verified(prepare(mod, cpu(AVX512_VNNI), layout="auto"))[-1] == "quantised"
    assert "quantised" not in types_of_verified(prepare(mod, cpu("x86-64-v2"), layout="auto"))
    assert tolerance(["float32", "quantised"], "narrow sums") > DATA[0]


@needs_tvm
def test_an_open_batch_is_computed_in_the_same_integers() -> None:
    name = best_here(CPUS)
    model, batch = Model((1, 32, 28, 28)), tvm.tirx.Var("batch", "int64")
    model.input = relax.Var("x", tensor_class()((batch, 32, 28, 28), "float32"))

    def make(x: Any) -> Any:
        weight, *_ = model.weight((32, 32, 3, 3), 0)
        y = model.builder.emit(op.nn.conv2d(model.quantised(x, DATA), weight, padding=1))
        return model.quantised(y, (MIDDLE[0], 128))

    mod = model.build(make)
    x = np.random.default_rng(2).uniform(-3, 3, (3, 32, 28, 28)).astype("float32")
    result, report = run(mod, cpu(name), x)
    fixed = [run(relax.transform.BindSymbolicVars({"batch": 1})(mod), cpu(name), each[None])[0] for each in x]
    assert np.array_equal(result, np.concatenate(fixed))
    assert any(note.startswith("int8: 1 of 1 ") for note in report.notes)
    (kernel,) = (item for item in report.workloads if "int8" in item.name)
    assert kernel.rung == "template", kernel.skipped


@needs_tvm
@pytest.mark.parametrize("batch", [1, "open"])
@pytest.mark.few(1)
def test_winograds_algorithm_gives_the_same_integers(batch: Any) -> None:
    name = best_here(CPUS)
    model = Model((1, 64, 56, 56))
    if batch == "open":
        model.input = relax.Var("x", tensor_class()((tvm.tirx.Var("batch", "int64"), 64, 56, 56), "float32"))

    def make(x: Any) -> Any:
        weight, *_ = model.weight((64, 64, 3, 3), 0)
        y = model.builder.emit(op.nn.conv2d(model.quantised(x, DATA), weight, padding=1))
        return model.quantised(y, (MIDDLE[0] * 3, 128))

    mod = model.build(make)
    x = np.random.default_rng(2).uniform(-3, 3, (1 if batch == 1 else 3, 64, 56, 56)).astype("float32")
    (result, report), (direct, _) = (run(mod, cpu(name), x, winograd) for winograd in (True, False))
    assert len(np.unique(result)) > 100
    assert np.array_equal(result, direct)
    (kernel,) = (item for item in report.workloads if "int8" in item.name)
    assert kernel.template == "winograd", (kernel.template, kernel.skipped)


@needs_tvm
def test_sums_too_long_to_be_exact_are_computed_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    from tunehub.compiler.winograd import cpu as module

    monkeypatch.setattr(module, "chosen_tile", lambda *_: 4)
    model = Model((1, 512, 8, 8))
    model.rng = type("Largest", (), {
        "integers": lambda _, low, high, shape: np.full(shape, high - 1), "uniform": model.rng.uniform,
    })()  # fmt: skip

    def make(x: Any) -> Any:
        weight, *_ = model.weight((32, 512, 3, 3), 0)
        y = model.builder.emit(op.nn.conv2d(model.quantised(x, DATA), weight, padding=1))
        return model.quantised(y, (MIDDLE[0] * 99, 128))

    x = np.random.default_rng(2).uniform(-3, 3, (1, 512, 8, 8)).astype("float32")
    _, report = run(model.build(make), cpu(best_here(CPUS)), x, winograd=True)
    (kernel,) = (item for item in report.workloads if "int8" in item.name)
    assert kernel.template == "conv2d"
