"""Commands run in this process, as from a shell."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from tunehub.cli import main


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: object) -> CommandResult:
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        return CommandResult(int(stop.value.code or 0), shown.out, shown.err)

    return run
