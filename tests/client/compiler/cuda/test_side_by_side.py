"""Kernels compiled ahead by threads. No GPU: TVM's runtime for CUDA, which would ask for machine code, is played."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
import tvm_ffi
from tvm import relax, te
from tvm.support import nvcc
from tvm.tirx.compilation_pipeline import PIPELINE_MAP

from tunehub.compiler import pipeline
from tunehub.compiler.artifacts.store import ArtifactStore
from tunehub.compiler.cuda import side_by_side
from tunehub.compiler.cuda.side_by_side import SideBySide, dealt, lowered_apart
from tunehub.compiler.hub import open_hub
from tunehub.compiler.verify.session import VerifySession, with_nvrtc
from tunehub.compiler.verify.static import StaticVerifier
from tunehub.exceptions import HubWarning
from tunehub.tir.cuda import nvrtc
from tunehub.tir.lowering import PIPELINE
from tunehub.tir.nodes import main_module, tensor_class

pytestmark = pytest.mark.slow

TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
HOPPER = {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024, "thread_warp_size": 32}
HOPPER |= {"max_shared_memory_per_block": 232448}
CALLBACK, BUILD = "tvm_callback_cuda_compile", "target.build.cuda"


def _module(kernels: int) -> Any:
    return tvm.IRModule({f"f{number}": _function(number) for number in range(kernels)})


def _plain(number: int) -> Any:
    data = te.placeholder((64,), name="data")
    result = te.compute((64,), lambda i: data[i] + float(number), name="result")
    return te.create_prim_func([data, result]).with_attr("global_symbol", f"shape{number}")


def _function(number: int) -> Any:
    schedule = tvm.s_tir.Schedule(main_module(_plain(number)))
    blocks, threads = schedule.split(schedule.get_loops(schedule.get_sblock("result"))[0], [None, 32])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(threads, "threadIdx.x")
    return schedule.mod["main"].with_attr("global_symbol", f"f{number}")


class _Cuda:
    """As TVM with CUDA: when a runtime module is made the callback is asked for its machine code."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []  # source and the thread
        self.got: list[bytes] = []
        self._build = tvm_ffi.get_global_func(BUILD)

    def compile(self, source: Any) -> bytes:
        self.asked.append((str(source), threading.current_thread().name))
        target = tvm.target.Target.current(allow_none=True)
        return f"{target.attrs['arch']} {len(str(source))}".encode()

    def build(self, mod: Any, target: Any) -> Any:
        made = self._build(mod, target)
        with target:
            self.got.append(bytes(tvm_ffi.get_global_func(CALLBACK)(made.inspect_source())))
        return made


@pytest.fixture
def cuda() -> Iterator[_Cuda]:
    found, callback, build = _Cuda(), tvm_ffi.get_global_func(CALLBACK), tvm_ffi.get_global_func(BUILD)
    tvm_ffi.register_global_func(CALLBACK, found.compile, override=True)
    tvm_ffi.register_global_func(BUILD, found.build, override=True)
    try:
        yield found
    finally:
        tvm_ffi.register_global_func(CALLBACK, callback, override=True)
        tvm_ffi.register_global_func(BUILD, build, override=True)


def _built(kernels: int, monkeypatch: pytest.MonkeyPatch, compiler: SideBySide) -> Any:
    monkeypatch.setitem(PIPELINE_MAP, PIPELINE, compiler.lowering(PIPELINE_MAP[PIPELINE]))
    return tvm.tirx.build(_module(kernels), target=TARGET)


def test_each_kernel_is_compiled_once_by_a_thread(cuda: _Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = SideBySide(3)
    library = _built(7, monkeypatch, compiler)
    compiler.close()
    assert len(library.imports) == len(cuda.asked) == 3
    assert cuda.got == [f"sm_80 {len(part.inspect_source())}".encode() for part in library.imports]
    assert threading.current_thread().name not in {thread for _, thread in cuda.asked}
    defined = "".join(source for source, _ in cuda.asked)
    assert all(f"f{number}_kernel" in defined for number in range(7))


def test_tvm_asks_its_own_callback_again_afterwards(cuda: _Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = SideBySide(2)
    _built(4, monkeypatch, compiler)
    compiler.close()
    before = len(cuda.asked)
    with TARGET:
        tvm_ffi.get_global_func(CALLBACK)("source of another")
    assert cuda.asked[before:] == [("source of another", threading.current_thread().name)]


def test_what_does_not_compile_raises_what_the_callback_raises(cuda: _Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> bytes:
        raise ValueError("a kernel that NVRTC refuses")

    tvm_ffi.register_global_func(CALLBACK, refuse, override=True)
    with pytest.raises(Exception, match="a kernel that NVRTC refuses"):
        _built(4, monkeypatch, SideBySide(2))


def test_few_kernels_are_one_module(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(_built(3, monkeypatch, SideBySide(8)).imports) == 1


def test_a_module_for_a_cpu_is_left_alone() -> None:
    target = tvm.target.Target("llvm")
    mod = tvm.IRModule({v: f.with_attr("target", target) for v, f in _module(8).functions.items()})
    assert dealt(mod, 8).same_as(mod)


def _bound(kernels: int) -> Any:
    target = tvm.target.Target(TARGET, host="llvm")
    return tvm.tirx.transform.BindTarget(target)(_module(kernels))


def test_functions_are_lowered_apart_as_together() -> None:
    lower = PIPELINE_MAP[PIPELINE]()[0]
    mod, context = _bound(3), tvm.transform.PassContext(config={"tirx.disable_vectorize": True})
    with context:
        together = lower(mod)
    seen: list[Any] = []

    def noted(part: Any) -> Any:
        seen.append((len(part.functions), dict(tvm.transform.PassContext.current().config)))
        return lower(part)

    apart = lowered_apart(noted, mod, context, 2)
    assert seen == [(1, {"tirx.disable_vectorize": True})] * 3
    assert len(together.functions) == 6
    assert {str(v.name_hint) for v in apart.functions} == {str(v.name_hint) for v in together.functions}
    for number in range(3):
        ours, whole = ({str(v.name_hint): f for v, f in each.functions.items()} for each in (apart, together))
        tvm.ir.assert_structural_equal(ours[f"f{number}_kernel"], whole[f"f{number}_kernel"])
        tvm.ir.assert_structural_equal(ours[f"f{number}"], whole[f"f{number}"], map_free_vars=True)


def test_kernels_are_finalised_once_each_and_as_in_one_module(monkeypatch: pytest.MonkeyPatch) -> None:
    finalised: list[list[str]] = []
    lower, host, device = PIPELINE_MAP[PIPELINE]()

    def finalize() -> Any:
        @tvm.transform.module_pass(opt_level=0)  # type: ignore[untyped-decorator]
        def counted(mod: Any, _context: Any) -> Any:
            finalised.append(sorted(str(each.name_hint) for each in mod.functions))
            return device()(mod)

        return counted

    sources = []
    for threads in (1, 3):
        finalised.clear()
        monkeypatch.setitem(PIPELINE_MAP, PIPELINE, SideBySide(threads).lowering(lambda: (lower, host, finalize)))
        built = tvm.tirx.build(_module(7), target=TARGET)
        sources.append({line for part in built.imports for line in part.inspect_source().splitlines()})
        names = [f"f{number}_kernel" for number in range(7)]
        assert sorted(each for each in finalised if each != ["main_kernel"]) == (  # that of the header
            [names] if threads == 1 else [[name] for name in names]
        )
    assert sources[0] == sources[1]


def test_what_is_for_a_host_is_lowered_as_one_beside_the_kernels() -> None:
    """Models with open dimensions have functions that compute shapes."""
    on_host = tvm.tirx.transform.BindTarget(tvm.target.Target("llvm", host="llvm"))
    shapes = on_host(tvm.IRModule({f"shape{n}": _plain(n) for n in range(2)}))
    whole = tvm.IRModule({**dict(_bound(2).functions.items()), **dict(shapes.functions.items())})
    seen: list[list[str]] = []

    def noted(part: Any) -> Any:
        seen.append(sorted(str(variable.name_hint) for variable in part.functions))
        return PIPELINE_MAP[PIPELINE]()[0](part)

    found = lowered_apart(noted, whole, tvm.transform.PassContext(), 2)
    assert sorted(seen) == [["f0"], ["f1"], ["shape0", "shape1"]]
    expected = {"f0", "f0_kernel", "f1", "f1_kernel", "shape0", "shape1"}
    assert {str(variable.name_hint) for variable in found.functions} == expected


def test_kernels_of_one_name_are_lowered_together() -> None:
    """Apart, the kernel of one function would have the name of another function."""
    one = _bound(1)
    variable, function = next(iter(one.functions.items()))
    mod = tvm.IRModule({variable: function, "f0_kernel": function.with_attr("global_symbol", "f0_kernel")})
    lowered = lowered_apart(PIPELINE_MAP[PIPELINE]()[0], mod, tvm.transform.PassContext(), 2)
    assert len({str(each.name_hint) for each in lowered.functions}) == 4


def test_one_thread_and_instruments_see_the_whole_module() -> None:
    mod, sizes = _bound(2), list[int]()

    def noted(part: Any) -> Any:
        sizes.append(len(part.functions))
        return part

    lowered_apart(noted, mod, tvm.transform.PassContext(), 1)
    lowered_apart(noted, mod, tvm.transform.PassContext(instruments=[tvm.ir.instrument.PassTimingInstrument()]), 2)
    assert sizes == [2, 2]


@pytest.mark.parametrize(("quick", "expected"), [(b"quick", b"quick"), (None, b"whole")])
def test_in_place_of_tvms_own_callback_headers_are_left_out_where_they_can_be(
    quick: bytes | None, expected: bytes, cuda: _Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources: list[str] = []

    def compiled(source: str, arch: str) -> bytes:
        assert arch == "sm_80"
        sources.append(source)
        if quick is None:
            raise nvrtc.NvrtcError("a name of the header")
        return quick

    tvm_ffi.register_global_func(CALLBACK, nvcc.tvm_callback_cuda_compile, override=True)
    monkeypatch.setattr(nvrtc, "_without_headers", compiled)
    monkeypatch.setattr(nvcc, "compile_cuda", lambda *_, **__: bytearray(b"whole"))
    compiler = SideBySide(2)
    _built(4, monkeypatch, compiler)
    compiler.close()
    assert cuda.got == [expected] * 2
    assert len(sources) == 2 and not any("#include" in source for source in sources)
    assert tvm_ffi.get_global_func(CALLBACK).same_as(nvcc.tvm_callback_cuda_compile)


@pytest.mark.usefixtures("_tvms_own")
def test_machine_code_is_taken_from_the_cache_unless_it_is_damaged(
    cache: Path, cuda: _Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources: list[str] = []

    def compiled(source: str, _arch: str) -> bytes:
        sources.append(source)
        return b"code"

    monkeypatch.setattr(nvrtc, "_without_headers", compiled)

    def build() -> int:
        tvm_ffi.register_global_func(CALLBACK, nvcc.tvm_callback_cuda_compile, override=True)
        before, lowering = len(sources), PIPELINE_MAP[PIPELINE]
        compiler = SideBySide(2, partial(ArtifactStore, cache, 1 << 20))
        _built(4, monkeypatch, compiler)
        compiler.close()
        monkeypatch.setitem(PIPELINE_MAP, PIPELINE, lowering)
        return len(sources) - before

    assert [build(), build()] == [2, 0] and cuda.got == [b"code"] * 4
    kept = list((cache / "kernels").glob("*.cubin"))
    kept[0].write_bytes(b"not that")
    assert build() == 1 and cuda.got[4:] == [b"code"] * 2
    monkeypatch.setattr("tunehub.compiler.artifacts.kernels.compiler_identity", lambda: "another NVRTC")
    assert build() == 2


@pytest.mark.usefixtures("_tvms_own")
def test_what_a_callback_of_somebody_else_makes_is_not_kept(
    cache: Path, cuda: _Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    tvm_ffi.register_global_func(CALLBACK, cuda.compile, override=True)
    compiler = SideBySide(2, partial(ArtifactStore, cache, 1 << 20))
    _built(4, monkeypatch, compiler)
    compiler.close()
    assert cuda.asked and not cache.exists()


@pytest.fixture
def _tvms_own() -> Iterator[None]:
    """TVM's callback, which tests before may have replaced for good."""
    before = tvm_ffi.get_global_func(CALLBACK)
    tvm_ffi.register_global_func(CALLBACK, nvcc.tvm_callback_cuda_compile, override=True)
    yield
    tvm_ffi.register_global_func(CALLBACK, before, override=True)


@pytest.mark.usefixtures("_tvms_own")
def test_who_wants_to_see_what_nvrtc_gets_sees_tvms_source(monkeypatch: pytest.MonkeyPatch) -> None:
    assert nvrtc.asked_for()
    nvrtc.compile_for_warpgroups()
    assert nvrtc.asked_for(), "kernels for warpgroups are still compiled by TVM's own callback"
    monkeypatch.setenv("TVM_KERNEL_DUMP", "1")
    assert not nvrtc.asked_for()
    monkeypatch.delenv("TVM_KERNEL_DUMP")
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "nvcc")
    assert not nvrtc.asked_for()


def _open_product() -> Any:
    """Rows of an open number with a weight."""
    rows = tvm.tirx.Var("rows", "int64")
    x, w = (relax.Var(*each) for each in (("x", _tensor(rows)), ("w", _tensor(512))))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            y = builder.emit_output(builder.emit(relax.op.matmul(x, relax.op.permute_dims(w))))
        builder.emit_func_output(y)
    return builder.get()


def _tensor(rows: Any) -> Any:
    return tensor_class()((rows, 512), "float16")


@pytest.mark.usefixtures("cache")
def test_an_open_product_is_lowered_once_and_its_kernels_are_those_that_were_verified(
    cuda: _Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    lowered: list[str] = []

    def noted(lower: Any, mod: Any, *rest: Any) -> Any:
        lowered.extend(str(each.name_hint) for each in mod.functions)
        return lowered_apart(lower, mod, *rest)

    monkeypatch.setattr(side_by_side, "lowered_apart", noted)
    monkeypatch.setattr(pipeline._patch.kernels, "_threads", 2)
    monkeypatch.setattr(StaticVerifier, "submit", lambda _self, each: asked.append(each))
    monkeypatch.setattr(nvrtc, "Compiler", lambda _arch: SimpleNamespace(install=lambda: None))
    monkeypatch.setitem(PIPELINE_MAP, "tunehub.verified", None)
    target = tvm.target.Target(HOPPER)
    with pytest.warns(HubWarning, match="no package serves"):
        hub = open_hub(target)
    pipeline.compile_module(_open_product(), target, hub)
    compiled = {source for source, _ in cuda.asked}
    (product,) = asked
    assert lowered and product.name not in lowered
    cuda.asked.clear()
    session = VerifySession(str(target))
    session._pipeline = with_nvrtc("sm_90", None)
    session._built(product.scheduled, product.name)
    verified = {source for source, _ in cuda.asked}
    assert len(verified) > 2 and verified <= compiled
