"""docs/keys.md: the ceremony, and what is done when a key is lost, run as it is printed there."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tunehub.cli import cli
from tunehub.registries.port import Access
from tunehub.registries.signed import SignedRegistry
from tunehub.registries.trust_store import TrustStore
from tunehub_registry.stores.folder import FolderStore

from ..conftest import ZNVER5, make_package

pytestmark = pytest.mark.fast

PAGE = Path(__file__).parents[3] / "docs" / "keys.md"
STORES = {"s3://tunehub-registry-2": "reg2", "s3://tunehub-registry": "reg"}
NAME = ZNVER5.name


def commands(title: str) -> list[str]:
    """The commands in a section of the page."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0].replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if re.match(r" {4,}tunehub ", line)]


def titles() -> list[str]:
    return re.findall(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


class Drill:
    """An empty folder in which commands are run, and a user who trusts the root of the ceremony."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.user = folder / "user"

    def run(self, line: str, code: int = 0) -> Result:
        for name, place in STORES.items():
            line = re.sub(rf"{re.escape(name)}(?=\s|$)", str(self.folder / place), line)
        words = shlex.split(line)
        assert words.pop(0) == "tunehub"
        result = CliRunner().invoke(cli, words)
        assert result.exit_code == code, (line, result.output, result.exception)
        return result

    def section(self, title: str, first_job: int = 0, **words: str) -> None:
        """`first_job` is the exit code of the first run of the signing job."""
        codes = {"tunehub timestamp": first_job}
        for line in commands(title):
            for name, value in words.items():
                line = line.replace(name, value)
            self.run(line, codes.pop(" ".join(line.split()[:2]), 0))

    def publish(self, version: str, key: str = "acme.pem", online: str | None = "online.pem", code: int = 0) -> Result:
        file = self.folder / f"{NAME}-{version}.tunepkg"
        file.write_bytes(make_package(ZNVER5, version))
        extra = f"--online-key {online}" if online else ""
        return self.run(f"tunehub publish s3://tunehub-registry {file} --root root.json --key {key} {extra}", code)

    def versions(self, user: str = "user", store: str = "reg", root: str = "root.json") -> list[tuple[str, bool]]:
        """What a user sees, who keeps what they saw, and what of it is yanked."""
        access = Access(cache=self.folder / user / "cache", trust=TrustStore(self.folder / user / "trust"))
        registry = SignedRegistry(FolderStore(self.folder / store), (self.folder / root).read_bytes(), access)
        if NAME not in registry.names():
            return []
        return [(entry.version, entry.yanked is not None) for entry in registry.shard(NAME).versions]

    def keyid(self, file: str) -> str:
        found: str = json.loads(self.run(f"tunehub key show {file} --json").stdout)["keyid"]
        return found


@pytest.fixture
def drill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drill:
    """The ceremony is over, one version is published, and a user has seen it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUNEHUB_KEY_PASSPHRASE", "correct horse")
    monkeypatch.setenv("TUNEHUB_TRUST", str(tmp_path / "operator" / "trust"))
    for name in ("TUNEHUB_KEY", "TUNEHUB_ONLINE_KEY"):
        monkeypatch.delenv(name, raising=False)
    drill = Drill(tmp_path)
    drill.section("The ceremony")
    drill.publish("0.1.0")
    assert drill.versions() == [("0.1.0", False)]
    return drill


def check_goes_on(drill: Drill, key: str = "acme.pem", online: str = "online.pem", before: int = 1) -> None:
    """The old user and a new one see what is published then."""
    drill.publish("9.0", key, online)
    assert drill.versions()[-1] == drill.versions("fresh")[-1] == ("9.0", False)
    assert len(drill.versions()) == before + 1
    drill.run("tunehub audit s3://tunehub-registry --root root.json")


def test_every_section_is_drilled() -> None:
    assert set(titles()) == {"The ceremony", *DRILLS}
    assert all(commands(title) for title in titles())


@pytest.mark.parametrize("title", titles())
def test_each_section_does_what_it_says(drill: Drill, title: str) -> None:
    if title != "The ceremony":
        DRILLS[title](drill, title)
    else:
        check_goes_on(drill)


def root_key(drill: Drill, title: str) -> None:
    drill.section(title)
    renewal = "tunehub refresh s3://tunehub-registry --online-key online.pem"
    refused = drill.run(f"{renewal} --root-key root-cai.pem --root-key root-ada.pem", 1)
    assert "2 of the keys" in refused.output
    drill.run(f"{renewal} --root-key root-dan.pem --root-key root-ben.pem")
    check_goes_on(drill)


def two_root_keys(drill: Drill, title: str) -> None:
    drill.section(title)
    assert drill.versions("other", "reg2", "root2.json") == [("0.1.0", False)]


def targets_key(drill: Drill, title: str) -> None:
    drill.section(title)
    grant = "--key acme.pem.pub --names 'llvm-*' --names 'cuda-*' --online-key online.pem"
    refused = drill.run(f"tunehub delegate s3://tunehub-registry acme {grant} --targets-key targets.pem", 1)
    assert "give them with --targets-key" in refused.output
    drill.run(f"tunehub delegate s3://tunehub-registry acme {grant} --targets-key targets2.pem")
    check_goes_on(drill)


def online_key(drill: Drill, title: str) -> None:
    drill.section(title)
    assert "--online-key" in drill.publish("6.6.6", code=1).output
    check_goes_on(drill, online="online2.pem")


def publishers_key(drill: Drill, title: str) -> None:
    drill.publish("6.6.6")
    drill.publish("6.6.7", online=None)  # waits for the signing job
    drill.section(title, first_job=3)
    assert drill.versions() == [("0.1.0", False), ("6.6.6", True)]
    assert "--key" in drill.publish("6.6.8", code=1).output
    check_goes_on(drill, key="acme2.pem", before=2)


def attesters_key(drill: Drill, title: str) -> None:
    drill.run("tunehub key new lab.pem")
    drill.run("tunehub trust attester add lab.pem.pub")
    drill.section(title, KEYID=drill.keyid("lab.pem.pub"))
    listed = json.loads(drill.run("tunehub trust attester ls --json").stdout)["attesters"]
    assert [item["keyid"] for item in listed] == [drill.keyid("lab2.pem.pub")]


def witness_key(drill: Drill, title: str) -> None:
    drill.run("tunehub key new witness.pem")
    drill.run("tunehub trust witness add s3://tunehub-registry witness.pem.pub")
    drill.run("tunehub trust witness need s3://tunehub-registry 1")
    drill.run("tunehub audit s3://tunehub-registry --root root.json --witness witness.pem")
    assert drill.versions("operator") == [("0.1.0", False)]
    drill.section(title, KEYID=drill.keyid("witness.pem.pub"))
    listed = json.loads(drill.run("tunehub trust witness ls s3://tunehub-registry --json").stdout)
    assert (listed["needed"], [item["keyid"] for item in listed["witnesses"]]) == (1, [drill.keyid("witness2.pem.pub")])
    check_goes_on(drill)


DRILLS: dict[str, Callable[[Drill, str], None]] = {
    "A root key is lost or stolen": root_key,
    "Two root keys are lost, or stolen": two_root_keys,
    "The targets key is lost or stolen": targets_key,
    "The online key is lost or stolen": online_key,
    "A publisher's key is lost or stolen": publishers_key,
    "An attester's key is lost or stolen": attesters_key,
    "A witness's key is lost or stolen": witness_key,
}
