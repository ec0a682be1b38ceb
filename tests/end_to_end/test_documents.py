"""Command blocks of documents, as they are printed: run in the environment of the extras that the document names, and
none left out without a reason."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.documents.blocks import DOCUMENTS, ROOT, Step, named_extras, steps, tunehub_words
from tests.documents.scenes import ELSEWHERE, LEFT_OUT, SCENES, Scene, sha256
from tests.sweeps import swept

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tunehub.cli import cli

NOTHING = Scene()
# In every run: what a newcomer reads first, and what takes no time. The others' commands have tests of their own.
ALWAYS = ("README.md", "docs/compile.md", "docs/registry.md", "docs/attest.md", "docs/trust.md")


def scene_of(document: str) -> Scene:
    return SCENES.get(document, NOTHING)


def runs(document: str) -> Iterator[Step]:
    """The steps that are run."""
    return (step for step in steps(document) if scene_of(document).reason(step) is None)


@pytest.mark.slow
@pytest.mark.parametrize("document", swept(ALWAYS, [each for each in SCENES if any(runs(each))]))
def test_a_document_does_what_it_says_in_the_environment_that_it_names(document: str, tmp_path: Path) -> None:
    scene = scene_of(document)
    done = list(runs(document))
    groups = [[step] for step in done] if scene.alone else [done]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TUNEHUB_")}
    environment |= {
        "TUNEHUB_CACHE": str(tmp_path / "cache"), "XDG_DATA_HOME": str(tmp_path / "data"), "TVM_NUM_THREADS": "2",
        "TUNEHUB_BUDGET": "120", "PYTHONWARNINGS": "ignore", "TUNEHUB_KEY_PASSPHRASE": "of the keys",
    }  # fmt: skip
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patched:
        for name in ("TUNEHUB_CACHE", "XDG_DATA_HOME", "TUNEHUB_KEY_PASSPHRASE"):
            patched.setenv(name, environment[name])
        scene.files(folder)
    environment |= publishing(folder)
    swapped = {**({"HEX": sha256(folder / "root.json")} if (folder / "root.json").exists() else {})}
    task = {
        "extras": sorted(named_extras(document)),
        "prelude": scene.prelude,
        "path": [str(ROOT / part) for part in ("client", "builder", "registry", ".")],
        "groups": [[(step.language, with_words(scene.text(step), swapped)) for step in group] for group in groups],
    }
    command = [sys.executable, str(ROOT / "tests" / "documents" / "process.py"), json.dumps(task)]
    found = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, f"{document}\n{found.stdout[-2000:]}\n{found.stderr[-4000:]}"


def publishing(folder: Path) -> dict[str, str]:
    """The keys that publishers have in their environment, and the root that they trust."""
    keys = {"TUNEHUB_KEY": "acme.pem", "TUNEHUB_ONLINE_KEY": "online.pem"}
    return {name: str(folder / file) for name, file in keys.items() if (folder / "dist").exists()}


def with_words(text: str, swapped: dict[str, str]) -> str:
    for word, other in swapped.items():
        text = text.replace(word, other)
    return text


@pytest.mark.fast
@pytest.mark.parametrize("document", [each for each in DOCUMENTS if each not in SCENES and each not in ELSEWHERE])
def test_what_no_test_does_has_a_reason(document: str) -> None:
    assert not [str(step) for step in steps(document) if NOTHING.reason(step) is None]


@pytest.mark.fast
def test_reasons_are_those_of_steps_that_there_are() -> None:
    texts = [step.text for document in DOCUMENTS for step in steps(document)]
    every = list(LEFT_OUT)
    for document, scene in SCENES.items():
        own = Scene(left_out=scene.left_out)
        for pattern in scene.left_out:
            assert any(own.reason(step) == scene.left_out[pattern] for step in steps(document)), (document, pattern)
    assert not [pattern for pattern in every if not any(re.match(pattern, text) for text in texts)]


@pytest.mark.fast
@pytest.mark.parametrize("document", [each for each in DOCUMENTS if each not in ELSEWHERE])
def test_commands_that_are_not_run_are_ones_that_the_command_line_reads(document: str) -> None:
    """Their words are parsed, with the values of options; files that are not there may be missing."""
    for step in steps(document):
        words = tunehub_words(step)
        if words and scene_of(document).reason(step) is not None:
            parsed(step, words)


def parsed(step: Step, words: list[str]) -> None:
    command: click.Command = cli
    context = click.Context(cli)
    words = words[: words.index("|")] if "|" in words else words
    while isinstance(command, click.Group) and words:
        command = command.get_command(context, words[0]) or pytest.fail(str(step))
        context, words = click.Context(command, info_name=words[0], parent=context), words[1:]
    try:
        command.make_context(context.info_name, list(words), parent=context.parent)
    except click.UsageError as error:
        assert "does not exist" in str(error), (str(step), str(error))
