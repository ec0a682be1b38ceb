from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from tunehub.cli.export import export as command
from tunehub.exceptions import HubError, UnknownTargetError
from tunehub.records.tophub_export import Export, ExportError, backend_of, export_tophub
from tunehub.registries.blob_cache import BlobCache
from tunehub.registries.configured import open_registries
from tunehub_registry.legacy_target import descriptor_of_legacy, parse_target

from ..conftest import RegistryFolder

pytestmark = pytest.mark.fast

SKYLAKE = "llvm -mcpu=skylake-avx512"
ZNVER5 = "llvm -mcpu=znver5"
RK3399 = "llvm -device=arm_cpu -model=rk3399 -mtriple=aarch64-linux-gnu"
MALI = "opencl -device=mali -model=rk3399"


def line(target: str, *, cost: Any = 0.001, task: str = "conv2d_nchw.cuda") -> bytes:
    arguments = [["TENSOR", [1, 64, 56, 56], "float32"], ["TENSOR", [64, 64, 3, 3], "float32"], "float32"]
    row = {
        "input": [target, task, arguments, {}],
        "config": {"index": 7, "code_hash": None, "entity": [["tile_k", "sp", [-1, 2]]]},
        "result": [[cost], 0, 1.5, 1563936283.5],
        "version": 0.2,
        "tvm_version": "0.7.dev0",
    }
    return json.dumps(row).encode()


def publish(
    registry: RegistryFolder, target: str, lines: list[bytes], *, version: str = "0.1.0", tuner: str = "autotvm",
    yanked: str | None = None,
) -> Path:  # fmt: skip
    """Add a package for `target` with these lines."""
    descriptor, data = descriptor_of_legacy(parse_target(target)), b"".join(item + b"\n" for item in lines)
    return registry.publish(
        descriptor, version, data, yanked=yanked, tuner=tuner, tvm=">=0.8,<0.20", key_scheme="autotvm-1"
    )


def run(root: Path, *targets: str) -> tuple[Export, list[HubError]]:
    problems: list[HubError] = []
    registries = open_registries([str(root / "registry")], offline=True, on_problem=problems.append)
    cache = BlobCache(root / "cache")
    done = export_tophub(registries, root / "out", targets=targets, cache=cache, on_problem=problems.append)
    return done, problems


def records(root: Path, name: str) -> list[bytes]:
    return [item for item in (root / "out" / name).read_bytes().splitlines() if not item.startswith(b"#")]


def test_devices_of_one_backend_share_a_file_and_lines_stay_as_they_are(
    tmp_path: Path, registry: RegistryFolder
) -> None:
    titanx, v100 = line("cuda -model=titanx"), line("cuda -model=v100")
    publish(registry, "cuda -model=titanx", [titanx])
    publish(registry, "cuda -model=v100", [v100])
    publish(registry, RK3399, [line(RK3399)])
    publish(registry, MALI, [line(MALI)])
    done, problems = run(tmp_path)
    assert not problems
    assert records(tmp_path, "cuda_v0.10.log") == [titanx, v100]
    assert records(tmp_path, "arm_cpu_v0.08.log") == [line(RK3399)]
    assert records(tmp_path, "mali_v0.06.log") == [line(MALI)]
    assert {file.backend: file.packages for file in done.files}["cuda"] == ("cuda-titanx 0.1.0", "cuda-v100 0.1.0")


def test_every_backend_has_a_whole_file_that_tvm_can_read(tmp_path: Path, registry: RegistryFolder) -> None:
    publish(registry, "cuda -model=v100", [line("cuda -model=v100")])
    done, _problems = run(tmp_path)
    assert len(done.files) == 10
    for file in done.files:
        assert file.path.read_bytes().endswith(b"\n")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(file.path.name for file in done.files)


def test_the_file_for_cpus_holds_the_nearest_package_only(tmp_path: Path, registry: RegistryFolder) -> None:
    publish(registry, SKYLAKE, [line(SKYLAKE)])
    publish(registry, ZNVER5, [line(ZNVER5)])
    done, _problems = run(tmp_path, "llvm-znver5")
    assert records(tmp_path, "llvm_v0.04.log") == [line(ZNVER5)]
    assert any(item.package == "llvm-skylake-avx512 0.1.0" for item in done.left_out)
    run(tmp_path, SKYLAKE)
    assert records(tmp_path, "llvm_v0.04.log") == [line(SKYLAKE)]


def test_a_target_leaves_the_others_out(tmp_path: Path, registry: RegistryFolder) -> None:
    publish(registry, "cuda -model=titanx", [line("cuda -model=titanx")])
    publish(registry, "cuda -model=v100", [line("cuda -model=v100")])
    done, _problems = run(tmp_path, "cuda -model=v100")
    assert records(tmp_path, "cuda_v0.10.log") == [line("cuda -model=v100")]
    assert ("cuda-titanx 0.1.0", "it is not the nearest package for cuda -model=v100") in [
        (item.package, item.reason) for item in done.left_out
    ]


def test_newest_version_that_is_not_yanked(tmp_path: Path, registry: RegistryFolder) -> None:
    for version, cost, yanked in (("0.1", 0.1, None), ("0.2", 0.2, None), ("0.3", 0.3, "wrong"), ("0.4rc1", 0.4, None)):
        publish(registry, "cuda -model=v100", [line("cuda -model=v100", cost=cost)], version=version, yanked=yanked)
    run(tmp_path)
    assert records(tmp_path, "cuda_v0.10.log") == [line("cuda -model=v100", cost=0.2)]


def test_lines_that_would_break_tvm_are_left_out(tmp_path: Path, registry: RegistryFolder) -> None:
    good = line("cuda -model=v100")
    bad = [b"<html>", good[:-30], line("cuda -model=v100", cost=float("nan")), line("cuda", cost=1e9), line("metal")]
    publish(registry, "cuda -model=v100", [*bad[:2], good, *bad[2:]])
    done, _problems = run(tmp_path)
    assert records(tmp_path, "cuda_v0.10.log") == [good]
    reasons = [item.reason for item in done.left_out if item.package == "cuda-v100 0.1.0"]
    assert reasons == [
        "4 of its lines are no measured AutoTVM 0.2 records",
        "1 of its lines are for metal, which has no file in TopHub",
    ]


def test_packages_of_other_tuners_are_told_of(tmp_path: Path, registry: RegistryFolder) -> None:
    publish(registry, "cuda -model=v100", [b"{}"], tuner="auto_scheduler")
    done, _problems = run(tmp_path)
    assert not any(file.records for file in done.files if file.backend == "cuda")
    assert any("no AutoTVM records, only auto_scheduler" in item.reason for item in done.left_out)


def test_a_damaged_package_is_a_problem_and_the_others_go_on(tmp_path: Path, registry: RegistryFolder) -> None:
    damaged = publish(registry, "cuda -model=titanx", [line("cuda -model=titanx")])
    publish(registry, "cuda -model=v100", [line("cuda -model=v100")])
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    _done, problems = run(tmp_path)
    assert "cuda-titanx 0.1.0" in str(problems[0])
    assert records(tmp_path, "cuda_v0.10.log") == [line("cuda -model=v100")]


def test_an_unknown_target_and_a_folder_that_cannot_be_written(tmp_path: Path, registry: RegistryFolder) -> None:
    publish(registry, "cuda -model=v100", [line("cuda -model=v100")])
    with pytest.raises(UnknownTargetError):
        run(tmp_path, "moon -model=x")
    (tmp_path / "out").write_text("a file")
    with pytest.raises(ExportError, match="give a folder that can be written"):
        run(tmp_path)


@pytest.mark.parametrize(
    ("target", "backend"),
    [
        ("llvm -mcpu=znver5", "llvm"), ("llvm -device=arm_cpu -model=pynq", "arm_cpu"), ("vulkan", "opencl"),
        ("llvm -mtriple=aarch64-linux-gnu", "arm_cpu"), ("nvptx", "cuda"), ("opencl -device=adreno", "adreno"),
        ("opencl -device=bifrost", "opencl"), ("ext_dev -device=vta", "vta"), ("metal", None),
    ],
)  # fmt: skip
def test_backends_are_those_of_tvm(target: str, backend: str | None) -> None:
    assert backend_of(parse_target(target)) == backend


def test_command(tmp_path: Path, registry: RegistryFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    publish(registry, "cuda -model=v100", [line("cuda -model=v100")])
    arguments = ["tophub", str(tmp_path / "out"), "--registry", str(registry.root)]
    done = CliRunner().invoke(command, [*arguments, "--target", "cuda-v100", "--json"])
    assert done.exit_code == 0, done.output
    report = msgspec.json.decode(done.output)
    assert report["location"] == (tmp_path / "out").as_uri()
    assert {"backend": "cuda", "file": str(tmp_path / "out" / "cuda_v0.10.log"), "records": 1,
            "packages": ["cuda-v100 0.1.0"]} in report["files"]  # fmt: skip
    text = CliRunner().invoke(command, [*arguments, "--target", "cuda-v100"])
    assert "TOPHUB_LOCATION=file://" in text.output
    assert CliRunner().invoke(command, ["tophub", str(tmp_path / "b"), "--target", "rocm -model=gfx900"]).exit_code == 1
