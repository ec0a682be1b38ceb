"""A package on several releases: a worker in each environment, started anew behind what it died on; the document."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path

import msgspec
from msgspec import structs

from tunehub import __version__
from tunehub.target.tvm_releases import TVMRelease
from tunehub_builder.exceptions import BuilderError
from tunehub_builder.replay.results import failed_sample, failure
from tunehub_builder.replay.worker import Begun, Ended, Line, ReplayJob, SampleEnded, Started
from tunehub_builder.replay.workloads import WorkloadFiles
from tunehub_registry.compat import Compat, NetworkSample, RecordReplay, ReleaseReplay
from tunehub_registry.manifest import Manifest
from tunehub_registry.package import open_package, sha256_of

NO_FILES = WorkloadFiles()
_MAX_DEATHS = 16
_WORKER_S = 3600.0  # for all records of a package on one release
_ENDS = 5  # lines of a worker's output that an error shows

Environment = Callable[[TVMRelease], Path]
OnRelease = Callable[[TVMRelease], None]


def replay(
    path: Path, releases: Sequence[TVMRelease], environment: Environment, on_release: OnRelease,
    files: WorkloadFiles = NO_FILES,
) -> Compat:  # fmt: skip
    """Replay a package on releases, newest first. `environment` gives the Python for one; `files` have workloads that
    no network known by name has.

    Raises PackageError and FormatError for a bad package, BuilderError when a worker cannot start.
    """
    with open_package(path) as package:
        manifest: Manifest = package.manifest
    found: list[ReleaseReplay] = []
    for release in releases:
        on_release(release)
        found.append(_replay_on(release, ReplayJob(package=str(path.resolve()), files=files), environment(release)))
    return Compat(
        name=manifest.name,
        version=manifest.version,
        package=sha256_of(path),
        created_by=f"tunehub {__version__}",
        created=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        releases=compared(found),
    )


def compared(releases: Sequence[ReleaseReplay]) -> tuple[ReleaseReplay, ...]:
    """The results, with those told apart whose scheduled text is not that of the first release which has one."""
    texts: dict[tuple[str, str], str] = {}
    return tuple(
        structs.replace(release, records=tuple(_compared(item, texts) for item in release.records))
        for release in releases
    )


def _compared(item: RecordReplay, texts: dict[tuple[str, str], str]) -> RecordReplay:
    if item.outcome != "ok" or not item.text:
        return item
    same = texts.setdefault((item.tuner, item.key), item.text) == item.text
    return item if same else structs.replace(item, outcome="differs")


def _replay_on(release: TVMRelease, whole: ReplayJob, python: Path) -> ReleaseReplay:
    tvm = ""
    results: dict[tuple[str, str], RecordReplay] = {}
    passed_over: tuple[str, ...] = ()
    for _attempt in range(_MAX_DEATHS):
        job = structs.replace(whole, done=tuple(results), passed_over=passed_over)
        how, lines = _run_worker(python, job)
        tvm = next((line.tvm for line in lines if isinstance(line, Started)), tvm)
        results |= {(line.result.tuner, line.result.key): line.result for line in lines if isinstance(line, Ended)}
        if how is None:
            break
        if not lines or not isinstance(lines[-1], Begun):
            raise BuilderError(f"the worker for TVM {release.version} {how}")
        last = lines[-1]
        if last.tuner:
            results[last.tuner, last.key] = failure(last.tuner, last.key, f"TVM {how.splitlines()[0]}")
        else:
            passed_over = (*passed_over, last.key)
    else:
        raise BuilderError(f"the workers for TVM {release.version} died {_MAX_DEATHS} times")
    ordered = sorted(results.values(), key=lambda item: (item.tuner, item.key))
    served = tuple(key for key, result in results.items() if result.outcome in ("ok", "differs"))
    sample = _sampled(release, structs.replace(whole, done=served, sample=True), python) if served else None
    return ReleaseReplay(tvm=tvm, records=tuple(ordered), sample=sample)


def _sampled(release: TVMRelease, job: ReplayJob, python: Path) -> NetworkSample | None:
    """A whole network with the records that are done; releases with Relay have records for their own builds of one."""
    if not release.ffi:
        return None
    how, lines = _run_worker(python, job)
    begun = next((line.key for line in lines if isinstance(line, Begun)), None)
    if how is None or begun is None:
        if how is not None:
            raise BuilderError(f"the worker for TVM {release.version} {how}")
        return next((line.sample for line in lines if isinstance(line, SampleEnded)), None)
    return failed_sample(begun, f"TVM {how.splitlines()[0]}")


def _run_worker(python: Path, job: ReplayJob) -> tuple[str | None, list[Line]]:
    """How a worker ended, None for well, and what it wrote; a torn last line does not count."""
    with tempfile.TemporaryDirectory(prefix="tunehub-replay-") as folder:
        source, sink = Path(folder, "job.json"), Path(folder, "lines")
        source.write_bytes(msgspec.json.encode(job))
        sink.touch()
        command = [str(python), "-m", "tunehub_builder.replay.worker", str(source), str(sink)]
        environment = {**os.environ, "TOPHUB_LOCATION": "NONE"}
        try:
            done = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_WORKER_S
            )
            how = _ended(done.returncode, done.stderr)
        except subprocess.TimeoutExpired:
            how = f"took more than {_WORKER_S:.0f} s"
        rows = sink.read_bytes().split(b"\n")[:-1]
    return how, [msgspec.json.decode(row, type=Line) for row in rows]


def _ended(code: int, said: str) -> str | None:
    if code == 0:
        return None
    how = f"died of signal {-code}" if code < 0 else f"ended with exit code {code}"
    return "\n".join([how, *said.splitlines()[-_ENDS:]])
