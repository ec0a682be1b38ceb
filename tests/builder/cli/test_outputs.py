"""Files that commands of minutes write at their end."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tunehub.cli import cli
from tunehub.exceptions import LibraryError

pytestmark = pytest.mark.fast


def test_a_package_that_is_not_there_is_named(tmp_path: Path) -> None:
    ended = CliRunner().invoke(cli, ["replay", str(tmp_path / "none.tunepkg"), "--here"])
    assert ended.exit_code == 1 and "none.tunepkg: No such file or directory; give" in ended.output


@pytest.mark.parametrize(
    "command", [("attest", "x.tunepkg", "--key", "lab.key"), ("review", "submission"), ("replay", "x.tunepkg")]
)
def test_a_place_that_cannot_be_written_is_named_before_the_work(tmp_path: Path, command: tuple[str, ...]) -> None:
    ended = CliRunner().invoke(cli, [*command, "--output", str(tmp_path / "nowhere" / "x.json")])
    assert isinstance(ended.exception, LibraryError)
    assert "--output: " in str(ended.exception) and "its folder does not exist" in str(ended.exception)
