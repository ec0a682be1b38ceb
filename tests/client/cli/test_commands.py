from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest

import tunehub
from tunehub.cli import doctor as doctor_module
from tunehub.cli.calibrate import _kept
from tunehub.cli.doctor import examine
from tunehub.cli.group import BUILDER_COMMANDS, COMMANDS, GROUPS
from tunehub.cli.output import print_table
from tunehub.options import read_options
from tunehub.registries.embedded import EMBEDDED, license_text
from tunehub.target.descriptors import descriptor_of
from tunehub.tir.cuda import headers
from tunehub_registry.evidence import NetworkEvidence, encode_evidence
from tunehub_registry.index import encode_index, yank_version
from tunehub_registry.lock import parse_lock
from tunehub_registry.manifest import NetworkEntry

from ..conftest import A76, SKYLAKE, PretendedHost, RegistryFolder

pytestmark = pytest.mark.fast


def test_help_and_version(run: Any) -> None:
    result = run("--help")
    assert result.code == 0
    assert sorted(name for names in GROUPS.values() for name in names) == sorted({*COMMANDS, *BUILDER_COMMANDS})
    for title in GROUPS:
        assert f"\n{title}:\n" in result.out
    assert "..." not in result.out.partition("\n")[2]  # no line is cut
    for name in ("cache", "demo", "doctor", "list", "resolve", "show", "tune", "distill", "check", "pack", "networks"):
        assert name in result.out
        assert run(name, "--help").code == 0
    assert run("--version").out == f"tunehub, version {tunehub.__version__}\n"


def test_commands_of_a_user_without_a_home_run(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_uid: int) -> None:
        raise KeyError("uid")

    for name in ("HOME", "TUNEHUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "")  # so that what is set below is taken back
        monkeypatch.delenv(name)
    monkeypatch.setattr("pwd.getpwuid", none)
    found = run("list")
    assert found.code == 0, found.err
    assert Path.home() == Path(os.devnull)


def test_tables_cut_nothing_at_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    address = "s3://a-bucket-of-somebody/with/a/long/path/to/the/registry/of/the/team"
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    print_table(("NAME", "REGISTRY"), [("llvm-a-processor-with-a-name", address)], empty="")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert "…" not in shown and max(map(len, shown.splitlines())) <= 80
    assert "".join(line[29:].strip() for line in shown.splitlines()[1:]) == address


def test_list(run: Any, registry: RegistryFolder) -> None:
    registry.publish(version="0.1.0", yanked="wrong numbers")
    registry.publish(version="0.2.0")
    registry.publish(A76)
    result = run("list", "--registry", registry.root)
    assert result.code == 0
    assert "\x1b" not in result.out
    assert "yanked: wrong numbers" in result.out
    assert [line.split()[:2] for line in result.out.splitlines()[1:]] == [
        ["llvm-cortex-a76", "0.1.0"], ["llvm-znver5", "0.2.0"], ["llvm-znver5", "0.1.0"]
    ]  # fmt: skip
    rows = run("list", "llvm-znver5", "--registry", registry.root, "--json").json["packages"]
    assert [row["version"] for row in rows] == ["0.2.0", "0.1.0"]
    assert "no packages for cuda" in run("list", "cuda", "--registry", registry.root).out


def test_list_of_an_unreadable_registry(run: Any, tmp_path: Path) -> None:
    result = run("list", "--registry", tmp_path / "nowhere")
    assert result.code == 1
    assert "index.json: there is no folder" in result.err
    assert run("list", "--registry", "ftp://host", "--json").json["problems"]


def test_show(run: Any, registry: RegistryFolder) -> None:
    registry.publish(version="0.1.0")
    registry.publish(version="0.2.0")
    result = run("show", "llvm-znver5", "--registry", registry.root)
    assert result.code == 0
    assert result.out.startswith("llvm-znver5 0.2.0")
    assert "networks: none" in result.out
    shown = run("show", "llvm-znver5==0.1.0", "--registry", registry.root, "--json").json
    assert shown["manifest"]["version"] == "0.1.0"
    assert shown["manifest"]["provenance"]["trials"] == 1
    missing = run("show", "llvm-znver5==0.3", "--registry", registry.root)
    assert missing.code == 1
    assert "llvm-znver5 0.2.0" in missing.err
    assert run("show", "llvm-nothing", "--registry", registry.root).code == 1
    assert run("show", "znver5 0.1", "--registry", registry.root).code == 2
    assert run("show", ">=0.1", "--registry", registry.root).code == 2


def test_networks_that_were_not_timed_have_no_empty_rows(run: Any, registry: RegistryFolder) -> None:
    networks = tuple(
        NetworkEntry(name=name, source=source, inputs={"x": (1, 8)}, dtype="float32")
        for name, source in (
            ("squeezenet", "onnx"),
            ("bert_open", "onnx, open: sequence"),
            ("gpt2_open", "onnx, open: b"),
        )
    )
    timed = NetworkEvidence(
        network="squeezenet", default_s=0.3, tuned_s=0.004, repeats=7, threads=2, output_max_rel_diff=0.0,
        over_rules=1.25,
    )  # fmt: skip
    registry.publish(networks=networks, evidence=encode_evidence(timed).decode())
    *_, row, others = run("show", "llvm-znver5", "--registry", registry.root).out.splitlines()
    assert row.split() == ["squeezenet", "float32", "300", "4", "–", "–", "1.25"]
    assert others == "records of these networks, too, which were not timed as a whole: bert_open, gpt2_open"


def test_licences_are_shown_where_packages_state_them(run: Any, registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish(version="0.1.0")
    registry.publish(version="0.2.0", license="CC0-1.0 OR MIT")
    place = ("--registry", registry.root)
    rows = run("list", *place, "--json").json["packages"]
    assert [row["license"] for row in rows] == ["CC0-1.0 OR MIT", None]
    assert "licence: CC0-1.0 OR MIT\n" in run("show", "llvm-znver5", *place).out
    assert "licence: not stated\n" in run("show", "llvm-znver5==0.1.0", *place).out
    assert license_text(None, EMBEDDED) == "not stated in the package; as all of tunehub Apache-2.0"
    assert license_text("MIT", EMBEDDED) == "MIT"
    lock = tmp_path / "tunehub.lock"
    for version, stated in (("0.1.0", None), ("0.2.0", "CC0-1.0 OR MIT")):
        assert run("lock", f"llvm-znver5=={version}", "--tvm", "0.27.0", *place, "-o", lock).code == 0
        (pin,) = parse_lock(lock.read_bytes(), "lock").packages
        assert (pin.license, pin.entry().license or None) == (stated, stated)


def test_what_a_publisher_wrote_is_shown_as_it_stands(run: Any, registry: RegistryFolder) -> None:
    name = "[/b]\x1b[2J\n::error::"
    networks = (NetworkEntry(name=name, source="onnx", inputs={}, dtype="float32"),)
    registry.publish(networks=networks)
    shown = run("show", "llvm-znver5", "--registry", registry.root).out
    assert "[/b]\ufffd[2J\ufffd::error::" in shown and "\x1b" not in shown


def test_show_of_a_damaged_package(run: Any, registry: RegistryFolder) -> None:
    path = registry.publish()
    data = path.read_bytes()
    for content, expected in ((data[:-1] + b"x", "sha256"), (data[:-1], f"{len(data) - 1} bytes instead of")):
        path.write_bytes(content)
        result = run("show", "llvm-znver5", "--registry", registry.root)
        assert result.code == 1
        assert expected in result.err


def test_resolve(run: Any, registry: RegistryFolder) -> None:
    registry.publish(SKYLAKE)
    registry.publish(A76)
    target = '{"kind": "llvm", "mcpu": "znver5", "mtriple": "x86_64-linux-gnu"}'
    pytest.importorskip("tvm")
    result = run("resolve", target, "--registry", registry.root)
    assert result.code == 0
    assert "llvm-skylake 0.1.0" in result.out
    assert "aarch64" in result.out
    answer = run("resolve", target, "--registry", registry.root, "--require", ">=9", "--json")
    assert answer.code == 1
    assert answer.json["chosen"] is None
    assert {row["name"] for row in answer.json["trace"]} == {"llvm-skylake", "llvm-cortex-a76"}


def test_wrong_usage_is_2(run: Any) -> None:
    assert run("resolve", "nonsense").code == 2
    assert run("resolve", "--require", "=x").code == 2
    assert run("nonsense").code == 2
    assert run("list", "--nonsense").code == 2
    assert run("demo", "--repeats", "0").code == 2


def test_cache(run: Any, registry: RegistryFolder, cache: Path) -> None:
    assert "is empty" in run("cache", "ls").out
    registry.publish()
    import tunehub

    from ..conftest import ZNVER5

    tunehub.open_hub(ZNVER5, registry=str(registry.root), tvm_version="0.27.0").close()
    rows = run("cache", "ls", "--json").json["files"]
    assert sorted(row["kind"] for row in rows) == ["blob", "index"]
    assert run("cache", "verify").code == 0
    for row in rows:
        path = Path(row["path"])
        path.write_bytes(path.read_bytes()[:-50])
    (cache / "blobs" / "x.tmp-1").write_bytes(b"")
    damaged = run("cache", "verify", "--json")
    assert damaged.code == 1
    assert len(damaged.json["deleted"]) == 3
    assert run("cache", "verify").out == "0 files checked, 0 deleted\n"
    assert run("cache", "clear").code == 0
    assert run("cache", "clear", "--json").json["freed"] == 0


def test_builder_that_is_missing(run: Any, monkeypatch: pytest.MonkeyPatch, forget_modules: Any) -> None:
    forget_modules("tunehub_builder")
    for name in ("tunehub_builder", "tunehub_builder.cli", "tunehub_builder.bench.demo"):
        monkeypatch.setitem(sys.modules, name, None)
    tune = run("tune", "--help")
    assert tune.code == 1
    assert "[builder]'" in tune.err
    demo = run("demo", "--network", "squeezenet")
    assert demo.code == 1
    assert "[demo]'" in demo.err
    assert "Tune:" not in run("--help").out


def test_demo_hands_over(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    demo = pytest.importorskip("tunehub_builder.bench.demo")
    from tunehub_builder.networks.exceptions import UnknownNetworkError

    seen: list[Any] = []
    monkeypatch.setattr(demo, "run_demo", lambda names, **options: seen.append((names, options)) or 0)
    assert run("demo", "--network", "a", "--network", "b", "--json", "--repeats", "3").code == 0
    assert seen == [(("a", "b"), {"as_json": True, "repeats": 3, "default_s": 10.0})]
    assert issubclass(UnknownNetworkError, Exception)


def test_the_demo_names_what_it_lacks_before_it_compiles(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    ended = run("demo")
    assert (ended.code, ended.out) == (1, "")
    assert "the demo needs the module onnxruntime: install what the demo needs" in ended.err


PROBE = {
    "threads": 1,
    "version": "0.27.0",
    "cpu": {"name": "llvm-znver5", "arch": "x86_64", "features": ["avx2"], "cores": 2},
    "gpu": {"name": "cuda-h200", "arch": "sm_90"},
    "mattr": [],
    "profile": {},
    "rules": {"profile": None, "float32": "the target lacks AVX512_BF16"},
}


def findings(registry: RegistryFolder) -> dict[str, Any]:
    options = read_options(registry=registry.root)
    return {item.name: item for item in examine(options)}


def test_doctor_warns_about_threads(registry: RegistryFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tvm")
    registry.publish()
    monkeypatch.setattr(doctor_module, "run_probe", lambda: PROBE)
    found = findings(registry)
    assert found["threads"].state == "warning"
    assert "TVM_NUM_THREADS=2" in found["threads"].remedy
    assert "cuda-h200" in found["gpu"].text
    assert found[f"registry {registry.root}"].text == "unsigned: llvm-znver5"
    assert found["embedded registry"].text == "no packages"
    assert found["cache"].state == "ok"


def test_doctor_says_what_serves_this_machine_and_what_is_known_of_it_here(
    registry: RegistryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tvm")
    registry.publish(descriptor_of("cuda-h200"))
    h100 = PROBE | {"gpu": {"name": "cuda-h100", "arch": "sm_90"}}
    monkeypatch.setattr(doctor_module, "run_probe", lambda: h100)
    found = [item.text for item in examine(read_options(registry=registry.root)) if item.name == "package"]
    assert found[0] == "llvm-znver5: none, rules alone choose"
    said = "cuda-h100: cuda-h200 0.1.0, made for cuda-h200; its records on cuda-h100: not measured by "
    assert found[1].startswith(said)
    monkeypatch.setattr(doctor_module, "run_probe", lambda: PROBE)
    assert findings(registry)["package"].text == "cuda-h200: cuda-h200 0.1.0, made for such machines"


def test_doctor_says_whose_rates_hold_and_what_auto_is(
    registry: RegistryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tvm")
    published = {"profile": "the profile of llvm-znver5 0.1.0", "float32": None}
    texts = []
    for probe in (PROBE, PROBE | {"rules": published}, PROBE | {"rules": published, "profile": {"problem": "x.json"}}):
        monkeypatch.setattr(doctor_module, "run_probe", lambda probe=probe: probe)
        found = findings(registry)
        texts.append((found["machine profile"].text, found["machine profile"].remedy, found["precision"].text))
    (none, _, wide), (package, _, narrow), (damaged, remedy, _) = texts
    assert "built-in rates" in none
    assert "llvm-znver5 0.1.0" in package
    assert (damaged, "llvm-znver5 0.1.0" in str(remedy)) == ("x.json", True)
    assert (wide, narrow) == (
        "auto is float32 on this CPU: the target lacks AVX512_BF16", "auto is bf16 on this CPU"
    )  # fmt: skip


def test_doctor_says_where_llvm_takes_the_cpu_for_another(
    registry: RegistryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tvm")
    monkeypatch.setattr(doctor_module, "run_probe", lambda: PROBE)
    assert "cpu features" not in findings(registry)
    differing = PROBE | {"mattr": ["+amx-bf16", "+amx-tile", "-avx512f"]}
    monkeypatch.setattr(doctor_module, "run_probe", lambda: differing)
    found = findings(registry)["cpu features"]
    assert f"for {PROBE['cpu']['name']}, but it also has amx-bf16, amx-tile and lacks avx512f" in found.text
    assert (found.state, "host_target()" in str(found.remedy)) == ("warning", True)


@pytest.mark.parametrize("missing", [None, headers.Missing(reason="CUDA's crt/mma.h is not in /include")])
def test_doctor_says_which_headers_of_cuda_are_missing(
    registry: RegistryFolder, monkeypatch: pytest.MonkeyPatch, missing: headers.Missing | None
) -> None:
    pytest.importorskip("tvm")
    monkeypatch.setattr(doctor_module, "run_probe", lambda: PROBE)
    monkeypatch.setattr(headers, "missing_headers", lambda names: missing)
    monkeypatch.setattr(headers, "header_folders", lambda: ("/include",))
    found = findings(registry)["CUDA headers"]
    assert found.state == ("ok" if missing is None else "warning")
    assert found.remedy == (None if missing is None else missing.remedy)
    monkeypatch.setattr(doctor_module, "run_probe", lambda: PROBE | {"gpu": None})
    assert "CUDA headers" not in findings(registry)


def test_doctor_without_tvm(run: Any, registry: RegistryFolder, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr("tunehub.target.tvm_generation.find_tvm", lambda: None)
    cache.write_text("in the way")
    found = findings(registry)
    assert found["tvm"].state == "error"
    assert "pip install" in found["tvm"].remedy
    assert found["cache"].state == "warning"
    result = run("doctor", "--registry", "ftp://x", "--json")
    assert result.code == 1
    assert not result.json["ok"]


def test_doctor_when_importing_tvm_fails(registry: RegistryFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tvm")
    monkeypatch.setattr(doctor_module, "_PROBE", "raise SystemExit('libtvm.so: cannot open shared object file')")
    found = findings(registry)
    assert found["tvm"].state == "error"
    assert "cannot open shared object file" in found["tvm"].text


def rows_of(mattr: Sequence[str], gpu: object) -> list[str]:
    """The doctor's lines for a machine whose CPU has or lacks ``mattr`` beside its model's features."""
    cpu, headers_of_cuda = ["cpu", "cpu features"] if mattr else ["cpu"], [] if gpu is None else ["CUDA headers"]
    own = [*cpu, "machine profile", "precision", "gpu", *headers_of_cuda, "threads"]
    packages = ["package"] * (1 + (gpu is not None))
    return ["python", "compiler", "tvm", *own, "cache", "embedded registry", *packages, "onnxruntime"]


@pytest.mark.slow
def test_doctor_for_real(run: Any) -> None:
    pytest.importorskip("tvm")
    from tunehub.target.host import gpu_descriptor, host_cpu

    result, cpu = run("doctor", "--json"), host_cpu()
    assert [item["name"] for item in result.json["findings"]] == rows_of(cpu.mattr if cpu else (), gpu_descriptor())
    assert result.code == 0
    assert "TVM's pool has" in str(result.json)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::tunehub.HubWarning")  # there is no package for such machines
def test_doctor_on_each_kind_of_cpu(
    registry: RegistryFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pretended_host: PretendedHost,
) -> None:
    def probe() -> Any:
        exec(compile(doctor_module._PROBE, "probe", "exec"), {})
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    monkeypatch.setattr(sys, "argv", ["probe", json.dumps(sys.path)])
    monkeypatch.setattr(doctor_module, "run_probe", probe)
    monkeypatch.setattr("tunehub.target.host.gpu_descriptor", lambda: None)
    found, differs = findings(registry), sorted(pretended_host.more | pretended_host.less)
    rows = rows_of(differs, None)
    assert [name for name in found if name in rows] == rows
    assert ("cpu features" in found) == bool(differs)
    assert pretended_host.model in found["cpu"].text
    if differs:
        assert all(name in found["cpu features"].text for name in differs)
    with_tiles = "amx-bf16" in found["cpu"].text
    expected = "auto is bf16 on this CPU" if with_tiles else "auto is float32 on this CPU: "
    assert found["precision"].text.startswith(expected)


def test_yanked_only_version_is_shown(run: Any, registry: RegistryFolder) -> None:
    registry.publish()
    index = registry.index()
    from tunehub_registry.index import parse_shard

    path = registry.root / index.names["llvm-znver5"].shard_path
    update = yank_version(index, parse_shard(path.read_bytes(), "shard"), "0.1.0", "slow")
    (registry.root / update.shard_path).write_bytes(update.shard_data)
    (registry.root / "index.json").write_bytes(encode_index(update.index))
    assert "yanked: slow" in run("show", "llvm-znver5", "--registry", registry.root).out


def test_errors_are_json_where_json_was_asked_for(run: Any, tmp_path: Path) -> None:
    """Of the library, of a command, and of the command line; programs read one document, people the same on stderr."""
    unreadable = run("run", tmp_path / "nothing.so", "--json")
    assert unreadable.code == 2
    assert unreadable.json["error"]["type"] == "LibraryError"
    assert unreadable.json["error"]["reason"] == "no such file"
    assert set(unreadable.json["error"]) == {"type", "message", "value", "place", "reason", "remedy"}
    assert "no such file" in unreadable.err
    for arguments, kind in ((("cache", "--nothing"), "NoSuchOption"), (("nothing",), "UsageError")):
        refused = run(*arguments, "--json")
        assert refused.code == 2
        assert refused.json["error"]["type"].startswith((kind, "NoSuchCommand"))
        assert refused.err.startswith("Usage: ")
    assert run("run", tmp_path / "nothing.so").out == ""


def test_a_misspelt_command_is_told_the_likely_one(run: Any) -> None:
    assert "Did you mean 'compile'?" in run("compil", "model.onnx").err
    assert "Did you mean" not in run("frobnicate").err


def test_doctor_misses_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    found = doctor_module._examine_compiler()
    assert (found.state, "apt install g++" in str(found.remedy)) == ("warning", True)
    monkeypatch.setenv("CXX", "/opt/g++")
    assert doctor_module._examine_compiler().text == "/opt/g++"


def test_a_profile_that_cannot_be_kept_is_one_line() -> None:
    def full(*_: object) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(click.ClickException, match=r"No space left on device \(free some space, or set TUNEHUB_CACHE"):
        _kept(full, object())
