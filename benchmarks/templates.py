"""Templates as rows: how good the knobs are that nobody measured, and the speed beside onnxruntime and TVM's default.

The workloads are layers of the demo's and other common networks. Each is a convolution or matrix product with bias and
relu, weights packed, in the blocked layout that a network keeps between layers; onnxruntime runs a model of that one
layer, with plain input and output. Tuned knobs are the best of all that the template proposes. MetaSchedule's record is
the best published trace for the layer in the plain layout, where there is one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import geometric_mean, median, quantiles
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.shared.table import Row
from tunehub.comparison.protocol import MeasuringPlan, Timer, in_turns, wall_timer
from tunehub.compiler.workers.process import WorkerProcess
from tunehub.target.host import physical_cores
from tunehub_builder.bench.comparison import asked, processes
from tunehub_builder.bench.runtimes import onnxruntime_session

if TYPE_CHECKING:
    from tunehub.target.types import Target

PLAN = MeasuringPlan(rounds=8, sample_s=0.02, warm_up_s=0.1, pause_s=0.03, cutoff=50.0)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """``kind``: conv2d, depthwise or dense (``channels`` K, ``outputs`` N, ``size`` M in its first element)."""

    kind: str
    channels: int
    size: tuple[int, int]
    outputs: int
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1
    padding: tuple[int, int] = (0, 0)

    @property
    def name(self) -> str:
        """A name that says what the layer is: ``conv2d_64_56x56_256_1x1_s1``."""
        sizes = "x".join(map(str, self.size))
        if self.kind == "dense":
            return f"dense_{self.size[0]}_{self.channels}_{self.outputs}"
        return f"{self.kind}_{self.channels}_{sizes}_{self.outputs}_{self.kernel[0]}x{self.kernel[1]}_s{self.stride}"


def _conv(
    channels: int, size: int, outputs: int, kernel: int | tuple[int, int] = 1, stride: int = 1, pad: int = -1
) -> Layer:
    window = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    padding = (window[0] // 2, window[1] // 2) if pad < 0 else (pad, pad)
    return Layer(
        kind="conv2d",
        channels=channels,
        size=(size, size),
        outputs=outputs,
        kernel=window,
        stride=stride,
        padding=padding,
    )


def _depthwise(channels: int, size: int, stride: int = 1) -> Layer:
    return Layer(
        kind="depthwise", channels=channels, size=(size, size), outputs=channels, kernel=(3, 3), stride=stride,
        padding=(1, 1),
    )  # fmt: skip


def _dense(rows: int, depth: int, outputs: int) -> Layer:
    return Layer(kind="dense", channels=depth, size=(rows, 1), outputs=outputs)


LAYERS = (
    # resnet50
    _conv(3, 224, 64, 7, 2), _conv(64, 56, 64), _conv(64, 56, 64, 3), _conv(64, 56, 256), _conv(256, 56, 64),
    _conv(256, 56, 128), _conv(128, 56, 128, 3, 2), _conv(128, 28, 512), _conv(256, 56, 512, 1, 2), _conv(512, 28, 128),
    _conv(128, 28, 128, 3), _conv(256, 14, 256, 3), _conv(256, 14, 1024), _conv(1024, 14, 256), _conv(512, 7, 512, 3),
    _conv(512, 7, 2048), _conv(2048, 7, 512), _dense(1, 2048, 1000),
    # squeezenet, alexnet, vgg19
    _conv(3, 224, 64, 3, 2, 0), _conv(64, 55, 16), _conv(16, 55, 64, 3), _conv(32, 27, 128, 3), _conv(48, 13, 192, 3),
    _conv(64, 13, 256, 3), _conv(512, 13, 1000), _conv(3, 224, 64, 11, 4, 2), _conv(64, 27, 192, 5),
    _conv(192, 13, 384, 3), _dense(1, 9216, 4096), _conv(3, 224, 64, 3), _conv(128, 112, 128, 3),
    _conv(512, 14, 512, 3),
    # mobilenet_v2, shufflenet
    _conv(3, 224, 32, 3, 2), _conv(32, 112, 16), _conv(16, 112, 96), _conv(96, 56, 24), _conv(32, 28, 192),
    _conv(96, 14, 576), _conv(576, 14, 96), _conv(320, 7, 1280), _depthwise(32, 112), _depthwise(96, 112, 2),
    _depthwise(144, 56), _depthwise(192, 28), _depthwise(384, 14), _depthwise(576, 14, 2), _depthwise(960, 7),
    # inception_v3, densenet121
    _conv(3, 299, 32, 3, 2, 0), _conv(32, 149, 32, 3, 1, 0), _conv(80, 73, 192, 3, 1, 0), _conv(192, 35, 64),
    _conv(48, 35, 64, 5), _conv(96, 35, 96, 3), _conv(768, 17, 192), _conv(128, 17, 192, (1, 7)),
    _conv(128, 17, 192, (7, 1)), _conv(448, 8, 384, 3), _conv(2048, 8, 320), _conv(256, 56, 128), _conv(128, 56, 32, 3),
    _conv(512, 28, 128), _conv(128, 14, 32, 3), _conv(1024, 7, 128), _conv(128, 7, 32, 3),
    # BERT, ViT
    _dense(128, 768, 768), _dense(128, 768, 3072), _dense(128, 3072, 768), _dense(197, 768, 2304),
    _dense(197, 768, 768), _dense(197, 3072, 768),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LayerTimes:
    """Milliseconds of one layer each way, and what the layer costs."""

    layer: Layer
    flops: float
    default_knobs_ms: float
    tuned_ms: float
    onnxruntime_ms: float
    tvm_default_ms: float
    meta_schedule_ms: float | None


def run(layers: Sequence[Layer] = LAYERS, plan: MeasuringPlan = PLAN) -> list[Row]:
    """Tune and time every layer. Raises RuntimeError when a process fails."""
    threads = physical_cores()
    sessions = {"tvm": partial(TvmLayer, threads, plan.sample_s), "onnxruntime": partial(OnnxRuntimeLayer, threads)}
    with processes(sessions, threads=threads) as workers:
        timed = [time_layer(layer, workers, plan) for layer in dict.fromkeys(layers)]
    return [*_summary(timed), *[row for item in timed for row in _rows(item)]]


def time_layer(layer: Layer, workers: Mapping[str, WorkerProcess], plan: MeasuringPlan) -> LayerTimes:
    """Compile ``layer`` with all knobs; time the default's and the best, onnxruntime and TVM's default, in turns.

    Each counts with its shortest sample: what a kernel takes while nothing else runs. Raises RuntimeError.
    """
    flops, ways = asked(workers["tvm"], "load", layer)
    asked(workers["onnxruntime"], "load", layer)
    timers: dict[str, Timer] = {way: partial(asked, workers["tvm"], "time", way) for way in ways}
    timers["onnxruntime"] = partial(asked, workers["onnxruntime"], "time")
    ms = {way: 1e3 * min(samples) for way, samples in in_turns(timers, plan).items()}
    return LayerTimes(
        layer=layer,
        flops=flops,
        default_knobs_ms=ms["default_knobs"],
        tuned_ms=min(ms["tuned"], ms["default_knobs"]),
        onnxruntime_ms=ms["onnxruntime"],
        tvm_default_ms=ms["tvm_default"],
        meta_schedule_ms=ms.get("meta_schedule"),
    )


class TvmLayer:
    """In a worker process: one layer, compiled in several ways. Public methods are the requests."""

    def __init__(self, threads: int, sample_s: float) -> None:
        self._threads = threads
        self._sample_s = sample_s
        self._ways: dict[str, Callable[[], None]] = {}

    def load(self, layer: Layer) -> tuple[float, list[str]]:
        """Compile ``layer`` in every way and with all knobs, of which the fastest are kept: its operations, the ways.

        Raises ValueError for a layer that no template is for.
        """
        import tunehub
        from tunehub.kernels.cpu import find, machine_of

        target = tunehub.host_target()
        machine = machine_of(target, self._threads)
        plain = _plain_inputs(layer)
        mod, arrays, result = _blocked(layer, plain, machine.vector)
        match = find(mod)
        if match is None:
            raise ValueError(f"no template recognises {layer.name}")
        space = match.template.knob_space(match.workload, machine)
        applied = (match.template.apply(mod, match.workload, knobs).mod for knobs in space)
        runners = [_runner(scheduled, target, arrays, result) for scheduled in applied]
        best = min(runners, key=lambda runner: _shortest(runner, self._sample_s))
        self._ways = {"default_knobs": runners[0], "tuned": best, "tvm_default": _naive(layer, plain, target)}
        traced = _meta_schedule(layer, plain, target)
        if traced is not None:
            self._ways["meta_schedule"] = traced
        return float(match.workload.flops), list(self._ways)

    def time(self, way: str, runs: int) -> float:
        """Mean seconds of so many runs."""
        return wall_timer(self._ways[way])(runs)


class OnnxRuntimeLayer:
    """The same with onnxruntime."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._run: Callable[[], object] = list

    def load(self, layer: Layer) -> None:
        """A model of this one layer."""
        self._run = _onnxruntime(layer, _plain_inputs(layer), self._threads)

    def time(self, runs: int) -> float:
        """Mean seconds of so many runs."""
        return wall_timer(self._run)(runs)


def _summary(timed: list[LayerTimes]) -> list[Row]:
    shares = [item.tuned_ms / item.default_knobs_ms for item in timed]
    ratios = [item.default_knobs_ms / item.onnxruntime_ms for item in timed]
    tuned = [item.tuned_ms / item.onnxruntime_ms for item in timed]
    slower = sum(item.default_knobs_ms > item.tvm_default_ms for item in timed)
    traced = [item.default_knobs_ms / item.meta_schedule_ms for item in timed if item.meta_schedule_ms]
    return [
        Row(name="default_knobs_of_tuned", value=median(shares), unit="ratio", note="median of speeds"),
        Row(name="default_knobs_of_tuned_p10", value=quantiles(shares, n=10)[0], unit="ratio"),
        Row(name="slower_than_default", value=slower, unit="count", note=f"of {len(timed)}, TVM's default schedule"),
        *([_traced_row(traced)] if traced else []),
        Row(
            name="default_geomean_vs_onnxruntime",
            value=geometric_mean(ratios),
            unit="ratio",
            note="template ÷ onnxruntime",
        ),
        Row(
            name="tuned_geomean_vs_onnxruntime",
            value=geometric_mean(tuned),
            unit="ratio",
            note="template ÷ onnxruntime",
        ),
        Row(name="layers_slower_than_onnxruntime", value=sum(r > 1 for r in tuned), unit="count", note="tuned"),
    ]


def _traced_row(ratios: list[float]) -> Row:
    note = f"template's default knobs ÷ MetaSchedule's record, {len(ratios)} layers with one"
    return Row(name="default_geomean_vs_meta_schedule", value=geometric_mean(ratios), unit="ratio", note=note)


def _rows(item: LayerTimes) -> list[Row]:
    """GFLOP/s with default knobs, tuned ones, MetaSchedule's record and in onnxruntime, and two ratios."""
    name = item.layer.name
    speeds = {
        "default_knobs": item.default_knobs_ms,
        "tuned": item.tuned_ms,
        "meta_schedule": item.meta_schedule_ms,
        "onnxruntime": item.onnxruntime_ms,
    }
    return [
        *(
            Row(name=f"{name}_{how}_gflops", value=item.flops / ms / 1e6, unit="GFLOP/s")
            for how, ms in speeds.items()
            if ms is not None
        ),
        Row(name=f"{name}_default_knobs_of_tuned", value=item.tuned_ms / item.default_knobs_ms, unit="ratio"),
        Row(name=f"{name}_vs_onnxruntime", value=item.tuned_ms / item.onnxruntime_ms, unit="ratio", note="tuned"),
    ]


def _plain_inputs(layer: Layer) -> list[Any]:
    """Data, weight and bias in the layouts of ONNX."""
    rng = np.random.default_rng(0)

    def values(*shape: int) -> Any:
        return rng.uniform(-1, 1, shape).astype("float32")

    if layer.kind == "dense":
        return [values(layer.size[0], layer.channels), values(layer.channels, layer.outputs), values(layer.outputs)]
    inputs = 1 if layer.kind == "depthwise" else layer.channels
    return [values(1, layer.channels, *layer.size), values(layer.outputs, inputs, *layer.kernel), values(layer.outputs)]


def _blocked(layer: Layer, plain: list[Any], vector: int) -> tuple[Any, list[Any], tuple[int, ...]]:
    """The function in blocked layout, its inputs, and the shape of its result. Few channels stay plain."""
    from tvm import topi

    from tunehub.kernels.te import blocked, weights

    data, weight, bias = plain
    if layer.kind == "dense":
        packed = [data, weights.pack_dense_weight(weight, out_block=vector), bias]
        return _function(
            lambda x, w, b: topi.nn.relu(topi.add(blocked.dense_blocked(x, w, outputs=layer.outputs), b)), packed
        )
    bias_block = weights.pack_channels(bias.reshape(-1, 1, 1), block=vector)
    strides, padding = (layer.stride, layer.stride), (*layer.padding, *layer.padding)
    if layer.kind == "depthwise":
        weight = weights.pack_depthwise_weight(weight, block=vector)
        operator: Callable[..., Any] = blocked.depthwise_blocked
    else:
        in_block = vector if layer.channels >= vector else None
        weight = weights.pack_conv2d_weight(weight, in_block=in_block, out_block=vector)
        operator = blocked.conv2d_blocked
    if layer.channels >= vector:
        data = weights.pack_channels(data, block=vector)
    return _function(
        lambda x, w, b: topi.nn.relu(topi.add(operator(x, w, strides=strides, padding=padding), b)),
        [data, weight, bias_block],
    )


def _function(make: Callable[..., Any], arrays: list[Any]) -> tuple[Any, list[Any], tuple[int, ...]]:
    import tvm
    from tvm import te

    parameters = [te.placeholder(array.shape, "float32", name=f"p{i}") for i, array in enumerate(arrays)]
    result = make(*parameters)
    mod = tvm.IRModule({"main": te.create_prim_func([*parameters, result])})
    return mod, arrays, tuple(int(extent) for extent in result.shape)


def _runner(mod: Any, target: Target, arrays: list[Any], shape: tuple[int, ...]) -> Callable[[], None]:
    import tvm

    function = tvm.compile(mod, target=target)["main"]
    arguments = [tvm.runtime.tensor(array) for array in (*arrays, np.zeros(shape, "float32"))]

    return lambda: function(*arguments)


def _shortest(run: Callable[[], None], least_s: float) -> float:
    """Seconds of the shortest of the runs that fit into ``least_s``, one at least."""
    samples: list[float] = []
    while not samples or sum(samples) < least_s:
        began = time.perf_counter()
        run()
        samples.append(time.perf_counter() - began)
    return min(samples)


def _naive(layer: Layer, plain: list[Any], target: Target) -> Callable[[], None]:
    """The layer as TVM's default pipeline runs it: plain layout, no schedule."""
    from tvm import topi

    strides, padding = (layer.stride, layer.stride), (*layer.padding, *layer.padding)

    def make(x: Any, w: Any, b: Any) -> Any:
        if layer.kind == "dense":
            return topi.nn.relu(topi.add(topi.nn.matmul(x, w), b))
        operator = topi.nn.depthwise_conv2d_nchw if layer.kind == "depthwise" else topi.nn.conv2d_nchw
        return topi.nn.relu(topi.add(operator(x, w, strides, padding, (1, 1)), topi.reshape(b, (layer.outputs, 1, 1))))

    mod, arrays, shape = _function(make, plain)
    return _runner(mod, target, arrays, shape)


def _meta_schedule(layer: Layer, plain: list[Any], target: Target) -> Callable[[], None] | None:
    """The layer in the plain layout by the best published trace; None when none serves it."""
    import tvm
    from tvm import relax

    import tunehub

    with tunehub.context(target, layout="keep") as hub:
        executable = tvm.compile(_relax_layer(layer, plain), target)
    if any(workload.template or not workload.hit for workload in hub.report().workloads):
        return None
    run, data = relax.VirtualMachine(executable, tvm.cpu())["main"], tvm.runtime.tensor(plain[0])

    return lambda: run(data)


def _relax_layer(layer: Layer, plain: list[Any]) -> Any:
    from tvm import relax

    data, weight, bias = plain
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(data.shape, "float32"))
    if layer.kind == "dense":
        product, shift = relax.op.matmul(x, relax.const(weight)), bias
    else:
        groups = layer.channels if layer.kind == "depthwise" else 1
        padding = (*layer.padding, *layer.padding)
        product = relax.op.nn.conv2d(x, relax.const(weight), strides=layer.stride, padding=padding, groups=groups)
        shift = bias.reshape(1, -1, 1, 1)
    with builder.function("main", [x]):
        with builder.dataflow():
            added = builder.emit(relax.op.add(builder.emit(product), relax.const(shift)))
            result = builder.emit_output(relax.op.nn.relu(added))
        builder.emit_func_output(result)
    return builder.get()


def _onnxruntime(layer: Layer, plain: list[Any], threads: int) -> Callable[[], object]:
    from onnx import TensorProto, helper, numpy_helper

    data, weight, bias = plain
    if layer.kind == "dense":
        node = helper.make_node("Gemm", ["x", "w", "b"], ["y"])
    else:
        node = helper.make_node(
            "Conv", ["x", "w", "b"], ["y"], kernel_shape=layer.kernel, strides=[layer.stride] * 2,
            pads=[*layer.padding, *layer.padding], group=layer.channels if layer.kind == "depthwise" else 1,
        )  # fmt: skip
    graph = helper.make_graph(
        [node, helper.make_node("Relu", ["y"], ["z"])],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, data.shape)],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime_session(model.SerializeToString(), threads)
    return lambda: session.run(None, {"x": data})
