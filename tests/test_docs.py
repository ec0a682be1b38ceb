"""Documents: links lead somewhere, every ADR is in the index, and modules, paths, commands and options exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOP = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "packages/README.md")
DOCUMENTS = sorted([*(ROOT / name for name in TOP), *(ROOT / "docs").rglob("*.md")])
SOURCES = {
    "tunehub": ROOT / "client",
    "tunehub_builder": ROOT / "builder",
    "tunehub_registry": ROOT / "registry",
    "benchmarks": ROOT,
}
PARTS = ("client", "builder", "registry", "benchmarks", "tests")
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_MODULE = re.compile(r"`(?!tunehub\.lock`)((?:tunehub|tunehub_builder|tunehub_registry|benchmarks)(?:\.\w+)+)")
_PATH = re.compile(r"`((?:client|builder|registry|benchmarks|tests|docs|packages)/[a-z0-9_./-]+)`")
_OF_CODE = ("architecture.md", "CONTRIBUTING.md")  # which name files and folders by the ends of their paths
_END = re.compile(r"`([a-z][\w/]*(?:/|\.py|\.cuh))`")
_NAME = re.compile(r"`(\w+)`(?: of| in|, read by)? \(?`([\w/]+\.py)`")

pytestmark = [
    pytest.mark.fast,
    pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT))),
]


def slugs(document: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a document."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(document: Path) -> list[str]:
    """The relative links of a document."""
    found = _LINK.findall(_CODE.sub("", document.read_text()))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def test_every_relative_link_and_its_anchor_exist(document: Path) -> None:
    for link in links(document):
        place, _, anchor = link.partition("#")
        target = (document.parent / place).resolve() if place else document
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link
        assert not anchor or anchor in slugs(target), link


def test_every_module_and_path_that_is_named_exists(document: Path) -> None:
    text = document.read_text()
    for name in _MODULE.findall(text):
        parts = name.split(".")
        assert any(_module(parts[:n]) for n in range(len(parts), 1, -1)) or _in_package(parts), name
    for path in _PATH.findall(text):
        assert list(ROOT.glob(path)), path


def test_every_file_and_name_of_the_code_is_there(document: Path) -> None:
    text = document.read_text() if document.name in _OF_CODE else ""
    for end in (each for each in _END.findall(text) if "NAME" not in each):
        assert _ending_with(end), end
    for name, end in _NAME.findall(re.sub(r"\s+", " ", text)):
        assert any(re.search(rf"\b{name}\b", file.read_text()) for file in _ending_with(end)), f"{name} of {end}"


def _ending_with(end: str) -> list[Path]:
    whole = end.rstrip("/")
    return [
        ROOT / path
        for path in _paths()
        if f"/{path}".endswith(f"/{whole}") and (ROOT / path).is_dir() == (end != whole)
    ]


@cache
def _paths() -> list[Path]:
    below = (path for part in PARTS for path in (ROOT / part).rglob("*"))
    return [path.relative_to(ROOT) for path in (*ROOT.iterdir(), *below)]


def _module(parts: list[str]) -> bool:
    place = SOURCES[parts[0]].joinpath(*parts)
    return place.with_suffix(".py").is_file() or (len(parts) > 1 and place.is_dir())


def _in_package(parts: list[str]) -> bool:
    """Whether a package exports the one name after it, such as `tunehub.compile`."""
    package = SOURCES[parts[0]].joinpath(parts[0], "__init__.py")
    return len(parts) == 2 and re.search(rf"\b{parts[1]}\b", package.read_text()) is not None


def test_every_decision_is_in_the_index_once(document: Path) -> None:
    if document.parent.name == "adr" and document.name != "README.md":
        index = (document.parent / "README.md").read_text()
        number = int(document.name.split("-")[0])
        assert index.count(f"[{number}]({document.name})") == 1, "docs/adr/README.md has a line for each file"
        assert document.read_text().startswith(f"# {number}. ")


def test_every_command_and_option_of_the_command_line_exists(document: Path) -> None:
    click = pytest.importorskip("click")
    pytest.importorskip("msgspec")  # where nothing of tunehub is installed, another package may have brought click
    from tunehub.cli.group import cli

    for words in commands(document):
        command, context = cli, click.Context(cli)
        while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z]+", words[0]):
            name = words.pop(0)
            command = command.get_command(context, name)
            assert command is not None, f"tunehub {name}"
        known = {option for parameter in command.get_params(context) for option in parameter.opts}
        known |= {option for parameter in command.get_params(context) for option in parameter.secondary_opts}
        assert not {word.partition("=")[0] for word in words if word.startswith("--")} - known, (command.name, words)


def commands(document: Path) -> Iterator[list[str]]:
    """The words after `tunehub` of each call in code blocks and spans of a document."""
    text = document.read_text().replace("\\\n", " ")
    blocks = re.findall(r"^```.*?^```", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"^ {4,}.*", text, flags=re.MULTILINE) + re.findall(r"`(tunehub [^`\n]+)`", text)
    for line in lines:
        for call in re.split(r"\s#|&&", line):
            yield from (found.split() for found in re.findall(r"(?:^|[\s/])tunehub ([a-z]+\b.*)", call))
