"""Operands in bfloat16: which tensors are kept so, and whole networks by them."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

tvm = pytest.importorskip("tvm")
relax = pytest.importorskip("tvm.relax")

import tunehub  # noqa: E402
from tunehub.compiler.pipeline import compile_module  # noqa: E402
from tunehub.compiler.preparing import prepare  # noqa: E402
from tunehub.graph.layout.costs import ConvWorkload  # noqa: E402
from tunehub.graph.layout.narrowing import Narrowing, doubt  # noqa: E402
from tunehub.kernels.cpu import Machine  # noqa: E402
from tunehub.kernels.cpu.base import Rates  # noqa: E402
from tunehub.target.machine_profile import PublishedProfile  # noqa: E402
from tunehub.tir.nodes import buffer_kind, parameters  # noqa: E402
from tunehub_registry.machine_profile import MachineProfile  # noqa: E402

from ....cpu_features import AMX, AVX2, AVX512_BF16, cpu, here, needs, needs_tvm, runs_here  # noqa: E402

pytestmark = pytest.mark.slow

op = relax.op
COOPERLAKE, SAPPHIRE_RAPIDS = cpu(AVX512_BF16), cpu(AMX)
MACHINE = Machine(vector=16, registers=32, cores=2)
Nets = Any
INSTRUCTIONS = {AVX512_BF16: "vdpbf16ps", AMX: "tdpbf16ps"}


def residual(nets: Nets, batch: Any = 1) -> Any:
    """Convolutions with a residual connection, then products of which two read the same tensor, and a norm does."""

    def make(b: Any, x: Any) -> Any:
        def conv(data: Any, outputs: int, inputs: int, size: int) -> Any:
            weight = nets.const(outputs, inputs, size, size)
            return b.emit(op.nn.conv2d(data, weight, padding=size // 2))

        first = b.emit(op.nn.relu(conv(x, 64, 32, 1)))
        second = b.emit(op.nn.relu(conv(first, 64, 64, 1)))
        joined = b.emit(op.nn.relu(b.emit(op.add(conv(second, 64, 64, 1), first))))
        rows = b.emit(op.reshape(joined, (batch, 64, 196)))
        left, right = (b.emit(op.matmul(rows, nets.const(196, 196))) for _ in range(2))
        summed = b.emit(op.add(b.emit(op.add(left, right)), rows))
        return b.emit(op.nn.layer_norm(summed, nets.const(196), nets.const(196), axes=[-1]))

    return nets.build(make, (batch, 32, 14, 14))


def signatures(mod: Any) -> dict[str, list[str]]:
    """The element types of the parameters of the kernels, by name."""
    return {
        str(variable.name_hint): [str(buffer_kind(each).dtype) for each in parameters(function)]
        for variable, function in mod.functions.items()
        if isinstance(function, tvm.tirx.PrimFunc)
    }


@needs_tvm
def test_activations_stay_narrow_between_operators_of_pairs(nets: Nets) -> None:
    found = signatures(prepare(residual(nets), COOPERLAKE, layout="auto", precision="bf16"))
    convolutions = sorted(types for name, types in found.items() if "conv2d" in name)
    assert convolutions == [
        ["bfloat16"] * 3,
        ["bfloat16"] * 3 + ["float32"],  # the residual is read narrow; a transform reads the result
        ["float32", "float32", "bfloat16"],  # the image is plain; the next convolution reads the result
    ]
    norm = next(types for name, types in found.items() if "layer_norm" in name and "dense" not in name)
    assert norm[0] == "float32"


def compiled(mod: Any, target: Any, hub: Any) -> Any:
    """``mod``, compiled by ``hub``; nothing may have been left to TVM."""
    executable = compile_module(mod, target, hub)
    assert not hub.failures
    return executable


def assembly(executable: Any) -> str:
    """The code of all kernels."""
    modules = (module for module in executable.mod.imports if module.kind == "llvm")
    return "\n".join(str(module.inspect_source("asm")) for module in modules)


def outputs(mod: Any, target: Any, hub: Any, data: Any) -> Any:
    """What ``mod``, compiled by ``hub``, makes of ``data``."""
    executable = compiled(mod, target, hub)
    return relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(data)).numpy()


def check_near(found: Any, expected: Any) -> None:
    """Off by more than float32 is, and by less than documents promise."""
    assert 1e-6 < np.abs(found - expected).max() / np.abs(expected).max() < 2e-2


def images(batch: int) -> Any:
    return np.random.default_rng(batch).standard_normal((batch, 32, 14, 14)).astype("float32")


def rounded(hub: Any) -> int:
    """How many functions multiply in bfloat16, by what the report says."""
    (note,) = hub.notes
    found = re.fullmatch(r"precision=\w+: (\d+) functions multiply operands that are rounded to bfloat16.*", note)
    assert found is not None, note
    return int(found[1])


@needs_tvm
@pytest.mark.parametrize(("model", "count"), [(AVX512_BF16, 4), (AMX, 2)])
@pytest.mark.few(1)
def test_a_network_in_bfloat16_is_of_its_instructions(nets: Nets, make_hub: Any, model: str, count: int) -> None:
    """Three convolutions and two products that became one. Of tiles are those whose channels come in blocks of 32."""
    hub = make_hub(layout="auto", precision="bf16")
    executable = compiled(residual(nets), cpu(model), hub)
    assert rounded(hub) >= count
    hub.check_products()
    assert INSTRUCTIONS[model] in assembly(executable)


@needs_tvm
@pytest.mark.parametrize("model", here(*INSTRUCTIONS))
def test_a_network_in_bfloat16_is_near_that_in_float32(nets: Nets, make_hub: Any, model: str) -> None:
    mod = residual(nets)
    wide, narrow = (make_hub(layout="auto", precision=precision) for precision in ("float32", "bf16"))
    expected, found = (outputs(mod, cpu(model), hub, images(1)) for hub in (wide, narrow))
    check_near(found, expected)


@needs_tvm
@pytest.mark.sweep  # an attention is in every run: test_narrow_attention.py
@pytest.mark.parametrize("model", here(*INSTRUCTIONS))
def test_networks_in_bfloat16_are_verified_as_such(nets: Nets, model: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tunehub.compile(residual(nets), cpu(model), precision="bf16", layout="auto", verify="always")
    texts = " ".join(str(each.message) for each in caught)
    assert "differs" not in texts
    assert "failed" not in texts


@needs_tvm
@pytest.mark.parametrize("model", [AVX512_BF16, AMX])
@pytest.mark.few(1)
def test_an_open_batch_is_computed_in_bfloat16(nets: Nets, make_hub: Any, model: str) -> None:
    mod, plain = residual(nets, tvm.tirx.Var("n", "int64")), make_hub(layout="auto")
    hub = make_hub(layout="auto", precision="bf16")
    executable = compiled(mod, cpu(model), hub)
    assert rounded(hub) >= (4 if model == AVX512_BF16 else 2)
    hub.check_products()
    assert any(each in assembly(executable) for each in INSTRUCTIONS.values())
    if runs_here(model):
        wide = compiled(mod, cpu(model), plain)
        for batch in (1, 3, 8):
            data = tvm.runtime.tensor(images(batch))
            machines = (relax.VirtualMachine(each, tvm.cpu()) for each in (executable, wide))
            check_near(*(machine["main"](data).numpy() for machine in machines))


def beginning(nets: Nets, batch: Any = 1) -> Any:
    """A convolution of an image with three channels, and two in groups that blocks of 16 channels cut."""

    def make(b: Any, x: Any) -> Any:
        stem = b.emit(op.nn.relu(b.emit(op.nn.conv2d(x, nets.const(40, 3, 7, 7), strides=2, padding=3))))
        first = b.emit(op.nn.relu(b.emit(op.nn.conv2d(stem, nets.const(72, 20, 1, 1), groups=2))))
        second = b.emit(op.nn.conv2d(first, nets.const(72, 36, 3, 3), groups=2, padding=1))
        return b.emit(op.nn.relu(b.emit(op.add(second, first))))

    return nets.build(make, (batch, 3, 30, 30))


@needs_tvm
def test_images_and_groups_are_read_in_tiles(nets: Nets) -> None:
    found = prepare(beginning(nets), SAPPHIRE_RAPIDS, layout="auto", precision="bf16").functions.items()
    shapes = [
        [(*map(int, buffer_kind(each).shape), str(buffer_kind(each).dtype)) for each in parameters(function)[:2]]
        for variable, function in found
        if "conv2d_amx" in str(variable.name_hint)
    ]
    assert shapes == [
        [(1, 1, 30, 30, 4, "bfloat16"), (2, 1, 7, 1, 1, 16, 32, 2, "bfloat16")],
        [(1, 2, 15, 15, 32, "bfloat16"), (3, 2, 1, 1, 1, 16, 32, 2, "bfloat16")],
        [(1, 3, 15, 15, 32, "bfloat16"), (3, 3, 3, 3, 1, 16, 32, 2, "bfloat16")],
    ]


@needs_tvm
def test_images_and_groups_are_read_in_pairs(nets: Nets) -> None:
    found = signatures(prepare(beginning(nets), COOPERLAKE, layout="auto", precision="bf16"))
    convolutions = sorted(types for name, types in found.items() if "conv2d" in name)
    assert convolutions == [
        ["bfloat16"] * 3,
        ["bfloat16"] * 3,
        ["bfloat16"] * 2 + ["float32"],  # adds what it reads; a transform reads the result
    ]


@needs_tvm
@pytest.mark.parametrize(
    ("model", "open_batch"),
    [(AVX512_BF16, False), (AVX512_BF16, True), (AMX, False), (AMX, True)],
)
@pytest.mark.few(2)
def test_images_and_groups_in_bfloat16_are_right(nets: Nets, make_hub: Any, model: str, open_batch: bool) -> None:
    mod = beginning(nets, tvm.tirx.Var("n", "int64") if open_batch else 1)
    hub, plain = make_hub(layout="auto", precision="bf16"), make_hub(layout="auto")
    executable = compiled(mod, cpu(model), hub)
    assert {each.rung for each in hub.workloads if "conv2d" in each.name} == {"template"}
    assert rounded(hub) >= (2 if open_batch and model != AMX else 3)
    if runs_here(model):
        wide = compiled(mod, cpu(model), plain)
        for batch in (1, 3) if open_batch else (1,):
            data = np.random.default_rng(batch).standard_normal((batch, 3, 30, 30)).astype("float32")
            machines = (relax.VirtualMachine(each, tvm.cpu()) for each in (executable, wide))
            check_near(*(machine["main"](tvm.runtime.tensor(data)).numpy() for machine in machines))


def inverted(nets: Nets) -> Any:
    """A depthwise convolution between two of 1×1, as in MobileNetV2."""

    def make(b: Any, x: Any) -> Any:
        wide = b.emit(op.clip(b.emit(op.nn.conv2d(x, nets.const(64, 32, 1, 1))), 0.0, 6.0))
        weight = nets.const(64, 1, 3, 3)
        deep = b.emit(op.nn.relu(b.emit(op.nn.conv2d(wide, weight, padding=1, strides=2, groups=64))))
        return b.emit(op.nn.conv2d(deep, nets.const(64, 64, 1, 1)))

    return nets.build(make, (1, 32, 14, 14))


@needs_tvm
def test_depthwise_convolutions_read_and_write_bfloat16_between_those_by_amx(nets: Nets) -> None:
    found = signatures(prepare(inverted(nets), SAPPHIRE_RAPIDS, layout="auto", precision="bf16"))
    (depthwise,) = (types for name, types in found.items() if "depthwise" in name)
    assert depthwise == ["bfloat16", "float32", "bfloat16"]


@needs_tvm
@pytest.mark.parametrize("model", INSTRUCTIONS)
def test_depthwise_convolutions_of_bfloat16_are_right(
    nets: Nets, make_hub: Any, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setattr(Narrowing, "depthwise", True)
    mod, hub, plain = inverted(nets), make_hub(layout="auto", precision="bf16"), make_hub(layout="auto")
    executable = compiled(mod, cpu(model), hub)
    (depthwise,) = (each for each in hub.workloads if "depthwise" in each.name)
    assert (depthwise.rung, depthwise.template) == ("template", "depthwise")
    if runs_here(model):
        expected, data = outputs(mod, cpu(model), plain, images(1)), tvm.runtime.tensor(images(1))
        check_near(relax.VirtualMachine(executable, tvm.cpu())["main"](data).numpy(), expected)


@needs(AVX2)
def test_a_cpu_without_the_instruction_computes_in_float32_and_the_report_says_so(nets: Nets, make_hub: Any) -> None:
    mod, target = residual(nets), cpu(AVX2)
    wide, narrow = (make_hub(layout="auto", precision=precision) for precision in ("float32", "bf16"))
    assert np.array_equal(*(outputs(mod, target, hub, images(1)) for hub in (wide, narrow)))
    assert "nothing is rounded" in " ".join(narrow.notes)


@needs_tvm
def test_a_profile_may_say_that_it_does_not_pay() -> None:
    slow = Machine(vector=16, registers=32, cores=2, rates=Rates(pairs=0.5))
    assert doubt(COOPERLAKE, MACHINE) is None
    assert "only 0.5 times as fast" in str(doubt(COOPERLAKE, slow))


@needs_tvm
def test_auto_rounds_where_it_is_known_to_be_faster() -> None:
    known = Machine(vector=16, registers=32, cores=2, rates=Rates(pairs=1.8), profile="the profile of llvm-x 1")
    slow = Machine(vector=16, registers=32, cores=2, rates=Rates(pairs=0.9), profile="your own profile of 2026-11-23")
    assert "without a profile" in str(doubt(COOPERLAKE, MACHINE, asked=False))
    assert doubt(COOPERLAKE, known, asked=False) is None
    assert "only 0.9 times as fast by your own profile of 2026-11-23" in str(doubt(COOPERLAKE, slow, asked=False))
    assert doubt(SAPPHIRE_RAPIDS, MACHINE, asked=False) is None
    assert "lacks" in str(doubt(tvm.target.Target({"kind": "llvm", "mcpu": "znver3"}), known, asked=False))


def profile_of(target: Any) -> MachineProfile:
    return MachineProfile(
        cpu=str(target.attrs["mcpu"]), mattr=(), cores=2, measured="2026-11-23", multiply_add_s=2.8e-10,
        dependent_s=1.1e-9, memory_bytes=2e10, region_s=3e-6, pairs_s=2.8e-10,
    )  # fmt: skip


@needs_tvm
def test_auto_goes_by_the_profile_of_the_package(
    nets: Nets, make_hub: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path))
    mod = residual(nets)
    wide, unknown, known, slow = (make_hub(layout="auto", precision=p) for p in ("float32", "auto", "auto", "auto"))
    fast = profile_of(COOPERLAKE)
    known.published_profile = PublishedProfile(profile=fast, package="llvm-own 0.1.0")
    slow.published_profile = PublishedProfile(profile=replace(fast, pairs_s=6e-10), package="llvm-own 0.2.0")
    made = [compiled(mod, COOPERLAKE, hub) for hub in (wide, unknown, known, slow)]
    assert "precision=auto: nothing is rounded: whether pairs are faster is not known" in " ".join(unknown.notes)
    assert "rules go by the profile of llvm-own 0.1.0" in " ".join(known.notes)
    assert "4 functions multiply operands that are rounded" in " ".join(known.notes)
    assert "nothing is rounded: products of pairs are only 0.84 times as fast by the profile of" in " ".join(slow.notes)
    if runs_here(AVX512_BF16):
        data = tvm.runtime.tensor(images(1))
        machines = (relax.VirtualMachine(each, tvm.cpu()) for each in made)
        expected, left, rounded, same = (machine["main"](data).numpy() for machine in machines)
        assert np.array_equal(left, expected)
        check_near(rounded, expected)
        assert np.allclose(same, expected, atol=1e-5 * np.abs(expected).max())


@needs_tvm
def test_auto_rounds_with_amx_whatever_a_profile_says_of_pairs(
    nets: Nets, make_hub: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path))
    hub = make_hub(layout="auto", precision="auto")
    hub.published_profile = PublishedProfile(
        profile=replace(profile_of(SAPPHIRE_RAPIDS), pairs_s=6e-10), package="llvm-own 0.2.0"
    )
    compiled(residual(nets), SAPPHIRE_RAPIDS, hub)
    assert "functions multiply operands that are rounded to bfloat16" in " ".join(hub.notes)


def test_convolutions_that_winograd_makes_faster_stay_in_float32() -> None:
    def conv(size: int, channels: int, kernel: int = 3) -> ConvWorkload:
        return ConvWorkload(
            batch=1, in_channels=channels, out_channels=channels, in_size=(size, size), out_size=(size, size),
            kernel=(kernel, kernel),
        )  # fmt: skip

    beside, alone = (Narrowing(machine=MACHINE, winograd=winograd) for winograd in (True, False))
    assert not beside.conv(conv(56, 64), 16, 16)
    assert alone.conv(conv(56, 64), 16, 16)
    assert beside.conv(conv(7, 512), 16, 16)
    assert beside.conv(conv(56, 64, 1), 16, 16)
    assert not beside.conv(conv(56, 64, 1), 0, 16)  # a plain image has no pairs side by side
    assert not beside.conv(conv(56, 64, 1), 16, 8)


def test_plain_images_and_groups_have_pairs_where_whole_ones_are_there() -> None:
    def conv(inputs: int, kernel: int, groups: int = 1, dilation: int = 1) -> ConvWorkload:
        return ConvWorkload(
            batch=1, in_channels=inputs, out_channels=64, in_size=(56, 56), out_size=(56, 56), kernel=(kernel, kernel),
            groups=groups, dilation=(dilation, dilation),
        )  # fmt: skip

    rule = Narrowing(machine=MACHINE, winograd=True)
    assert rule.rows(conv(3, 7), 16)
    assert rule.rows(conv(3, 3), 16)
    assert not rule.rows(conv(3, 1), 16)  # half of each pair would be zeros
    assert not rule.rows(conv(3, 7, dilation=2), 16)
    assert not rule.rows(conv(3, 7), 8)
    assert rule.conv(conv(12, 1, groups=2), 8, 16)
    assert not rule.conv(conv(10, 1, groups=2), 8, 16)  # five inputs in a group
    assert not Narrowing(machine=replace(MACHINE, rates=Rates(pairs=1.0)), winograd=True).rows(conv(3, 7), 16)


def joined(nets: Nets) -> Any:
    """Two convolutions joined, of which windows have the largest, and a convolution reads both."""

    def make(b: Any, x: Any) -> Any:
        sides = [b.emit(op.nn.relu(b.emit(op.nn.conv2d(x, nets.const(32, 32, 1, 1))))) for _ in range(2)]
        both = b.emit(op.concat(sides, axis=1))
        most = b.emit(op.nn.max_pool2d(both, (3, 3), strides=(2, 2), ceil_mode=True))
        wide = b.emit(op.nn.conv2d(both, nets.const(64, 64, 1, 1), strides=2))
        return b.emit(op.add(b.emit(op.nn.conv2d(most, nets.const(64, 64, 1, 1))), wide))

    return nets.build(make, (1, 32, 14, 14))


@needs_tvm
def test_what_is_joined_or_pooled_for_tiles_is_rounded_before(nets: Nets) -> None:
    found = signatures(prepare(joined(nets), SAPPHIRE_RAPIDS, layout="auto", precision="bf16"))
    assert [types for name, types in found.items() if "concatenate" in name] == [["bfloat16"] * 3]
    assert [types for name, types in found.items() if "max_pool" in name] == [["bfloat16"] * 2]


@needs_tvm
@pytest.mark.parametrize("how", [{"padding": (0, 1, 0, 1), "ceil_mode": True}, {"padding": (1, 1, 1, 1)}])
def test_maxima_of_bfloat16_are_those_of_float32(how: Any) -> None:
    import ml_dtypes
    from tvm import te

    from tunehub.kernels.te import blocked

    data = np.random.default_rng(0).standard_normal((1, 1, 14, 13, 16)).astype(ml_dtypes.bfloat16)
    x, wide = te.placeholder(data.shape, "bfloat16"), te.placeholder(data.shape, "float32")
    whole: dict[str, Any] = {"pool_size": (3, 3), "strides": (2, 2), "padding": how["padding"], "dilation": (1, 1)}
    expected = blocked.pool2d_blocked(wide, kind="max", **whole, ceil_mode=how.get("ceil_mode", False))
    size = (int(expected.shape[2]), int(expected.shape[3]))
    narrow = blocked.max_pool2d_narrow(x, **whole, size=size)
    found = []
    for tensors, array in ((x, narrow), data), ((wide, expected), data.astype("float32")):
        function = te.create_prim_func(tensors).with_attr("global_symbol", "main")
        output = tvm.runtime.tensor(np.zeros((1, 1, *size, 16), "float32"))
        tvm.compile(tvm.IRModule({"main": function}), target="llvm")["main"](tvm.runtime.tensor(array), output)
        found.append(output.numpy())
    np.testing.assert_array_equal(*found)
