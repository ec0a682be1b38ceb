"""The process that replays a package on the TVM of its environment: `python -m tunehub_builder.replay.worker`.

It writes a line of JSON for whatever it begins and ends, so that its starter knows on what it died and goes on behind
that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tunehub.target.tvm_generation import find_tvm, require_tvm
from tunehub_builder.replay.results import OnBegin
from tunehub_builder.replay.workloads import WorkloadFiles
from tunehub_registry.compat import NetworkSample, RecordReplay
from tunehub_registry.ladder_record import LadderRecord
from tunehub_registry.package import Package, open_package


class Started(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first line: the TVM that was found."""

    tvm: str


class Begun(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What may end the process: a network (`tuner` is empty), or a record."""

    tuner: str = ""
    key: str


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What came of a record."""

    result: RecordReplay


class SampleEnded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What came of a whole network."""

    sample: NetworkSample


Line = Started | Begun | Ended | SampleEnded


class ReplayJob(msgspec.Struct, frozen=True, kw_only=True):
    """What to replay: a package, without what is `done` (tuner and key); where workloads come from beside the networks
    known by name; and the names of networks and files to be `passed_over`. Or, with `sample`, a whole network with the
    records that are `done`."""

    package: str
    files: WorkloadFiles = WorkloadFiles()
    done: tuple[tuple[str, str], ...] = ()
    passed_over: tuple[str, ...] = ()
    sample: bool = False


def replay_package(package: Package, job: ReplayJob, on_begin: OnBegin) -> Iterator[RecordReplay]:
    """What comes of each record that the installed TVM is to serve."""
    done = frozenset(job.done)
    if require_tvm() == "relay":
        from tunehub_builder.replay.logs import replay_logs

        yield from replay_logs(package, done, on_begin)
    else:
        from tunehub_builder.replay.records import replay_records

        yield from replay_records(package, job.files, done, frozenset(job.passed_over), on_begin)


def sample_of(package: Package, job: ReplayJob, on_begin: OnBegin) -> NetworkSample | None:
    """What comes of a whole network with the records that are done; None where none can be built by name."""
    from tunehub_builder.replay.records import records_by_tuner
    from tunehub_builder.replay.sample import compile_sample

    done = frozenset(job.done)
    records = [
        record
        for tuner, own in records_by_tuner(package).items()
        for key, record in own.items()
        if (tuner, key) in done and not isinstance(record, LadderRecord)
    ]
    return compile_sample(package.manifest, records, on_begin)


def main(arguments: list[str]) -> None:
    """Read a job from a file, and append lines to another."""
    job = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=ReplayJob)
    with Path(arguments[1]).open("ab", buffering=0) as stream:

        def write(line: Line) -> None:
            stream.write(msgspec.json.encode(line) + b"\n")

        def begin(tuner: str, key: str) -> None:
            write(Begun(tuner=tuner, key=key))

        found = find_tvm()
        write(Started(tvm=found.version if found else "0"))
        with open_package(Path(job.package)) as package:
            if not job.sample:
                for result in replay_package(package, job, begin):
                    write(Ended(result=result))
            elif (sample := sample_of(package, job, begin)) is not None:
                write(SampleEnded(sample=sample))


if __name__ == "__main__":
    main(sys.argv[1:])
