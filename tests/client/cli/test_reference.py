"""Help, examples, the reference and completion: of all commands, the builder's among them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from tunehub.cli.examples import EXAMPLES, examples_of
from tunehub.cli.group import cli
from tunehub.cli.reference import reference, walk

pytestmark = pytest.mark.fast

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference.md"
COMMANDS = [(path, command) for path, command in walk(cli, ()) if not isinstance(command, click.Group)]


def test_the_document_is_what_the_commands_say() -> None:
    wanted = "run: python -m tunehub.cli.reference > docs/reference.md"
    assert DOCUMENT.read_text(encoding="utf-8") == reference(), wanted


@pytest.mark.parametrize(
    ("path", "command"), COMMANDS, ids=lambda value: "-".join(value) if type(value) is tuple else ""
)
def test_every_command_has_an_example_in_its_help(path: tuple[str, ...], command: click.Command) -> None:
    assert examples_of(path)
    shown = command.get_help(click.Context(command, info_name=" ".join(path)))
    assert all(" ".join(line.split()) in " ".join(shown.split()) for line in examples_of(path))


@pytest.mark.parametrize("line", EXAMPLES.splitlines())
def test_every_example_is_a_call_of_a_command(line: str) -> None:
    first, *words = shlex.split(line)
    path, command = max(((p, c) for p, c in COMMANDS if tuple(words[: len(p)]) == p), key=lambda item: len(item[0]))
    context = click.Context(command)
    command.make_parser(context).parse_args(words[len(path) :])  # raises for an option that is not there
    needed = [each for each in command.params if isinstance(each, click.Argument) and each.required]
    given = [word for word in words[len(path) :] if not word.startswith("-")]
    assert first == "tunehub" and len(given) >= len(needed)


@pytest.mark.parametrize(
    ("words", "expected"),
    [("tunehub com", "compile"), ("tunehub trust un", "unbind"), ("tunehub compile --prec", "--precision")],
)
def test_a_shell_is_told_what_can_follow(words: str, expected: str) -> None:
    env: dict[str, Any] = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    code = "from tunehub.cli import main; main([])"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env, "_TUNEHUB_COMPLETE": "bash_complete"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert f"plain,{expected}" in done.stdout.splitlines(), done.stderr
