"""What serves random networks on a GPU beside TVM's own schedules, where there is none: compiled, measured on a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm.relax")

import msgspec
import tvm
from benchmarks import gpu_default
from benchmarks.gpu_default import (
    ComparedNetwork,
    MeasuredFunction,
    functions_of,
    main,
    measured_in,
    networks_of,
    summary,
    ways,
)
from benchmarks.gpu_default.ways import BuiltFunction
from benchmarks.random_cases.operators import NARROW, random_case
from click.testing import CliRunner

from tunehub.tir.nodes import shape_of

pytestmark = pytest.mark.slow

CPU = {"kind": "llvm"}


def _built(folder: Path, seconds: float = 3) -> None:
    (folder / "functions").mkdir(parents=True)
    command = ["build", str(folder / "networks.jsonl"), "--alone", "--seconds", str(seconds), "--seed", "3"]
    result = CliRunner().invoke(main, [*command, "--kinds", ",".join(NARROW)])
    assert result.exit_code == 0, result.output


def test_narrow_networks_have_few_of_something() -> None:
    for kind in NARROW:
        first, again = random_case(7, (kind,)), random_case(7, (kind,))
        assert str(first.mod) == str(again.mod) and not first.sizes
    shapes = [shape_of(var) or () for var in random_case(7, ("narrow product",)).mod["main"].params]
    assert min(min(shape) for shape in shapes) <= 16


def test_networks_are_compiled_in_each_way_without_a_gpu(tmp_path: Path) -> None:
    _built(tmp_path)
    networks, functions = networks_of(tmp_path), functions_of(tmp_path)
    assert networks and not [each.failed for each in networks if each.failed]
    assert {key for each in networks for key in (*each.functions, *each.default)} == set(functions)
    for key, function in functions.items():
        assert (function.served is None) == (ways.SERVED not in function.ways)
        assert ways.DEFAULT in function.ways
        assert {path.name for path in (tmp_path / "functions").glob(f"{key}.*.so")} == {
            f"{key}.{way}.so" for way in function.ways
        }


def test_kernels_are_not_compiled_again(tmp_path: Path) -> None:
    """TVM is given the machine code of a source that was compiled before."""
    pytest.importorskip("cuda.bindings.nvrtc")
    import tvm_ffi

    from tunehub.tir.cuda.nvrtc import CALLBACK, build_plain, source_of

    before, source = tvm_ffi.get_global_func(CALLBACK), source_of(build_plain())
    ways._machine_code(tmp_path, source).write_bytes(b"of before")
    try:
        ways.use_machine_code(tmp_path)
        compile_cuda = tvm_ffi.get_global_func(CALLBACK)
        assert bytes(compile_cuda(source)) == b"of before"
        assert bytes(compile_cuda(source + " ")).startswith(b"\x7fELF")
    finally:
        tvm_ffi.register_global_func(CALLBACK, before, override=True)


@pytest.mark.sweep
def test_libraries_are_compared_and_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU: each way is TVM's own loops."""

    def on_cpu(mod: Any, target: Any, *_: Any, **__: Any) -> Any:
        for way in (ways.DEFAULT, ways.SERVED):
            yield way, lambda: (mod["main"], 1e-6)

    export = ways._export
    monkeypatch.setattr(ways, "_ways", on_cpu)
    monkeypatch.setattr(ways, "_export", lambda made, _, path: export(made, tvm.target.Target(CPU), path))
    monkeypatch.setattr(gpu_default, "_device", tvm.cpu)
    _built(tmp_path, 2)
    out = tmp_path / "out.jsonl"
    result = CliRunner().invoke(main, ["measure", str(tmp_path), str(out), "--alone", "--seconds", "20"])
    assert result.exit_code == 0, result.output
    found = measured_in(out)
    assert found and {each.key for each in found} <= set(functions_of(tmp_path))
    for each in found:
        assert each.apart == {ways.SERVED: 0.0} and not each.failed
        assert all(len(samples) > 1 and min(samples) > 0 for samples in each.run_s.values())


def test_what_takes_longer_is_named(tmp_path: Path) -> None:
    """A function that serves no better, and a network that is slower for what is turned around a faster one."""
    out, folder = tmp_path / "out.jsonl", tmp_path / "functions"
    folder.mkdir()
    fast, slow = (1e-6, 1.01e-6, 1.02e-6), (2e-6, 2.01e-6, 2.02e-6)
    times = {"a": {"default": fast, "served": slow}, "b": {"default": slow, "served": fast}, "turn": {"default": slow}}
    for key, run_s in times.items():
        served = "cuda_tiles" if "served" in run_s else None
        about = BuiltFunction(
            key=key, name=key, asked=True, shapes=[((2,), "float32")], served=served, ways={"default": 1e-6}
        )
        (folder / f"{key}.json").write_bytes(msgspec.json.encode(about))
    network = ComparedNetwork(seed=1, kind="product", precision="float16", shapes=[])
    networks = [
        msgspec.structs.replace(network, functions={"b": 1, "turn": 2}, default={"b": 1}),
        msgspec.structs.replace(network, seed=2, functions={"b": 1}, default={"b": 1, "turn": 1}),
        msgspec.structs.replace(network, seed=3, functions={"not measured": 1}, default={"b": 1}),
    ]
    (tmp_path / "networks.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, networks)))
    lines = [MeasuredFunction(key=key, run_s=run_s, apart={"served": 0.5}) for key, run_s in times.items()]
    out.write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    found = summary(tmp_path, out)
    assert (found["functions"], found["networks"]) == (2, 2)
    (function,), (whole,), (otherwise,) = found["slower"], found["slower networks"], found["faster otherwise"]
    assert function.startswith("1.99 times: a ") and whole.startswith("2.50 times: 1 ")
    assert otherwise.startswith("1.99 times: a ") and len(found["apart"]) == 3
    result = CliRunner().invoke(main, ["summary", str(tmp_path), str(out)])
    assert json.loads(result.output) == found


def test_what_ends_its_process_is_not_tried_again(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    pending = tmp_path / "out.jsonl.pending"
    pending.write_bytes(b'{"key":"k","failed":{"all":"it does not come back"}}\n')
    gpu_default._keep_pending(out)
    assert [each.key for each in measured_in(out)] == ["k"] and not pending.exists()
