"""The CUDA path of TVM 0.19 as far as it goes without a GPU: source, machine code, limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import tvm
from tvm import auto_scheduler, autotvm, relay

from tunehub.relay.coverage import gpu_hardware
from tunehub.tir.cuda.headers import HALF, TENSOR_CORES, missing_headers
from tunehub.tir.cuda.nvrtc import NvrtcError, kernel_uses
from tunehub_builder.backends.relay import nvrtc
from tunehub_builder.backends.relay.auto_scheduler_tuner import _source
from tunehub_builder.backends.relay.autotvm_session import TaskSource, built, create_task
from tunehub_builder.backends.relay.cost_model import GuardedModel
from tunehub_builder.backends.relay.gpu_search import PROGRAMS, _ProgramSearch
from tunehub_builder.backends.relay.gpu_session import HARDWARE, MOST_STACK, SearchTaskSource, _failure, check_of
from tunehub_builder.backends.relay.gpu_tuner import RelayTrial

from .cuda_plugin import TARGET, needs_cuda

pytestmark = [pytest.mark.legacy, needs_cuda]
MISSING = missing_headers((HALF, *TENSOR_CORES))

CONV = TaskSource(
    task="conv2d_nchw.cuda",
    args=(
        ("TENSOR", (1, 64, 28, 28), "float32"), ("TENSOR", (64, 64, 3, 3), "float32"),
        (1, 1), (1, 1, 1, 1), (1, 1), "float32",
    ),
    target=TARGET,
)  # fmt: skip
needs_nvrtc = pytest.mark.skipif(not nvrtc.available(), reason="needs NVRTC: pip install nvidia-cuda-nvrtc")


@pytest.fixture(scope="module")
def task() -> Iterator[Any]:
    yield create_task(CONV)
    autotvm.GLOBAL_SCOPE.in_tuning = False  # which would give the tests after these other layouts


@pytest.fixture
def uncompiled() -> Iterator[list[str]]:
    """CUDA source as TVM generates it; nothing compiles it."""
    sources: list[str] = []

    def keep(source: Any, *_target: Any) -> bytearray:
        sources.append(str(source))
        return bytearray(b"no machine code")

    original = tvm.get_global_func("tvm_callback_cuda_compile", allow_missing=True)
    tvm._ffi.register_func("tvm_callback_cuda_compile", keep, override=True)
    yield sources
    if original is not None:
        tvm._ffi.register_func("tvm_callback_cuda_compile", original, override=True)


def config_with(task: Any, wanted: dict[str, list[int]]) -> Any:
    """The configuration whose splits are ``wanted``; of the other knobs the first value."""
    index, stride = 0, 1
    for name, knob in task.config_space.space_map.items():
        if name in wanted:
            index += stride * next(i for i, entity in enumerate(knob.entities) if list(entity.size) == wanted[name])
        stride *= len(knob)
    return task.config_space.get(index)


def built_from(task: Any, config: Any) -> Any:
    with task.target:
        schedule, arguments = task.instantiate(config)
    return built(schedule, arguments, task.target, check_of(task.target))


GOOD = {
    "tile_f": [-1, 1, 16, 1], "tile_y": [-1, 1, 1, 1], "tile_x": [-1, 1, 28, 1],
    "tile_rc": [-1, 4], "tile_ry": [-1, 1], "tile_rx": [-1, 1],
}  # fmt: skip


def test_a_configuration_becomes_source(task: Any, uncompiled: list[str]) -> None:
    built_from(task, config_with(task, GOOD))
    (source,) = uncompiled
    assert "__launch_bounds__(448)" in source
    assert "__shared__ float" in source


@pytest.mark.parametrize(
    ("changed", "reason", "limit"),
    [
        ({"tile_f": [-1, 1, 64, 1]}, "TOO_MANY_THREADS", "max_threads_per_block 1024"),
        (
            {"tile_rc": [-1, 64], "tile_ry": [-1, 3], "tile_rx": [-1, 3]},
            "SHARED_MEMORY",
            "max_shared_memory_per_block 49152",
        ),
    ],
)
def test_what_a_gpu_cannot_launch_is_named_before_it_is_compiled(
    task: Any, uncompiled: list[str], changed: dict[str, list[int]], reason: str, limit: str
) -> None:
    config = config_with(task, {**GOOD, **changed})
    with pytest.raises(Exception, match=limit) as caught:
        built_from(task, config)
    assert str(_failure(caught.value, "COMPILE_HOST")).startswith(f"{reason}: ")
    assert uncompiled == []


@needs_nvrtc
def test_nvrtc_compiles_what_tvm_generates(task: Any) -> None:
    nvrtc.install("sm_90")
    library = built_from(task, config_with(task, GOOD))
    source = library.imported_modules[0].get_source()
    uses = kernel_uses(nvrtc.machine_code(source, "sm_90"))
    (use,) = uses.values()
    assert 0 < use.registers <= 128
    assert 0 < use.shared_memory <= 49152


@needs_nvrtc
def test_what_nvrtc_refuses_is_the_devices_compiler_s_failure() -> None:
    with pytest.raises(NvrtcError, match="error: identifier") as caught:
        nvrtc.machine_code('extern "C" __global__ void kernel() { nonsense(); }', "sm_90")
    assert str(_failure(caught.value, "COMPILE_HOST")).startswith("COMPILE_DEVICE: ")
    body = "__shared__ float b[20000]; b[threadIdx.x] = a[0]; __syncthreads(); a[1] = b[3];"
    too_much = f'extern "C" __global__ void kernel(float* a) {{ {body} }}'
    with pytest.raises(NvrtcError) as caught:
        nvrtc.machine_code(too_much, "sm_90")
    assert str(_failure(caught.value, "COMPILE_HOST")).startswith("SHARED_MEMORY: ")


@needs_nvrtc
def test_a_kernel_that_would_fill_the_gpu_with_its_stack_is_refused_before_it_runs(task: Any) -> None:
    """64 x 28 sums a thread in an array that loops index: what made other workers' candidates run out of memory."""
    greedy = {**GOOD, "tile_f": [-1, 1, 1, 64], "tile_y": [-1, 1, 1, 28], "tile_x": [-1, 1, 28, 1]}
    refusals = nvrtc.Refusals(most_stack=MOST_STACK)
    nvrtc.install("sm_90", refusals)
    try:
        with tvm.target.Target(TARGET):  # whose scope is still there: an error in TVM's callback would have ended it
            built_from(task, config_with(task, GOOD))
            refusals.raise_first()
            built_from(task, config_with(task, greedy))
        with pytest.raises(NvrtcError, match="local memory") as caught:
            refusals.raise_first()
        refusals.raise_first()  # of the next build nothing is known
    finally:
        nvrtc.install("sm_90")
    assert str(_failure(caught.value, "COMPILE_HOST")).startswith("LOCAL_MEMORY: ")
    built_from(task, config_with(task, greedy))  # the gate runs TVM's default, whatever it takes


@needs_nvrtc
@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_a_template_for_tensor_cores_compiles() -> None:
    shapes = (("TENSOR", (128, 768), "float16"), ("TENSOR", (768, 768), "float16"))
    source = TaskSource(task="dense_tensorcore.cuda", args=(*shapes, None, "float16"), target=TARGET)
    nvrtc.install("sm_90")
    task = create_task(source)
    try:
        library = built_from(task, task.config_space.get(0))
    finally:
        autotvm.GLOBAL_SCOPE.in_tuning = False
    assert "wmma::mma_sync" in library.imported_modules[0].get_source()


def search_task() -> Any:
    """A small convolution of the auto-scheduler."""
    data, weight = relay.var("data", shape=(1, 14, 14, 16)), relay.var("w", shape=(3, 3, 16, 16))
    body = relay.nn.conv2d(
        data, weight, padding=(1, 1), channels=16, kernel_size=(3, 3), data_layout="NHWC", kernel_layout="HWIO"
    )
    module = tvm.IRModule.from_expr(relay.Function([data, weight], relay.nn.relu(body)))
    target = tvm.target.Target(TARGET)
    return auto_scheduler.extract_tasks(module, {}, target, hardware_params=gpu_hardware(target))[0][0]


def test_the_auto_scheduler_s_tasks_travel() -> None:
    task = search_task()
    made = msgspec.json.decode(_source(task), type=SearchTaskSource).task()
    assert str(made.workload_key) == str(task.workload_key)
    assert [getattr(made.hardware_params, name) for name in HARDWARE] == [-1, 16, 64, 49152, 2**31 - 1, 1024, 8, 32]


def test_a_task_s_first_programs_are_drawn_and_later_ones_evolved(monkeypatch: pytest.MonkeyPatch) -> None:
    evolved: list[int] = []

    class Policy(auto_scheduler.SketchPolicy):
        def evolutionary_search(self, population: Any, size: int) -> Any:
            evolved.append(len(population))
            return super().evolutionary_search(population, size)

    monkeypatch.setattr(auto_scheduler, "SketchPolicy", Policy)
    few = {**PROGRAMS, "evolutionary_search_population": 16, "evolutionary_search_num_iters": 1}
    task = search_task()
    search = _ProgramSearch(task, GuardedModel(num_warmup_sample=64), few, seed=1)
    first = search.propose([], 4)
    assert len(set(first)) == 4 and not evolved
    news = [
        RelayTrial(task="t", trace=text, source="sketch", run_s=(1e-4 * (at + 1),)) for at, text in enumerate(first)
    ]
    second = search.propose(news, 4)
    assert len(evolved) == 1 and len(set(second)) == 4 and not set(first) & set(second)
