"""Writes the small registry in `data/` that every supported TVM must be able to use. Run it with TVM 0.27:

    python tests/versions/make_data.py

It holds three records for `NETS`, made by sketches and by TVM's own search space (a handful of candidates, the fastest
kept). The times in it are measured on the machine that runs this.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from tunehub.tir.nodes import tensor_class

DATA = Path(__file__).parent / "data"
TARGET = {"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 2}
RECORDS = "records/meta_schedule.jsonl"
THREADS = 2


class Nets:
    """The networks of the test, the same in every version of TVM."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def conv_relu(self) -> Any:
        """Its record is a sketch with packed weights."""
        return self._conv(lambda op, y: op.nn.relu(y))

    def conv_sigmoid(self) -> Any:
        """No record of its own: another epilogue for the convolution of `conv_relu`."""
        return self._conv(lambda op, y: op.sigmoid(y))

    def matmul_bias(self) -> Any:
        """Its record is a sketch."""

        def make(b: Any, op: Any, x: Any) -> Any:
            return b.emit(op.add(b.emit(op.matmul(x, self._const(48, 96))), self._const(96)))

        return self._net(make, (32, 48))

    def conv_pointwise(self) -> Any:
        """Its record is from TVM's own search space."""

        def make(b: Any, op: Any, x: Any) -> Any:
            y = b.emit(op.nn.conv2d(x, self._const(48, 32, 1, 1)))
            return b.emit(op.nn.relu(b.emit(op.add(y, self._const(1, 48, 1, 1)))))

        return self._net(make, (1, 32, 14, 14))

    def _conv(self, last: Any) -> Any:
        def make(b: Any, op: Any, x: Any) -> Any:
            y = b.emit(op.nn.conv2d(x, self._const(32, 16, 3, 3), padding=1))
            return b.emit(last(op, b.emit(op.add(y, self._const(1, 32, 1, 1)))))

        return self._net(make, (1, 16, 14, 14))

    def _const(self, *shape: int) -> Any:
        from tvm import relax

        return relax.const(self._rng.uniform(-1, 1, shape).astype("float32"))

    def _net(self, make: Any, shape: tuple[int, ...]) -> Any:
        from tvm import relax

        kind = tensor_class()
        builder = relax.BlockBuilder()
        x = relax.Var("x", kind(shape, "float32"))
        with builder.function("main", [x]):
            with builder.dataflow():
                output = builder.emit_output(make(builder, relax.op, x))
            builder.emit_func_output(output)
        return builder.get()


class OtherShapes(Nets):
    """Operators of `Nets` with other extents."""

    def build(self, name: str) -> Any:
        def conv(b: Any, op: Any, x: Any) -> Any:
            y = b.emit(op.nn.conv2d(x, self._const(40, 24, 1, 1)))
            return b.emit(op.nn.relu(b.emit(op.add(y, self._const(1, 40, 1, 1)))))

        def matmul(b: Any, op: Any, x: Any) -> Any:
            return b.emit(op.add(b.emit(op.matmul(x, self._const(37, 80))), self._const(80)))

        if name == "conv_pointwise":
            return self._net(conv, (1, 24, 13, 13))
        return self._net(matmul, (29, 37))


# net -> (its input, how its record is made; None: it is served by the record of another net)
NETS: dict[str, tuple[tuple[int, ...], str | None]] = {
    "conv_relu": ((1, 16, 14, 14), "sketch"),
    "conv_sigmoid": ((1, 16, 14, 14), None),
    "matmul_bias": ((32, 48), "sketch"),
    "conv_pointwise": ((1, 32, 14, 14), "meta_schedule"),
}


def main() -> None:
    os.environ["TVM_NUM_THREADS"] = str(THREADS)
    import tvm

    from tunehub_builder.tuning.tasks import extract_tasks

    target, nets = tvm.target.Target(TARGET), Nets()
    started = _now()
    records, trials = [], 0
    for name, (_, source) in NETS.items():
        (task,) = extract_tasks([(name, getattr(nets, name)())], target)
        if source is not None:
            traces = _sketches(task.mod) if source == "sketch" else _from_the_space_of_tvm(task.mod, target)
            trials += len(traces)
            records.append(_fastest(task, name, source, traces, target))
    _publish(records, trials, started)


def _sketches(mod: Any) -> list[Any]:
    from tvm.s_tir import meta_schedule as ms

    from tunehub.tir.traces import export_trace
    from tunehub_builder.tuning.space import register_tiles as sketch

    loops = sketch.loops_of(mod)
    assert loops is not None
    traces = []
    for knobs in sketch.register_tiles(loops, 16)[:4]:
        schedule = sketch.apply(mod, loops, knobs)
        assert ms.postproc.RewriteLayout().apply(schedule)
        traces.append(export_trace(schedule.trace))
    return traces


def _from_the_space_of_tvm(mod: Any, target: Any, count: int = 4) -> list[Any]:
    from tvm.s_tir import Schedule
    from tvm.s_tir import meta_schedule as ms

    from tunehub.tir.traces import export_trace
    from tunehub_builder.tuning.intrinsics import load_cpu_intrinsics

    load_cpu_intrinsics()
    context = ms.TuneContext(
        mod=mod, target=target, space_generator="post-order-apply", rand_state=1, num_threads=1
    ).clone()
    traces: list[Any] = []
    for design in context.generate_design_space():
        for seed in range(1, 5):
            schedule = Schedule(mod, seed=seed, error_render_level="none")
            type(design.trace)(design.trace.insts, {}).apply_to_schedule(schedule, remove_postproc=True)
            schedule.enter_postproc()
            if all(step.apply(schedule) for step in context.space_generator.postprocs):
                traces.append(export_trace(schedule.trace))
    return traces[:count]


def _fastest(task: Any, net: str, source: str, traces: list[Any], target: Any) -> Any:
    import tvm
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    from tunehub.compiler.schedule.apply import apply_exact
    from tunehub.tir.traces import import_trace
    from tunehub_registry.record import ScheduleRecord

    def measure(mod: Any) -> tuple[float, ...]:
        from tunehub.tir.nodes import buffer_shapes

        packed = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=False)(mod)
        rng = np.random.default_rng(0)
        shapes = buffer_shapes(packed["main"])
        arguments = [tvm.runtime.tensor(rng.uniform(0.1, 1, shape).astype(dtype)) for shape, dtype in shapes]
        timer = tvm.tirx.build(packed, target=target).time_evaluator("main", tvm.cpu(), number=20, repeat=3)
        return tuple(float(seconds) for seconds in timer(*arguments).results)

    measured = [(measure(apply_exact(task.mod, import_trace(trace)).mod), trace) for trace in traces]
    run_s, trace = min(measured, key=lambda pair: sum(pair[0]))
    return ScheduleRecord(
        exact=task.exact,
        anchor=task.anchor,
        op=task.name,
        trace=(trace[0], trace[1]),
        run_s=run_s,
        default_s=min(measure(task.mod)),
        networks=(net,),
        source=source,
    )


def _publish(records: list[Any], trials: int, started: str) -> None:
    from tunehub.registries.key_scheme import KEY_SCHEME
    from tunehub_registry.index import Index, RecordSetSummary, ShardEntry, add_version, encode_index, package_path
    from tunehub_registry.manifest import Manifest, Provenance, RecordSet
    from tunehub_registry.package import pack
    from tunehub_registry.record import encode_record
    from tunehub_registry.target import TargetDescriptor

    tvm_range = ">=0.25,<0.28"
    target = TargetDescriptor(kind="llvm", model=TARGET["mcpu"], arch="x86_64", features=("sse4.2",), num_cores=THREADS)
    manifest = Manifest(
        name=target.name,
        version="0.1.0",
        target=target,
        record_sets=(
            RecordSet(tuner="meta_schedule", file=RECORDS, tvm=tvm_range, key_scheme=KEY_SCHEME, count=len(records)),
        ),
        provenance=Provenance(
            machine={"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count() or 1},
            tvm_version=version("apache-tvm"),
            tvm_ffi_version=version("apache-tvm-ffi"),
            tuner_options={},
            trials=trials,
            seed=1,
            command="python tests/versions/make_data.py",
            started=started,
            finished=_now(),
            threads=THREADS,
        ),
    )
    data = pack(manifest, {RECORDS: b"".join(map(encode_record, records))})
    entry = ShardEntry(
        version=manifest.version,
        file=package_path(target.name, manifest.version),
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        record_sets=(RecordSetSummary(tuner="meta_schedule", tvm=tvm_range),),
        published=_now(),
    )
    update = add_version(Index(), None, entry, target=target)
    shutil.rmtree(DATA, ignore_errors=True)
    for path, content in (
        (entry.file, data), (update.shard_path, update.shard_data), ("index.json", encode_index(update.index)),
    ):  # fmt: skip
        (DATA / path).parent.mkdir(parents=True, exist_ok=True)
        (DATA / path).write_bytes(content)


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


if __name__ == "__main__":
    main()
