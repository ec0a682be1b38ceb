"""Records of CUDA GPUs for TVM <= 0.19, in builds that need no GPU: what serves, what is refused, what the report says.

Layouts and implementations are chosen without TVM's CUDA backend; the tests of generated source need it, see
`cuda_plugin`.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tvm
from tvm import auto_scheduler, autotvm, relay
from tvm.autotvm.task.space import FallbackConfigEntity

import tunehub
from tunehub.records.tophub_export import export_tophub
from tunehub.registries.blob_cache import BlobCache
from tunehub.registries.configured import open_registries
from tunehub.relay.coverage import gpu_hardware
from tunehub.relay.legality import state_problem
from tunehub.target.descriptors import as_tvm_target, descriptor_of
from tunehub_builder.backends.relay.networks import to_nhwc
from tunehub_builder.backends.relay.workload_worker import RelayWorkload, WorkloadSession, bind_plainly
from tunehub_registry.evidence import RecordEvidence, encode_evidence
from tunehub_registry.legacy_target import descriptor_of_legacy, parse_target
from tunehub_registry.tuning_log import autotvm_key

from .cuda_plugin import TARGET as H200
from .cuda_plugin import needs_cuda
from .relay_cases import FEW, build, conv_net, log_line, make_registry, tasks, write_log

pytestmark = pytest.mark.legacy

H100, A100 = "cuda -arch=sm_90 -model=h100", "cuda -arch=sm_80 -model=a100"
DIRECT, WINOGRAD = "conv2d_nchw.cuda", "conv2d_nchw_winograd.cuda"


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TOPHUB_LOCATION", "NONE")
    with warnings.catch_warnings():
        warnings.simplefilter("error", tunehub.HubWarning)
        yield


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """AutoTVM's tasks of a convolution."""
    return {task.name: task for task in tasks(*conv_net(), target=H200)}


def direct(task: Any, cost: float, target: str = H200, **changes: list[int]) -> dict[str, Any]:
    """A record: blocks of 16 channels × 14 × 2 pixels, 4 channels deep."""
    sizes = {"tile_f": [-1, 2, 8, 1], "tile_y": [-1, 1, 2, 1], "tile_x": [-1, 1, 14, 1], "tile_rc": [-1, 4]}
    sizes |= {"tile_ry": [-1, 3], "tile_rx": [-1, 3], **changes}
    line = log_line(task, 0, cost, target)
    line["config"]["entity"] = [[name, "sp", size] for name, size in sizes.items()] + [
        ["auto_unroll_max_step", "ot", 512], ["unroll_explicit", "ot", 1],
    ]  # fmt: skip
    return line


def winograd(task: Any, cost: float) -> dict[str, Any]:
    sizes = {"tile_b": [-1, 1, 1, 1], "tile_y": [-1, 1, 16, 1], "tile_x": [-1, 1, 49, 1], "tile_rc": [-1, 4]}
    line = log_line(task, 0, cost, H200)
    line["config"]["entity"] = [[name, "sp", size] for name, size in sizes.items()] + [
        ["auto_unroll_max_step", "ot", 128], ["unroll_explicit", "ot", 1],
    ]  # fmt: skip
    return line


def registry(folder: Path, *lines: Any, evidence: bytes = b"") -> Path:
    folder.mkdir(exist_ok=True)
    content = write_log(folder / "a.log", *lines).read_bytes()
    sets = {"records/autotvm.log": ("autotvm", content)}
    return make_registry(folder / "registry", descriptor_of_legacy(parse_target(H200)), sets, evidence)


def laid_out(net: tuple[Any, Any], target: str) -> Any:
    """The module after layouts and implementations are chosen."""
    with tvm.transform.PassContext(opt_level=3):
        return relay.optimize(net[0], tvm.target.Target(target), params=net[1])[0]


def layer(hub: Any) -> Any:
    (found,) = [item for item in hub.report().workloads if item.op == "nn.conv2d"]
    return found


def test_tvm_without_a_gpu_does_not_hide_the_model() -> None:
    """TVM 0.19 writes -arch=sm_50 where it finds no GPU, whatever the model."""
    for target in (tvm.target.Target("cuda -model=h200"), as_tvm_target("cuda-h200"), tvm.target.Target(H200)):
        described = descriptor_of(target)
        assert (described.name, described.arch) == ("cuda-h200", "sm_90")
    assert descriptor_of(tvm.target.Target("cuda -arch=sm_80 -model=h200")).arch == "sm_80"


def test_the_own_devices_records_serve_exactly(found: dict[str, Any], tmp_path: Path) -> None:
    place = registry(tmp_path, direct(found[DIRECT], 1e-5))
    with tunehub.context(H200, registry=place) as hub:
        laid_out(conv_net(3), H200)
    served = layer(hub)
    assert (served.rung, served.implementation, served.run_s) == ("exact", "conv2d_nchw.cuda", 1e-5)
    assert served.count == 3
    assert served.package == "cuda-h200 1.0"


@pytest.mark.parametrize("cost, chosen", [(1e-6, "winograd"), (1e-4, "direct")])
def test_the_faster_implementation_is_chosen_and_the_other_named(
    found: dict[str, Any], tmp_path: Path, cost: float, chosen: str
) -> None:
    place = registry(tmp_path, direct(found[DIRECT], 1e-5), winograd(found[WINOGRAD], cost))
    with tunehub.context(H200, registry=place) as hub:
        module = laid_out(conv_net(2), H200)
    served = layer(hub)
    other = {"winograd": DIRECT, "direct": WINOGRAD}[chosen]
    assert [(item.implementation, item.run_s) for item in served.rejected] == [
        (other, 1e-5 if chosen == "winograd" else cost)
    ]
    # Weights of a Winograd convolution are transformed while the module is compiled, in every layer.
    assert str(module).count("winograd_without_weight_transform") == (2 if chosen == "winograd" else 0)
    assert served.run_s == min(cost, 1e-5)


@pytest.mark.parametrize("target", [H100, A100])
def test_another_gpu_is_served_when_its_limits_allow(found: dict[str, Any], tmp_path: Path, target: str) -> None:
    place = registry(tmp_path, direct(found[DIRECT], 1e-5))
    with tunehub.context(target, registry=place, require="cuda-h200==1.0") as hub:  # not the embedded package
        laid_out(conv_net(), target)
    assert layer(hub).rung == "family"


def test_what_another_gpu_cannot_hold_is_left_out_and_named(tmp_path: Path) -> None:
    net = conv_net(channels=256, shape=(1, 256, 14, 14))
    wide = {task.name: task for task in tasks(*net, target=H200)}
    greedy = direct(wide[DIRECT], 1e-5, tile_f=[-1, 2, 32, 4], tile_x=[-1, 1, 14, 1], tile_rc=[-1, 16])
    with tunehub.context(A100, registry=registry(tmp_path, greedy)) as hub:
        laid_out(net, A100)
    assert layer(hub).rung in ("reference", "default")
    (note,) = [note for note in hub.report().notes if "another device" in note]
    assert "cuda-h200 1.0" in note
    assert "a block takes more than 49152 bytes of shared memory" in note


@pytest.mark.parametrize("target", [H200, A100])
def test_a_record_of_other_shapes_is_fitted(found: dict[str, Any], tmp_path: Path, target: str) -> None:
    """On the device that it was measured on; of another's, TVM's fallback rule takes references when it lowers."""
    values: dict[str, Any] = {
        "exact": autotvm_key(found[DIRECT].workload), "default_s": 2e-4, "tuned_s": 1e-5, "speedup": 20.0,
        "repeats": 3, "spread": 0.01, "output_max_rel_diff": 0.0, "threads": 2, "admitted": True, "tuner": "autotvm",
    }  # fmt: skip
    place = registry(tmp_path, direct(found[DIRECT], 1e-5), evidence=encode_evidence(RecordEvidence(**values)))
    with tunehub.context(target, registry=place) as hub:
        laid_out(conv_net(channels=16, shape=(1, 16, 28, 28)), target)
    served = layer(hub)
    assert served.rung == {H200: "transfer", A100: "default"}[target]
    assert served.source == ("conv2d_nchw.cuda 1x16x14x14 16x16x3x3 s1 p1" if target == H200 else None)


def kernels(library: Any) -> list[str]:
    """The CUDA kernels of a library, without the numbers in their names."""
    (module,) = [each for each in library.lib.imported_modules if each.type_key == "cuda"]
    source = str(module.get_source())
    return sorted(re.sub(r"_\d+|\b[0-9a-f]{16}_*", "", text) for text in source.split('extern "C"')[1:])


def test_references_do_not_end_a_build(found: dict[str, Any], tmp_path: Path) -> None:
    """TVM's fallback rule multiplies the parts of a reference's splits, and takes the root: none may be negative."""
    other = tasks(*conv_net(channels=8, shape=(1, 8, 28, 28)), target=H200)
    (task,) = [task for task in other if task.name == DIRECT]
    config = FallbackConfigEntity()
    with tunehub.context(H200, registry=registry(tmp_path, direct(found[DIRECT], 1e-5))) as hub, task.target:
        hub_config = autotvm.task.DispatchContext.current.query(task.target, task.workload)
        task.instantiate(config)
    assert hub_config.is_fallback
    assert not any("failed" in note for note in hub.report().notes)
    assert config["tile_f"].size == [1, 1, 8, 1], "as the reference's, as far as the axes go"
    assert config["tile_x"].size == [2, 1, 14, 1]


def test_the_auto_schedulers_tasks_and_limits_need_no_gpu() -> None:
    module, params = conv_net()
    nhwc = to_nhwc(module)
    target = tvm.target.Target(H200)
    hardware = gpu_hardware(target)
    extracted, _ = auto_scheduler.extract_tasks(nhwc["main"], params, target, hardware_params=hardware)
    policy = auto_scheduler.SketchPolicy(extracted[0], verbose=0, params={**FEW, "evolutionary_search_population": 64})
    states, dag = list(policy.sample_initial_population())[:16], extracted[0].compute_dag
    assert any(state_problem(target, dag, state) is None for state in states)
    small = tvm.target.Target("cuda -arch=sm_80 -model=small -max_threads_per_block=16")
    assert all("more than 16" in str(state_problem(small, dag, state)) for state in states[:3])


@needs_cuda
@pytest.mark.parametrize("name, threads", [(DIRECT, 8 * 2 * 14), (WINOGRAD, 16 * 49)])
def test_a_whole_build_takes_the_kernels_of_the_records(
    found: dict[str, Any], tmp_path: Path, name: str, threads: int
) -> None:
    line = {DIRECT: direct, WINOGRAD: winograd}[name](found[name], 1e-5)
    with tunehub.context(H200, registry=registry(tmp_path, line)) as hub:
        library = build(*conv_net(2), target=tvm.target.Target(H200))
    assert layer(hub).rung == "exact"
    plain = build(*conv_net(2), target=tvm.target.Target(H200))
    assert any(f"__launch_bounds__({threads})" in text for text in kernels(library))
    assert not any(f"__launch_bounds__({threads})" in text for text in kernels(plain))


@needs_cuda
def test_a_winograd_record_gives_way_where_the_weights_are_not_bound(found: dict[str, Any], tmp_path: Path) -> None:
    """TVM has no schedule that transforms weights on a GPU; its own build with such a record fails."""
    place = registry(tmp_path, direct(found[DIRECT], 1e-5), winograd(found[WINOGRAD], 1e-6))
    with warnings.catch_warnings(record=True) as said, tunehub.context(H200, registry=place) as hub:
        warnings.simplefilter("always")
        library = build(conv_net()[0], {}, target=tvm.target.Target(H200))
        assert (layer(hub).rung, layer(hub).implementation) == ("exact", DIRECT)
        relay.vm.compile(conv_net()[0], tvm.target.Target(H200))  # the VM meets the problem later
        build(*conv_net(), target=tvm.target.Target(H200))  # the next build may use it
    assert any(f"__launch_bounds__({8 * 2 * 14})" in text for text in kernels(library))
    assert any("records of conv2d_nchw_winograd.cuda failed" in str(each.message) for each in said)
    assert WINOGRAD in {item.implementation for item in hub.report().workloads}


@needs_cuda
def test_a_record_that_lacks_a_knob_does_not_break_a_build_as_a_reference_either(
    found: dict[str, Any], tmp_path: Path
) -> None:
    bad = direct(found[DIRECT], 1e-5)
    bad["config"]["entity"] = bad["config"]["entity"][1:]
    net = conv_net(channels=32, shape=(1, 32, 28, 28))
    for shapes in (conv_net(), net):  # the record's own, and others
        with warnings.catch_warnings(), tunehub.context(H200, registry=registry(tmp_path, bad)) as hub:
            warnings.simplefilter("ignore")
            build(*shapes, target=tvm.target.Target(H200))
        assert layer(hub).rung == "default"
        assert any("as references failed" in note for note in hub.report().notes)


@needs_cuda
def test_what_tvm_fits_from_references_is_reported_so(found: dict[str, Any], tmp_path: Path) -> None:
    with tunehub.context(H200, registry=registry(tmp_path, direct(found[DIRECT], 1e-5))) as hub:
        build(*conv_net(channels=32, shape=(1, 32, 28, 28)), target=tvm.target.Target(H200))
    assert layer(hub).rung == "reference"


@needs_cuda
def test_the_gate_builds_records_and_what_they_are_compared_with(
    found: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autotvm.GLOBAL_SCOPE, "in_tuning", False)  # a session leaves it changed in its process
    for task, line in ((DIRECT, direct), (WINOGRAD, winograd)):
        known = msgspec.json.encode(RelayWorkload(tuner="autotvm", target=H200)).decode()
        session = WorkloadSession()
        session.task("key", known)
        bad = line(found[task], 1e-5)
        bad["config"]["entity"] = bad["config"]["entity"][1:]
        first, good, wrong = session.build_case(known, [json.dumps(line(found[task], 1e-5)), json.dumps(bad)])
        assert (first, good) == (None, None)
        assert "tile_" in str(wrong)


@needs_cuda
def test_the_gate_gives_a_graph_without_a_schedule_a_thread_for_each_element() -> None:
    module, params = conv_net()
    target = tvm.target.Target(H200)
    found, _ = auto_scheduler.extract_tasks(
        to_nhwc(module)["main"], params, target, hardware_params=gpu_hardware(target)
    )
    for task in found:
        schedule, arguments = task.compute_dag.apply_steps_from_state(task.compute_dag.get_init_state())
        bind_plainly(schedule)
        source = str(tvm.build(schedule, list(arguments), target=target).imported_modules[0].get_source())
        assert "__launch_bounds__(128)" in source


@needs_cuda
def test_exported_files_give_an_unmodified_tvm_the_same_kernels(
    found: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = registry(tmp_path, direct(found[DIRECT], 1e-5))
    with tunehub.context(H200, registry=place):
        served = kernels(build(*conv_net(), target=tvm.target.Target(H200)))
    registries = open_registries([str(place)], offline=True, on_problem=_raise)
    export_tophub(registries, tmp_path / "out", cache=BlobCache(tmp_path / "c"), on_problem=_raise)
    monkeypatch.setenv("TOPHUB_LOCATION", (tmp_path / "out").as_uri())
    monkeypatch.setattr(autotvm.tophub, "AUTOTVM_TOPHUB_ROOT_PATH", tmp_path / "home")
    assert kernels(build(*conv_net(), target=tvm.target.Target(H200))) == served
    assert (tmp_path / "home" / "cuda_v0.10.log").read_bytes() == (tmp_path / "out" / "cuda_v0.10.log").read_bytes()


def _raise(problem: Exception) -> None:
    raise problem
