"""The commands that write to registries, on folders; read back by `tunehub list` and the index itself."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tunehub.cli import cli
from tunehub.cli.group import COMMANDS
from tunehub_registry.manifest import Manifest, Provenance, RecordSet
from tunehub_registry.package import pack
from tunehub_registry.target import TargetDescriptor

pytestmark = pytest.mark.fast

RECORDS = "records/meta_schedule.jsonl"
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in an empty folder; `code` is the expected exit code."""
    monkeypatch.chdir(tmp_path)
    for name in ("KEY", "ONLINE_KEY", "KEY_PASSPHRASE", "TRUST", "LOCK"):
        monkeypatch.delenv(f"TUNEHUB_{name}", raising=False)

    def invoke(*args: str, code: int = 0, **options: Any) -> Result:
        result = CliRunner().invoke(cli, list(args), **options)
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return invoke


@pytest.fixture
def registry(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A signed registry `reg` with the publisher `acme` of llvm-*; keys in the working folder and the environment."""
    for name in ("root", "targets", "online", "acme"):
        run("key", "new", f"{name}.pem", "--no-passphrase")
    run("init", "reg", *_keys("root", "targets", "online"), "--save-root", "root.json")
    run("delegate", "reg", "acme", "--key", "acme.pem.pub", "--names", "llvm-*", *_keys("targets", "online"))
    monkeypatch.setenv("TUNEHUB_KEY", "acme.pem")
    monkeypatch.setenv("TUNEHUB_ONLINE_KEY", "online.pem")
    return run


def _keys(*names: str) -> list[str]:
    return [part for name in names for part in (f"--{name}-key", f"{name}.pem")]


def write_package(
    path: Path, version: str = "0.1.0", model: str = "znver5", content: bytes = b"{}\n", **more: Any
) -> str:
    target = TargetDescriptor(kind="llvm", model=model, arch="x86_64", **more)
    manifest = Manifest(
        name=target.name,
        version=version,
        target=target,
        record_sets=(RecordSet(tuner="meta_schedule", file=RECORDS, tvm=">=0.25", key_scheme="k", count=1),),
        provenance=Provenance(
            machine={"cpu": "test"}, tvm_version="0.27.0", tvm_ffi_version="0.1.14", tuner_options={}, trials=1, seed=0,
            command="test", started="2026-01-31T10:00:00Z", finished="2026-01-31T12:00:00Z", threads=2,
        ),
    )  # fmt: skip
    path.write_bytes(pack(manifest, {RECORDS: content}))
    return str(path)


def test_key_new_writes_two_files_and_never_over_them(run: Run, tmp_path: Path) -> None:
    result = run("key", "new", "a.pem", env={"TUNEHUB_KEY_PASSPHRASE": "secret"})
    assert "ENCRYPTED" in (tmp_path / "a.pem").read_text()
    assert "PRIVATE" not in result.output
    assert stat.S_IMODE((tmp_path / "a.pem").stat().st_mode) == 0o600
    shown = run("key", "show", "a.pem.pub").output
    assert shown.splitlines()[0] in result.output
    before = (tmp_path / "a.pem").read_bytes()
    assert "the file exists" in run("key", "new", "a.pem", "--no-passphrase", code=1).output
    assert (tmp_path / "a.pem").read_bytes() == before
    assert "no terminal to ask" in run("key", "new", "b.pem", code=2).output
    assert json.loads(run("key", "new", "c.pem", "--no-passphrase", "--json").output)["public_file"] == "c.pem.pub"
    assert "this is a private key" in run("key", "show", "a.pem", code=1).output


def test_a_signed_registry_from_keys_to_yank(registry: Run, tmp_path: Path) -> None:
    first = write_package(tmp_path / "a.tunepkg")
    second = write_package(tmp_path / "b.tunepkg", "0.2.0")
    done = json.loads(registry("publish", "reg", first, second, "--json").output)
    assert [item["outcome"] for item in done["packages"]] == ["published", "published"]
    assert "was there already" in registry("publish", "reg", first).output
    other = write_package(tmp_path / "c.tunepkg", "0.1.0", content=b"{} \n")
    assert "never changes" in registry("publish", "reg", other, code=1).output
    assert "yanked: slow" in registry("yank", "reg", "llvm-znver5==0.1.0", "--reason", "slow").output
    assert "llvm-znver5 0.1.0: no longer yanked" in registry("unyank", "reg", "llvm-znver5==0.1.0").output
    assert "no version 9" in registry("yank", "reg", "llvm-znver5==9", "--reason", "x", code=1).output
    assert "NAME==VERSION" in registry("yank", "reg", "llvm-znver5", "--reason", "x", code=2).output
    listed = json.loads(registry("list", "--registry", str(tmp_path / "reg"), "--json").output)
    assert [item["version"] for item in listed["packages"]] == ["0.2.0", "0.1.0"]


def test_a_package_is_shown_by_its_file_before_it_is_published(run: Run, tmp_path: Path) -> None:
    path = write_package(tmp_path / "a.tunepkg")
    text = run("show", path).output
    assert text.startswith("llvm-znver5 0.1.0 (") and path in text and "records: 1 of meta_schedule" in text
    found = json.loads(run("show", path, "--json").output)
    assert (found["name"], found["version"], found["registry"]) == ("llvm-znver5", "0.1.0", path)
    assert "give a file that `tunehub pack` wrote" in run("show", "none.tunepkg", code=1).output
    Path(path).write_bytes(b"PK")
    assert "a.tunepkg" in run("show", path, code=1).output


def test_who_delegates_again_is_told_what_that_replaces(registry: Run) -> None:
    options = ("--key", "acme.pem.pub", *_keys("targets", "online"))
    same = registry("delegate", "reg", "acme", "--names", "llvm-*", *options).output
    assert "acme may publish llvm-*" in same and "replaces" not in same
    keyid = json.loads(registry("key", "show", "acme.pem.pub", "--json").output)["keyid"]
    changed = registry("delegate", "reg", "acme", "--names", "llvm-znver*", *options).output
    assert f"acme may publish llvm-znver*; this replaces llvm-* by 1 of the keys {keyid}" in changed
    found = json.loads(registry("delegate", "reg", "acme", "--names", "llvm-*", *options, "--json").output)
    assert found["replaces"].startswith("llvm-znver* by 1 of the keys ")


def test_aliases_that_do_not_count_are_said_to_who_publishes_them(registry: Run, tmp_path: Path) -> None:
    own = write_package(tmp_path / "a.tunepkg", aliases=("EPYC",))
    assert registry("publish", "reg", own).stderr == ""
    names = ("--names", "llvm-znver5", *_keys("targets", "online"))
    registry("delegate", "reg", "acme", "--key", "acme.pem.pub", *names)
    done = registry("publish", "reg", write_package(tmp_path / "b.tunepkg", "0.2.0", aliases=("ZnVer4", "znver5")))
    assert "Warning: llvm-znver5 0.2.0 does not serve its aliases ZnVer4: " in done.stderr
    assert "`tunehub delegate STORE PUBLISHER --names llvm-znver4 …`" in done.stderr


def test_publishers_without_the_online_key_and_the_signing_job(
    registry: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = write_package(tmp_path / "a.tunepkg")
    online = ("--online-key", "online.pem")
    monkeypatch.delenv("TUNEHUB_ONLINE_KEY")
    done = registry("publish", "reg", package)
    assert "proposed" in done.stdout and "`tunehub timestamp`" in done.stderr
    assert "no packages" in registry("list", "--registry", str(tmp_path / "reg"), "cuda").output
    assert "give --online-key" in registry("timestamp", "reg", code=2).output
    said = registry("timestamp", "reg", *online).output
    assert "acme (version 1): llvm-znver5 0.1.0" in said and "is new" in said
    listed = json.loads(registry("list", "--registry", str(tmp_path / "reg"), "--json").output)
    assert [item["version"] for item in listed["packages"]] == ["0.1.0"]
    again = json.loads(registry("timestamp", "reg", *online, "--json").output)
    assert (again["published"], again["refused"], again["timestamp"]["new"]) == ([], [], False)
    registry("yank", "reg", "llvm-znver5==0.1.0", "--reason", "slow\x1b[31m")
    (tmp_path / "reg" / "metadata" / "3.acme.json").write_text("{}")
    refused = registry("timestamp", "reg", *online, code=3)
    assert "Refused: acme (version 3): " in refused.stderr
    assert "yanked: slow" in refused.stdout and "\x1b" not in refused.output
    assert "root.pem" not in registry("timestamp", "reg", "--online-key", "root.pem", code=1).output


def test_auditing_and_witnessing(registry: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry("publish", "reg", write_package(tmp_path / "a.tunepkg"))
    said = registry("audit", "reg").output
    assert "llvm-znver5 0.1.0 published" in said and "nothing is wrong" in said
    registry("key", "new", "w.pem", "--no-passphrase")
    where, keyid = str(tmp_path / "reg"), json.loads(registry("key", "show", "w.pem.pub", "--json").output)["keyid"]
    assert "no witnesses" in registry("trust", "witness", "ls", where).output
    assert "has 0 witnesses" in registry("trust", "witness", "need", where, "1", code=1).output
    registry("trust", "witness", "add", where, "w.pem.pub")
    assert "1 of them needed" in registry("trust", "witness", "need", where, "1").output
    assert "need changes" not in registry("trust", "witness", "ls", where, "--json").output
    refused = registry("list", "--registry", where, code=1)
    assert "1 of its witnesses have to have seen its log within 7 days, and 0 did" in refused.output
    assert "for --witness" in registry("audit", "reg", "--witness-name", "w", code=2).output
    assert (
        "cosigned as w.example" in registry("audit", "reg", "--witness", "w.pem", "--witness-name", "w.example").output
    )
    assert "llvm-znver5" in registry("list", "--registry", where).output
    assert "are needed" in registry("trust", "witness", "remove", where, keyid, code=1).output
    registry("trust", "witness", "need", where, "0")
    assert "removed" in registry("trust", "witness", "remove", where, keyid).output
    registry("trust", "witness", "remove", where, keyid, code=1)


def test_an_audit_finds_a_fork_and_keeps_both_heads(
    registry: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEHUB_TRUST", str(tmp_path / "trust"))
    root = ("--root", "root.json")
    package = write_package(tmp_path / "a.tunepkg")
    shutil.copytree("reg", "fork")
    registry("publish", "reg", package, *root)
    registry("audit", "reg", *root)
    shutil.rmtree("reg")
    Path("fork").rename("reg")
    registry("publish", "reg", package, write_package(tmp_path / "b.tunepkg", "0.2.0"), *root)
    registry("publish", "reg", write_package(tmp_path / "c.tunepkg", "0.3.0"), *root)
    done = registry("audit", "reg", "--json", *root, code=3)
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["kind"] == "fork"
    assert "seen before: 3 entries, root " in finding["text"] and "shown now: 4 entries, root " in finding["text"]
    (kept,) = (tmp_path / "trust" / "logs").glob("*.fork-*.json")
    assert str(kept) in done.stderr
    registry("key", "new", "w.pem", "--no-passphrase")
    assert "cosigned" not in registry("audit", "reg", "--witness", "w.pem", *root, code=3).output


def test_init_says_what_is_missing(run: Run) -> None:
    assert "give --root-key" in run("init", "reg", code=2).output
    run("key", "new", "k.pem", "--no-passphrase")
    assert "give --targets-key" in run("init", "reg", "--root-key", "k.pem", code=2).output
    keys = ("--targets-key", "k.pem", "--online-key", "k.pem")
    assert "nowhere.pem" in run("init", "reg", "--root-key", "nowhere.pem", *keys, code=1).output
    assert "leave the other options out" in run("init", "reg", "--unsigned", *keys, code=2).output
    assert not Path("reg").exists()


def test_init_twice(registry: Run) -> None:
    assert "registry here already" in registry("init", "reg", *_keys("root", "targets", "online"), code=1).output


def test_publishing_needs_a_trusted_root(registry: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = write_package(tmp_path / "a.tunepkg")
    monkeypatch.setenv("TUNEHUB_TRUST", str(tmp_path / "elsewhere"))
    assert "no root is trusted for reg: give --root" in registry("publish", "reg", package, code=2).output
    registry("publish", "reg", package, "--root", "root.json")


def test_names_of_others_and_wrong_keys_are_refused(registry: Run, tmp_path: Path) -> None:
    package = write_package(tmp_path / "a.tunepkg")
    assert "publisher acme needs 1" in registry("publish", "reg", package, "--key", "root.pem", code=1).output
    assert "not to other" in registry("publish", "reg", package, "--role", "other", code=1).output
    registry("delegate", "reg", "acme", "--remove", *_keys("targets"))
    assert "nobody may publish" in registry("publish", "reg", package, code=1).output
    assert "or --remove alone" in registry("delegate", "reg", "acme", *_keys("targets"), code=2).output


def test_rotating_and_refreshing(registry: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("root2", "targets2", "online2", "acme2"):
        registry("key", "new", f"{name}.pem", "--no-passphrase")
    registry("publish", "reg", write_package(tmp_path / "a.tunepkg"))
    registry("rotate", "reg", "root", "--root-key", "root.pem", "--new-key", "root2.pem")
    registry("rotate", "reg", "targets", "--root-key", "root2.pem", "--new-key", "targets2.pem")
    registry("rotate", "reg", "online", "--root-key", "root2.pem", "--new-key", "online2.pem")
    assert "--online-key" in registry("refresh", "reg", code=1).output
    monkeypatch.setenv("TUNEHUB_ONLINE_KEY", "online2.pem")
    registry("rotate", "reg", "acme", "--targets-key", "targets2.pem", "--new-key", "acme2.pem")
    assert json.loads(registry("refresh", "reg", "--json").output) == {"near_expiry": []}
    registry("publish", "reg", write_package(tmp_path / "b.tunepkg", "0.2.0"), "--key", "acme2.pem")
    assert (
        "there is no publisher nobody"
        in registry("rotate", "reg", "nobody", "--targets-key", "targets2.pem", "--new-key", "acme2.pem", code=1).output
    )


def test_administrators_without_the_online_key_and_the_signing_job(
    registry: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("targets2", "acme2", "nv"):
        registry("key", "new", f"{name}.pem", "--no-passphrase")
    registry("publish", "reg", write_package(tmp_path / "a.tunepkg"))
    monkeypatch.delenv("TUNEHUB_ONLINE_KEY")
    job = ("timestamp", "reg", "--online-key", "online.pem")
    given = ("delegate", "reg", "nv", "--key", "nv.pem.pub", "--names", "cuda-*", *_keys("targets"))
    said = registry(*given)
    assert "once the signing job has run" in said.stdout and "`tunehub timestamp`" in said.stderr
    assert json.loads(registry(*given, "--json").stdout)["proposed"] is True
    assert "targets (version 3): nv may publish cuda-*" in registry(*job).output
    said = registry("delegate", "reg", "nv", "--remove", *_keys("targets"))
    assert "nv removed; no name will disappear" in said.stdout
    said = registry("rotate", "reg", "acme", *_keys("targets"), "--new-key", "acme2.pem")
    assert "once the signing job has run" in said.stdout
    said = registry(*job).output
    assert "acme (version 2): signed anew" in said and "nv is removed, acme has other keys" in said
    rotating = ("rotate", "reg", "targets", *_keys("root"), "--new-key", "targets2.pem")
    assert "when the signing job has run, run this again" in registry(*rotating).stdout
    assert json.loads(registry(*rotating, "--json").stdout)["done"] is False
    registry(*job)
    assert "from now on; destroy the old key" in registry(*rotating).stdout
    assert "give --online-key" in registry("refresh", "reg", code=2).output
    assert "the root is new" in registry("refresh", "reg", *_keys("root")).stdout
    renewing = ("refresh", "reg", "--targets-key", "targets2.pem", "--key", "acme2.pem")
    assert "the signing job renews it" in registry(*renewing).stdout
    said = registry(*job).output
    assert "targets (version 7): signed anew" in said and "acme (version 3): signed anew" in said
    registry("publish", "reg", write_package(tmp_path / "b.tunepkg", "0.2.0"), "--key", "acme2.pem")
    assert "llvm-znver5 0.2.0" in registry(*job).output


def test_users_of_a_deprecated_version_are_told_what_to_use(
    registry: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry("publish", "reg", write_package(tmp_path / "a.tunepkg"), write_package(tmp_path / "b.tunepkg", "0.2.0"))
    old, newer = "llvm-znver5==0.1.0", "llvm-znver5>=0.2"
    done = registry("deprecate", "reg", old, "--successor", newer, "--reason", "made for TVM 0.25")
    said = "deprecated, use llvm-znver5>=0.2: made for TVM 0.25"
    assert f"llvm-znver5 0.1.0: {said}" in done.output
    monkeypatch.setenv("TUNEHUB_REGISTRY", "reg")
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    registry("trust", "add", "reg", "root.json")
    rows = json.loads(registry("list", "llvm-znver5", "--json").stdout)["packages"]
    assert [row["successor"] for row in rows if row["registry"] != "embedded"] == [
        None, "llvm-znver5>=0.2: made for TVM 0.25"
    ]  # fmt: skip
    assert said in registry("show", old).output
    assert f"llvm-znver5 0.1.0 is {said}" in registry("lock", old, "--tvm", "0.27.0").output
    assert "is deprecated, use llvm-znver5>=0.2" in registry("sync").output
    assert "deprecated" not in registry("sync", "--frozen").output
    both = json.loads(registry("undeprecate", "reg", "llvm-znver5", "--json").stdout)["packages"]
    assert [row["successor"] for row in both] == [None, None]


def test_a_lock_says_once_that_a_pin_was_deprecated_since_and_upgrading_follows_when_asked(
    registry: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry("publish", "reg", write_package(tmp_path / "a.tunepkg"))
    monkeypatch.setenv("TUNEHUB_REGISTRY", "reg")
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    registry("trust", "add", "reg", "root.json")
    assert "deprecated" not in registry("lock", "llvm-znver5==0.1.0", "--tvm", "0.27.0").output
    registry("publish", "reg", write_package(tmp_path / "b.tunepkg", "0.2.0"))
    registry("deprecate", "reg", "llvm-znver5==0.1.0", "--successor", "llvm-znver5>=0.2", "--reason", "fewer records")
    locked = Path("tunehub.lock").read_bytes()
    said = "Note: llvm-znver5 0.1.0 is deprecated, use llvm-znver5>=0.2: fewer records"
    again = registry("lock")
    assert again.output.count(said) == 1 and "nothing changed" in again.output
    assert json.loads(registry("lock", "--json").stdout)["notes"] == [said.removeprefix("Note: ")]
    monkeypatch.setenv("TUNEHUB_REGISTRY", "gone")
    away = registry("lock")  # nothing is asked for that needs a registry
    assert "nothing changed" in away.output and "gone" not in away.output
    monkeypatch.setenv("TUNEHUB_REGISTRY", "reg")
    assert Path("tunehub.lock").read_bytes() == locked
    followed = registry("lock", "llvm-znver5>=0.2", "--upgrade", "llvm-znver5").output
    assert "upgraded llvm-znver5 0.1.0 -> 0.2.0" in followed and "deprecated" not in followed


@pytest.mark.parametrize(
    ("package", "successor", "message"),
    [
        ("llvm-znver5", "llvm-znver5>=2", "is no other package"),
        ("llvm-znver5==0.1.0", "llvm-znver5", "is no other package"),
        ("llvm-znver5", ">=2", "names no package"),
        ("llvm-znver5==", "llvm-znver6", "is not NAME==VERSION"),
    ],
)
def test_a_successor_is_another_package(registry: Run, package: str, successor: str, message: str) -> None:
    assert message in registry("deprecate", "reg", package, "--successor", successor, code=2).output


def test_a_reason_that_plays_with_terminals_is_refused(registry: Run, tmp_path: Path) -> None:
    registry("publish", "reg", write_package(tmp_path / "a.tunepkg"))
    result = registry("deprecate", "reg", "llvm-znver5", "--successor", "llvm-znver6", "--reason", "a\x1b[2Jb", code=1)
    assert "printable characters" in result.output


def test_unsigned_only_when_said(run: Run, tmp_path: Path) -> None:
    package = write_package(tmp_path / "a.tunepkg")
    assert "Warning: " in run("init", "plain", "--unsigned").output
    assert "Warning: " in run("publish", "plain", package, "--unsigned").output
    assert "--unsigned is for" in run("publish", "plain", package, code=2).output
    assert (tmp_path / "plain" / "index.json").exists()


def test_mirrors(registry: Run, tmp_path: Path) -> None:
    registry("publish", "reg", write_package(tmp_path / "a.tunepkg"), write_package(tmp_path / "b.tunepkg", "0.2.0"))
    done = json.loads(registry("mirror", "reg", "copy", "--json").output)
    assert (done["verbatim"], done["copied"]) == (True, 2)
    assert "0 packages copied" in registry("mirror", "reg", "copy").output
    root = ("--root", "copy/metadata/1.root.json")
    assert "a mirror has it only by" in registry("audit", "copy", *root, code=3).output
    assert "0 packages copied" in registry("mirror", "reg", "copy", "--history").output
    assert "nothing is wrong" in registry("audit", "copy", *root).output
    assert registry("mirror", "reg", "plain", "llvm-znver5", "--unsigned", "--history", code=2)
    done = json.loads(registry("mirror", "reg", "plain", "llvm-znver5>=0.2", "--unsigned", "--json").stdout)
    assert (done["verbatim"], done["copied"]) == (False, 1)
    assert "there is 0.1.0, 0.2.0" in registry("mirror", "reg", "plain", "llvm-znver5>9", "--unsigned", code=1).output
    assert "names no package" in str(registry("mirror", "reg", "plain", ">9", code=1).exception)


def test_a_mirror_has_the_notes_of_witnesses_that_are_named_or_trusted(registry: Run, tmp_path: Path) -> None:
    for name in ("w", "v"):
        registry("key", "new", f"{name}.pem", "--no-passphrase")
        registry("audit", "reg", "--witness", f"{name}.pem")
    w, v = (json.loads(registry("key", "show", f"{name}.pem.pub", "--json").output)["keyid"] for name in "wv")
    notes = tmp_path / "copy" / "log" / "witness"
    registry("mirror", "reg", "copy")
    assert not notes.exists()
    registry("mirror", "reg", "copy", "--witness", "w.pem.pub")
    assert {path.name for path in notes.iterdir()} == {w}
    registry("trust", "witness", "add", str(tmp_path / "reg"), "v.pem.pub")
    registry("mirror", "reg", "copy")
    assert {path.name for path in notes.iterdir()} == {v, w}


def test_a_key_from_the_environment_and_a_wrong_passphrase(registry: Run, tmp_path: Path) -> None:
    package = write_package(tmp_path / "a.tunepkg")
    pem = (tmp_path / "acme.pem").read_text()
    registry("publish", "reg", package, "--key", "env:ACME_PEM", env={"ACME_PEM": pem})
    registry("key", "new", "x.pem", env={"TUNEHUB_KEY_PASSPHRASE": "right"})
    wrong = registry("publish", "reg", package, "--key", "x.pem", env={"TUNEHUB_KEY_PASSPHRASE": "wrong"}, code=1)
    assert "the passphrase is wrong" in wrong.output


@pytest.mark.parametrize(
    "name",
    ["delegate", "deprecate", "init", "key", "mirror", "publish", "refresh", "rotate", "undeprecate", "unyank", "yank"],
)
def test_help(run: Run, name: str) -> None:
    assert name in COMMANDS
    assert f"Usage: cli {name}" in run(name, "--help").output
