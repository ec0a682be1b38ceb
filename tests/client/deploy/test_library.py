"""Libraries on disk and in TVM's runtime; the examples of docs/deploy.md."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tunehub.deploy.arrays import random_inputs
from tunehub.deploy.embedding import interface_of, with_interface
from tunehub.deploy.interface import Interface, TensorSpec
from tunehub.deploy.library import Library, check_writable, share_library, write_library
from tunehub.exceptions import LibraryError, LinkError

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.slow

DOCUMENT = (Path(__file__).parents[3] / "docs" / "deploy.md").read_text()
TARGET = tvm.target.Target({"kind": "llvm"})
ALONE = "import sys; sys.modules['tunehub'] = None\n"  # importing it raises


def example(language: str, of: str = "") -> str:
    """The document's block of a language that has the words `of`."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    (found,) = [block for block in blocks if of in block]
    return str(found)


def default_outputs(inputs: dict[str, Any]) -> Any:
    from ...tiny_networks import tiny_mobilenet

    machine = tvm.relax.VirtualMachine(tvm.compile(tiny_mobilenet().relax_module(), TARGET), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, inputs.values())).numpy()


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def executable() -> Any:
    mod = tvm.relax.BlockBuilder()
    with mod.function("main", []):
        mod.emit_func_output(tvm.relax.const(np.ones(3, "float32")))
    return tvm.compile(mod.get(), TARGET)


def test_a_library_says_what_it_takes_and_computes_what_tvm_does(library: Path) -> None:
    loaded = Library(library)
    assert [str(each) for each in loaded.interface.inputs] == ["data float32 [1, 3, 16, 16]"]
    assert [str(each) for each in loaded.interface.outputs] == ["classes float32 [1, 10]"]
    inputs = random_inputs(loaded.interface, {}, seed=3)
    found = loaded.outputs(loaded.runner(inputs)())
    assert np.allclose(found["classes"], default_outputs(inputs), atol=1e-6)


def test_the_python_example_needs_no_compiler_and_no_tunehub(library: Path) -> None:
    text = ALONE + example("python", "VirtualMachine").replace("model.so", str(library))
    env = {**os.environ, "TVM_USE_RUNTIME_LIB": "1"}
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    expected = default_outputs({"data": np.ones((1, 3, 16, 16), "float32")}).ravel()[:3]
    name, *numbers = re.findall(r"classes|-?\d+\.\d+(?:e-?\d+)?", done.stdout)
    assert name == "classes"
    assert np.allclose([float(number) for number in numbers], expected, atol=1e-6)


def test_the_example_without_the_package_tvm_needs_two_files(library: Path, tmp_path: Path) -> None:
    """The runtime and the library, beside the wheel apache-tvm-ffi."""
    shutil.copy(Path(tvm.__path__[0]) / "lib" / "libtvm_runtime.so", tmp_path)
    shutil.copy(library, tmp_path / "model.so")
    text = example("python", "ctypes").replace("224", "16")
    text = f"{ALONE}sys.modules['tvm'] = None\n{text}"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    expected = default_outputs({"data": np.ones((1, 3, 16, 16), "float32")}).ravel()[:3]
    assert np.allclose([float(number) for number in done.stdout.strip(" []\n").split()], expected, atol=1e-6)


def test_the_example_with_tunehub_is_one_call(library: Path, tmp_path: Path) -> None:
    shutil.copy(library, tmp_path / "model.so")
    text = example("python", "tunehub.load").replace("224", "16").replace("model.onnx", "model.so")
    text += "print(output.shape)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stdout == "(1, 10)\n", done.stderr


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_the_cpp_example_is_built_with_the_wheels_headers_and_runs(library: Path, tmp_path: Path) -> None:
    (tmp_path / "run.cc").write_text(example("cpp"))
    shutil.copy(library, tmp_path / "model.so")
    text = f"SITE={Path(tvm.__path__[0]).parent}\n{example('sh').replace('224', '16')}"
    done = subprocess.run(["sh", "-ec", text], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    interface, *numbers = done.stdout.splitlines()
    assert '"name":"data"' in interface
    expected = default_outputs({"data": np.ones((1, 3, 16, 16), "float32")}).ravel()[:3]
    assert np.allclose([float(number) for number in numbers], expected, atol=2e-6)


def test_a_library_can_be_read_by_all_who_could_read_any_new_file(library: Path) -> None:
    umask = os.umask(0o022)
    os.umask(umask)
    assert stat.S_IMODE(library.stat().st_mode) & 0o444 == 0o444 & ~umask


def test_what_is_shared_is_one_file_where_the_disk_can_and_a_copy_where_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, shared, copied = (tmp_path / name for name in ("made.so", "shared.so", "copied.so"))
    made.write_bytes(b"library")
    share_library(made, shared)
    assert shared.samefile(made)
    monkeypatch.setattr(Path, "hardlink_to", lambda *_: (_ for _ in ()).throw(OSError("another disk")))
    share_library(made, copied)
    assert copied.read_bytes() == b"library" and not copied.samefile(made) and len(list(tmp_path.glob("*.so*"))) == 3


def test_a_full_disk_leaves_what_was_there(executable: Any, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    old = folder / "model.so"
    old.write_bytes(b"old")
    full = program(tmp_path / "cc", 'ulimit -f 1\nexec g++ "$@"')
    with pytest.raises(LinkError, match=r"model\.so: linking failed: .+\(.+\)"):
        write_library(executable, old, str(full))
    assert old.read_bytes() == b"old" and list(folder.iterdir()) == [old]


def test_a_full_folder_of_temporary_files_is_an_error_before_llvm_ends_the_process(
    executable: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    with pytest.raises(
        LinkError, match=r"writes about 5 MB into .+, where 1\.0 MB are left \(free space there, or set TM"
    ):
        write_library(executable, tmp_path / "model.so", weights=3 << 20)


def test_what_the_linker_says_is_the_reason(executable: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = program(tmp_path / "cc", "echo '/usr/bin/ld: final link failed: No space left on device' >&2; exit 1")
    with pytest.raises(LinkError, match=r"No space left on device \(free space there"):
        write_library(executable, tmp_path / "model.so", str(failing))
    with pytest.raises(LinkError, match=r"no program .*nowhere.*install a C\+\+ compiler"):
        write_library(executable, tmp_path / "model.so", str(tmp_path / "nowhere"))
    for name in ("CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(LinkError, match=r"no C\+\+ compiler was found \(install"):
        write_library(executable, tmp_path / "model.so")
    assert not list(tmp_path.glob("model.so*"))


def test_being_asked_to_end_while_linking_leaves_nothing(tmp_path: Path) -> None:
    """As `tunehub compile` is by a terminal or a container's runtime."""
    folder = tmp_path / "folder"
    folder.mkdir()
    waiting = program(tmp_path / "cc", f"echo $$ > {tmp_path / 'linking'}\nexec sleep 60")
    text = f"""
from pathlib import Path
from types import SimpleNamespace
import subprocess
from tunehub.cli.compile import ending_cleanly
from tunehub.deploy.library import write_library
export = lambda path, **_: subprocess.run([{str(waiting)!r}], check=True)
with ending_cleanly():
    write_library(SimpleNamespace(export_library=export), Path({str(folder / "model.so")!r}))
"""
    process = subprocess.Popen([sys.executable, "-c", text])
    while not (tmp_path / "linking").is_file():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 128 + signal.SIGTERM
    assert not list(folder.iterdir())


def test_places_that_cannot_be_written_are_named_before_anything_is_compiled(tmp_path: Path) -> None:
    check_writable(tmp_path / "model.so", "--output")
    with pytest.raises(LibraryError, match=r"--output: '.*nowhere/model\.so': its folder does not exist"):
        check_writable(tmp_path / "nowhere" / "model.so", "--output")
    with pytest.raises(LibraryError, match="is a folder"):
        check_writable(tmp_path, "--output")
    with pytest.raises(LibraryError, match=r"/proc/model\.so"):
        check_writable(Path("/proc/model.so"), "--output")
    assert not list(tmp_path.glob("*.so"))


@pytest.mark.parametrize("part", [0.3, 0.9])
def test_a_library_whose_end_is_missing_is_refused_before_it_is_loaded(
    library: Path, tmp_path: Path, part: float
) -> None:
    torn, size = tmp_path / "torn.so", library.stat().st_size
    torn.write_bytes(library.read_bytes()[: int(part * size)])
    with pytest.raises(LibraryError, match=rf"torn\.so.*is not whole: it has {int(part * size)} of {size} bytes"):
        Library(torn)


def test_a_model_is_no_library(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"x")
    with pytest.raises(LibraryError, match=r"model\.onnx.*does not end in \.so; `tunehub compile MODEL`"):
        Library(model)


def test_what_is_no_library_of_ours_is_named(executable: Any, tmp_path: Path) -> None:
    foreign, text = tmp_path / "foreign.so", tmp_path / "text.so"
    text.write_text("x")
    write_library(executable, foreign)
    for path, reason in (
        (tmp_path / "nowhere.so", "no such file"),
        (text, "is no shared library"),
        (foreign, "tunehub_interface"),
    ):
        with pytest.raises(LibraryError, match=rf"{path.name}.*({reason}).*tunehub compile"):
            Library(path)


ZEN4 = tvm.target.Target({"kind": "llvm", "mcpu": "znver4", "mtriple": "x86_64-unknown-linux-gnu"})


def stated(interface: Interface, path: Path, target: Any = TARGET, **functions: Any) -> Path:
    """A library of one number that says this of itself."""
    builder = tvm.relax.BlockBuilder()
    with builder.function("main", []):
        builder.emit_func_output(tvm.relax.const(np.ones(3, "float32")))
    write_library(tvm.compile(with_interface(builder.get(), interface), target), path)
    return path


def says(**changes: Any) -> Interface:
    one = TensorSpec(name="one", dtype="float32", shape=(3,))
    fields: dict[str, Any] = {"inputs": (), "outputs": (one,), "target": "{}", "device": "llvm"}
    return Interface(**{**fields, "tvm": "0.27.0", "tunehub": "0.1.0", **changes})


def test_the_interface_names_what_the_code_may_use() -> None:
    from ...tiny_networks import tiny_mobilenet

    found = interface_of(tiny_mobilenet().relax_module(), ZEN4)
    assert found.arch == "x86_64" and {"avx512f", "avx512bf16", "fma"} <= set(found.features)


@pytest.mark.parametrize(
    "changes", [{"features": ("avx2", "avx512f", "fma")}, {"target": str(ZEN4)}], ids=["stated", "as libraries before"]
)
def test_code_for_another_cpu_is_refused_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    monkeypatch.setattr("tunehub.deploy.library.machine_arch", lambda: "x86_64")
    monkeypatch.setattr("tunehub.deploy.library.cpu_features", lambda: frozenset({"avx2", "fma", "avx", "f16c"}))
    path = stated(says(**changes), tmp_path / "model.so")
    with pytest.raises(LibraryError, match=r"model\.so': its code may use what this CPU lacks: .*avx512f.*--target"):
        Library(path)
    monkeypatch.setattr("tunehub.deploy.library.cpu_features", lambda: None)  # a system that does not tell
    assert Library(path).interface == says(**changes)


def test_code_for_another_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LibraryError, match=r"compiled for riscv64, this machine is"):
        Library(stated(says(arch="riscv64"), tmp_path / "model.so"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": "nothing"}, "model.so"),
        ({"outputs": says().outputs * 2}, "'one' stands twice"),
        ({"inputs": says().outputs}, r"running it failed: "),
        ({"outputs": ()}, "names 0 outputs, it gave 1 arrays"),
    ],
)
def test_an_interface_that_is_not_of_its_library_is_an_error_that_names_it(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    path = stated(says(**changes), tmp_path / "model.so")
    with pytest.raises(LibraryError, match=reason) as error:
        made = Library(path)
        made.outputs(made.runner(random_inputs(made.interface, {}, seed=1))())
    assert "model.so" in str(error.value) and "compile" in str(error.value)


@pytest.mark.parametrize(
    ("arch", "here", "refused"),
    [
        ("sm_90a", "9.0", False),
        ("sm_90a", "10.0", True),
        ("sm_90", "8.6", True),
        ("sm_80", "9.0", False),
        (None, "8.0", False),
    ],
)
def test_code_for_another_gpu_is_refused(arch: str | None, here: str, refused: bool) -> None:
    library = Library.__new__(Library)
    library.interface = says(device="cuda", arch=arch)
    library._device = SimpleNamespace(compute_version=here)
    assert (library._other_gpu() is not None) == refused
