"""Replays: which releases there are, workers that die, texts that differ, and a published package on the TVM here."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from tunehub.target.tvm_releases import RELEASES
from tunehub_builder.exceptions import BuilderError
from tunehub_builder.replay.releases import installed_release, parse_releases
from tunehub_builder.replay.run import compared, replay
from tunehub_registry.compat import RecordReplay, ReleaseReplay

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "packages" / "llvm-znver4-0.3.0.tunepkg"
FIRST = RELEASES[0]


@pytest.mark.fast
def test_releases_by_name() -> None:
    assert parse_releases("all") == RELEASES
    assert [item.version for item in parse_releases("0.26, 0.27.0.post1,0.26")] == ["0.26", "0.27"]
    for wrong in ("0.24", "newest", ""):
        with pytest.raises(BuilderError, match=r"expected all, or some of 0\.27"):
            parse_releases(wrong)


@pytest.mark.fast
def test_other_text_than_that_of_the_newest_release_is_said() -> None:
    def release(tvm: str, *texts: str) -> ReleaseReplay:
        records = [
            RecordReplay(tuner="template", key=f"{at:032x}", outcome="ok", text=text * 32)
            for at, text in enumerate(texts)
        ]
        return ReleaseReplay(tvm=tvm, records=tuple(records))

    found = compared([release("0.27.0", "a", "b"), release("0.26.0", "a", "c")])
    assert [[item.outcome for item in each.records] for each in found] == [["ok", "ok"], ["ok", "differs"]]


_DYING = """#!{python}
import os, pathlib, sys
job, sink = map(pathlib.Path, sys.argv[-2:])
said = job.read_text()
key = "0" * 32
with sink.open("a") as out:
    out.write('{{"type":"Started","tvm":"0.27.0"}}\\n')
    if "squeezenet" not in said:
        out.write('{{"type":"Begun","tuner":"","key":"squeezenet"}}\\n')
    elif key not in said:
        out.write('{{"type":"Begun","tuner":"template","key":"%s"}}\\n{{"type":' % key)
    else:
        sys.exit(0)
    out.flush()
    os.kill(os.getpid(), 11)
"""


@pytest.mark.fast
def test_a_worker_that_dies_is_started_behind_what_it_died_on(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(_DYING.format(python=sys.executable))
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    found = replay(PACKAGE, [FIRST], lambda _: python, lambda _: None)
    (result,) = found.releases[0].records
    assert (result.outcome, result.reason) == ("failed", "TVM died of signal 11")


@pytest.mark.fast
def test_a_worker_that_cannot_start_is_an_error() -> None:
    with pytest.raises(BuilderError, match=r"the worker for TVM 0\.27 ended with exit code 1"):
        replay(PACKAGE, [FIRST], lambda _: Path("/bin/false"), lambda _: None)


@pytest.mark.slow
def test_a_published_package_on_the_tvm_here() -> None:
    found = replay(PACKAGE, [installed_release()], lambda _: Path(sys.executable), lambda _: None)
    outcomes = {(item.tuner, item.outcome) for item in found.releases[0].records}
    assert ("template", "ok") in outcomes
    assert ("ladder", "ok") in outcomes
    assert all(outcome in ("ok", "not_run") for _, outcome in outcomes)
    assert len(found.releases[0].records) == 41
