"""The example for GitHub Actions: it is YAML, its commands are tunehub's, and the job that runs others' code has no
secrets."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from tunehub.cli.group import cli

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.fast

FILE = Path(__file__).parents[3] / "docs" / "examples" / "review-submissions.yml"
WORKFLOW: dict[Any, Any] = yaml.safe_load(FILE.read_text())


def commands(job: str) -> list[list[str]]:
    text = "\n".join(step.get("run", "") for step in WORKFLOW["jobs"][job]["steps"]).replace("\\\n", " ")
    lines = re.findall(r"tunehub (?:review|publish) [^\n]*", text)
    return [shlex.split(re.sub(r'"?\$\([^)]*\)"?', "x", line)) for line in lines]


def test_the_job_that_runs_what_others_sent_has_no_secrets_and_may_not_write() -> None:
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert "secrets" not in str(WORKFLOW["jobs"]["review"])
    assert WORKFLOW["jobs"]["publish"]["if"] == "github.event_name == 'push'"
    assert "pull_request_target" not in str(WORKFLOW)


@pytest.mark.parametrize("job", ["review", "publish"])
def test_its_commands_are_calls_of_tunehub(job: str) -> None:
    found = commands(job)
    assert found
    for _, name, *words in found:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None and name == job
        command.make_parser(click.Context(command)).parse_args(words)
