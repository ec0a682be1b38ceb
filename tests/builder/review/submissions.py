"""Work directories for submissions, changes to submissions, and what a review says of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from tunehub.cli.group import cli
from tunehub_builder.tuning.target import tvm_versions
from tunehub_builder.tuning.work_directory import RunFile, TaskEntry, TuningRun, WorkDirectory
from tunehub_registry.manifest import NetworkEntry
from tunehub_registry.review import parse_review
from tunehub_registry.submission import SUBMISSION

SIGNED_OFF = "Ada Byron <ada@example.org>"


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def tuned_in(path: Path, target: dict[str, Any], task: TaskEntry) -> WorkDirectory:
    """A work directory of one workload, without a trial yet."""
    directory = WorkDirectory(path)
    directory.path.mkdir()
    version, ffi = tvm_versions()
    made = TuningRun(
        command="tunehub tune", started="2026-01-01T00:00:00Z", updated="2026-01-01T00:00:00Z", seed=0, threads=1,
        networks=("tiny",), options={"trials": 2}, machine={},
    )  # fmt: skip
    network = NetworkEntry(name="tiny", source="test", inputs={"data": (1, 2)}, dtype="float32")
    name = f"llvm-{target['mcpu']}"
    directory.save_run(
        RunFile(
            target_name=name, target=target, tvm_version=version, tvm_ffi_version=ffi, networks=(network,), runs=(made,)
        )
    )
    directory.save_tasks([task])
    return directory


def reviewed(folder: Path, *options: object, code: int = 1) -> dict[str, Any]:
    """The verdict and reason of each check."""
    output = folder.parent / "review.json"
    run("review", folder, "--threads", 1, "-o", output, *options, code=code)
    review = parse_review(output.read_bytes(), "review")
    assert review.state == ("quarantined" if code else "verified")
    return {check.name: check for check in review.checks}


def refusals(folder: Path, *options: object) -> dict[str, str]:
    return {n: check.reason for n, check in reviewed(folder, *options).items() if check.verdict == "refused"}


def resealed(folder: Path, **fields: Any) -> None:
    """Write the hashes of the files as they are now, as somebody who means it would."""
    stated = json.loads((folder / SUBMISSION).read_bytes())
    for name in stated["files"]:
        data = (folder / name).read_bytes()
        stated["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    (folder / SUBMISSION).write_text(json.dumps({**stated, **fields}))


def changed_lines(folder: Path, name: str, change: Callable[[Any], None]) -> None:
    rows = [json.loads(line) for line in (folder / name).read_bytes().splitlines()]
    for row in rows:
        change(row)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
