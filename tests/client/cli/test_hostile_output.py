"""Every command, with registries, packages and files whose every text is hostile: nothing of it reaches a terminal or
the log of a CI as anything but plain text."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from tunehub.cli.group import cli
from tunehub.cli.reference import walk
from tunehub_registry.evidence import read_evidence
from tunehub_registry.exceptions import RegistryError
from tunehub_registry.index import parse_index, parse_shard, shard_path
from tunehub_registry.manifest import parse_manifest
from tunehub_registry.printable import plain
from tunehub_registry.record import parse_record

from ...hostile import places
from ..conftest import SKYLAKE, RegistryFolder

SECRET = "typed-by-somebody"
COMMANDS = {path: command for path, command in walk(cli, ()) if not isinstance(command, click.Group)}
OBEYED = "::error::x ##[add-path]/x ##vso[task.x]y ##teamcity[z] "
HOSTILE = f"\x1b]0;pwn\x07\x1b[31mred\n::error::x\r\u202eevil\u2028\x9b31m\u200f\n  ::set-output name=a::b {OBEYED}"
WORDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("attach",): ("{registry}", "{file}", "--unsigned"),
    ("attest",): ("{package}", "--key", "{file}", "-o", "{out}"),
    ("bench",): ("{model}",),
    ("cache", "clear"): ("--yes",),
    ("calibrate",): ("--device", HOSTILE),
    ("catalogue",): ("{registry}", "-o", "{out}"),
    ("check",): ("{package}",),
    ("compile",): ("{model}",),
    ("delegate",): ("{registry}", HOSTILE, "--key", "{file}", "--names", HOSTILE),
    ("demo",): (HOSTILE,),
    ("deprecate",): ("{registry}", "llvm-skylake", "--successor", HOSTILE, "--unsigned"),
    ("distill",): ("{folder}",),
    ("explain",): ("{model}",),
    ("export", "metaschedule"): ("{out}", "--model", "{model}"),
    ("export", "tophub"): ("{out}",),
    ("fetch",): ("llvm-skylake",),
    ("import",): ("{file}", "-o", "{out}"),
    ("init",): ("{registry}", "--unsigned"),
    ("key", "new"): ("{file}", "--no-passphrase"),
    ("key", "show"): ("{file}",),
    ("lock",): ("llvm-skylake", "--tvm", "0.27.0", "-o", "{out}"),
    ("mirror",): ("{registry}", "{out}"),
    ("pack",): ("{folder}", "--version", "1.0.0"),
    ("publish",): ("{registry}", "{package}", "--unsigned"),
    ("rebuild",): ("{package}", "{folder}"),
    ("refresh",): ("{registry}", "--root", "{file}"),
    ("replay",): ("{file}",),
    ("resolve",): ("llvm-skylake",),
    ("review",): ("{folder}",),
    ("rotate",): ("{registry}", HOSTILE, "--new-key", "{file}"),
    ("run",): ("{file}",),
    ("show",): ("llvm-skylake",),
    ("submit",): ("{folder}", "--version", "1.0.0", "--sign-off", HOSTILE),
    ("sync",): ("--lock", "{file}"),
    ("timestamp",): ("{registry}", "--root", "{file}", "--online-key", "{file}"),
    ("trust", "add"): ("{registry}", "{file}"),
    ("trust", "attester", "add"): ("{file}",),
    ("trust", "bind"): (HOSTILE, "{registry}"),
    ("tune",): ("--work", "{out}", "--model", "{model}"),
    ("undeprecate",): ("{registry}", "llvm-skylake", "--unsigned"),
    ("unyank",): ("{registry}", "llvm-skylake==0.2.0", "--unsigned"),
    ("yank",): ("{registry}", "llvm-skylake==0.2.0", "--reason", HOSTILE, "--unsigned"),
}  # fmt: skip

READERS = [
    (name,)
    for name in ("list", "show", "resolve", "lock", "fetch", "mirror", "catalogue", "publish", "yank", "rebuild")
]

# Warnings are printed, not raised.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default::UserWarning")]


def all_hostile(document: bytes) -> bytes:
    """A document of JSON whose every text, keys of objects aside, is hostile."""
    return _with(document, list(places(json.loads(document))), HOSTILE, lambda _: None)


def admitted(document: bytes, parse: Callable[[bytes], object]) -> bytes:
    """A document of JSON in which each text is as hostile as its reader admits."""
    found = list(places(json.loads(document)))
    return _with(_with(document, found, OBEYED, parse), found, HOSTILE, parse)


def _with(document: bytes, found: list[tuple[str | int, ...]], text: str, parse: Callable[[bytes], object]) -> bytes:
    for path in found:
        value = json.loads(document)
        inner = value
        for part in path[:-1]:
            inner = inner[part]
        if not path or not isinstance(inner[path[-1]], str):
            continue
        inner[path[-1]] = text
        changed = json.dumps(value).encode()
        try:
            parse(changed)
        except RegistryError:
            continue
        document = changed
    return document


def lines_of(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    return b"".join(change(line) + b"\n" for line in data.splitlines())


def changed_package(package: Path, change: Callable[[str, bytes], bytes], *more: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(package) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
        for name in more:
            new.writestr(name, b"x")
    return made.getvalue()


def as_admitted(name: str, data: bytes) -> bytes:
    if name == "manifest.json":
        return admitted(data, lambda text: parse_manifest(text, "x"))
    if name.startswith("records/"):
        return lines_of(data, lambda line: admitted(line, lambda text: parse_record(text, "x")))
    return lines_of(data, lambda line: admitted(line, lambda text: list(read_evidence(io.BytesIO(text), "x"))))


def as_hostile(name: str, data: bytes) -> bytes:
    return all_hostile(data) if name == "manifest.json" else lines_of(data, all_hostile)


def set_shard(made: RegistryFolder, change: Callable[[bytes], bytes], package: bytes | None = None) -> None:
    """Change a shard; the index has its hash and size, and the shard those of the `package` of its last version."""
    index = json.loads((made.root / "index.json").read_bytes())
    entry = index["names"]["llvm-skylake"]
    shard = json.loads((made.root / shard_path(entry["shard"])).read_bytes())
    if package is not None:
        last = shard["versions"][-1]
        last.update(sha256=hashlib.sha256(package).hexdigest(), size=len(package))
        (made.root / last["file"]).write_bytes(package)
    data = change(json.dumps(shard).encode())
    entry.update(shard=hashlib.sha256(data).hexdigest(), shard_size=len(data))
    (made.root / shard_path(entry["shard"])).write_bytes(data)
    (made.root / "index.json").write_text(json.dumps(index))


def same(data: bytes) -> bytes:
    return data


def as_its_readers_admit(made: RegistryFolder, package: Path) -> None:
    set_shard(
        made, lambda data: admitted(data, lambda text: parse_shard(text, "x")), changed_package(package, as_admitted)
    )
    index = (made.root / "index.json").read_bytes()
    (made.root / "index.json").write_bytes(admitted(index, lambda text: parse_index(text, "x")))


def hostile_index(made: RegistryFolder, package: Path) -> None:
    index = made.root / "index.json"
    index.write_bytes(all_hostile(index.read_bytes()))


def hostile_name(made: RegistryFolder, package: Path) -> None:
    index = made.root / "index.json"
    index.write_text(index.read_text().replace('"llvm-skylake"', json.dumps(HOSTILE)))


def hostile_shard(made: RegistryFolder, package: Path) -> None:
    set_shard(made, all_hostile)


def hostile_version(made: RegistryFolder, package: Path) -> None:
    set_shard(made, lambda data: data.replace(b'"0.1.0"', json.dumps(HOSTILE).encode()))


def hostile_package(made: RegistryFolder, package: Path) -> None:
    set_shard(made, same, changed_package(package, as_hostile))


def hostile_member(made: RegistryFolder, package: Path) -> None:
    set_shard(made, same, changed_package(package, lambda _, data: data, HOSTILE))


KINDS = (
    as_its_readers_admit, hostile_index, hostile_name, hostile_shard, hostile_version, hostile_package, hostile_member
)  # fmt: skip


@pytest.fixture
def given(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Path]:
    made = RegistryFolder(tmp_path / "hostile")
    made.publish(SKYLAKE, "0.1.0", yanked="a bad one")
    evidence = {
        "type": "record", "exact": "1" * 32, "default_s": 1.0, "tuned_s": 0.5, "speedup": 2.0, "repeats": 3,
        "threads": 1, "spread": 0.1, "output_max_rel_diff": 0.0, "admitted": False, "reason": "r",
    }  # fmt: skip
    package = made.publish(SKYLAKE, "0.2.0", evidence=json.dumps(evidence) + "\n")
    getattr(request, "param", as_its_readers_admit)(made, package)
    folder = tmp_path / "folder"
    folder.mkdir()
    file, model = tmp_path / "file\x1b]0;x\x07\n::error::x", tmp_path / "model.onnx"
    file.write_text(json.dumps({HOSTILE: HOSTILE, "format_version": HOSTILE, "schema_version": HOSTILE}))
    model.write_bytes(HOSTILE.encode())
    for name in ("submission.json", "run.json", "tasks.jsonl"):
        (folder / name).write_bytes(file.read_bytes())
    (folder / file.name).write_bytes(b"x")
    monkeypatch.setenv("TUNEHUB_REGISTRY", f"{made.root},http://user:{SECRET}@127.0.0.1:9/{HOSTILE.split()[0]}")
    monkeypatch.chdir(tmp_path)
    return {
        "registry": made.root,
        "package": package,
        "file": file,
        "model": model,
        "folder": folder,
        "out": tmp_path / "o",
    }


def assert_plain(text: str) -> None:
    assert "".join(char for char in text if char != "\n" and not char.isprintable()) == ""
    assert [line for line in text.splitlines() if line.lstrip().startswith("::")] == []
    assert "##[" not in text and "##vso[" not in text and "##teamcity[" not in text
    assert SECRET not in text


def words_of(path: tuple[str, ...]) -> tuple[str, ...]:
    """The arguments of a command: hostile words where nothing else is stated, for what it does not go without."""
    if path in WORDS:
        return WORDS[path]
    wanted = [parameter for parameter in COMMANDS[path].params if parameter.required]
    return tuple(word for each in wanted for word in (*each.opts[: isinstance(each, click.Option)], HOSTILE))


def assert_shown_plainly(run: Any, given: Mapping[str, Path], words: tuple[str, ...]) -> str:
    done = run(*words, *(word.format_map(given) if "{" in word else word for word in words_of(words)))
    assert_plain(done.out)
    assert_plain(done.err)
    return str(done.out + done.err)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_nothing_hostile_is_printed_by(run: Any, given: Mapping[str, Path], words: tuple[str, ...]) -> None:
    assert_shown_plainly(run, given, words)


@pytest.mark.parametrize("given", KINDS[1:], indirect=True, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_no_error_is_hostile_of(run: Any, given: Mapping[str, Path], words: tuple[str, ...]) -> None:
    assert_shown_plainly(run, given, words)


def test_what_is_hostile_is_shown_as_plain_text(run: Any, given: Mapping[str, Path]) -> None:
    assert ": :error::x # #[add-path]/x # #vso[task.x]y" in assert_shown_plainly(run, given, ("show",))
    assert ": :error::x # #[add-path]/x # #vso[task.x]y" in assert_shown_plainly(run, given, ("resolve",))


@pytest.mark.parametrize("words", [("list",), ("show", "llvm-skylake"), ("resolve", "llvm-skylake"), ("trust", "ls")])
def test_json_escapes_what_does_not_print(run: Any, given: Mapping[str, Path], words: tuple[str, ...]) -> None:
    done = run(*words, "--json")
    assert done.out.isascii()
    assert [line for line in done.out.splitlines() if line.lstrip().startswith("::")] == []
    assert_plain(done.err)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("tvm::ffi::Error: a::b", "tvm::ffi::Error: a::b"),
        ("::error::x", ": :error::x"),
        ("x ##[group]y", "x # #[group]y"),
        ("https://a:b@host/x", "https://***@host/x"),
        ("https://token@host", "https://***@host"),
        ("http://host:80/x@1", "http://host:80/x@1"),
        ("https://b/x?X-Amz-Date=1&X-Amz-Signature=ab12&y=1", "https://b/x?X-Amz-Date=1&X-Amz-Signature=***&y=1"),
        ("a\nb\u2028c\ud800", "a\ufffdb\ufffdc\ufffd"),
    ],
)
def test_a_text_is_plain(text: str, shown: str) -> None:
    assert plain(text) == shown == plain(shown)
