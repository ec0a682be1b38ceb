"""Commands run in this process, as from a shell."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
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


@pytest.fixture
def forget_modules(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have the modules whose names begin with some letters imported anew. After the test all is as it was, the
    attributes of their packages, too: else there would be two of every class, and errors that nobody catches."""

    def forget(beginning: str) -> None:
        for name in [name for name in sys.modules if name.startswith(beginning)]:
            package, _, attribute = name.rpartition(".")
            monkeypatch.delattr(sys.modules.get(package), attribute, raising=False)
            monkeypatch.delitem(sys.modules, name)

    return forget
