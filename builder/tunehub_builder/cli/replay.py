"""`tunehub replay`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from tunehub.cli.options import json_option
from tunehub.cli.output import print_json, print_table, say
from tunehub_builder.cli.errors import errors
from tunehub_builder.cli.options import EXISTING, FILE, writable

if TYPE_CHECKING:
    from tunehub.target.tvm_releases import TVMRelease
    from tunehub_registry.compat import Compat, NetworkSample, ReleaseReplay

_SHOWN = 10


@click.command()
@click.argument("packages", metavar="PACKAGE.tunepkg...", nargs=-1, required=True, type=FILE)
@click.option("--tvm", default="all", show_default=True, help="The releases, such as 0.27,0.26.")
@click.option("--model", "models", multiple=True, type=EXISTING, help="A model that has workloads of the records.")
@click.option("--from-misses", "misses", multiple=True, type=EXISTING, help="A file of misses that has some.")
@click.option("-o", "--output", type=FILE, callback=writable,
              help="Where to write the results, to be attached to the package.")  # fmt: skip
@click.option("--here", is_flag=True, help="Replay on the TVM that is installed here, and make no environment.")
@json_option
def replay(
    packages: Sequence[Path],
    tvm: str,
    models: Sequence[Path],
    misses: Sequence[Path],
    output: Path | None,
    here: bool,
    as_json: bool,
) -> None:
    """Replay every record of PACKAGEs on releases of TVM, each in an environment of its own.

    Environments are made by uv, where it is there, and kept in the cache. `tunehub attach` publishes the results beside
    the package: clients then leave out what their TVM cannot use. Exits with 1 when a record fails, or a network that
    is compiled with those that do not.

    Workloads come from the networks that the package was made of, where they are known by name, and from the files that
    are given. An ONNX file is imported anew on each release; misses are for the release that wrote them.
    """
    import sys

    from tunehub._files.atomic import write_file
    from tunehub.options import read_options
    from tunehub_builder.replay.environments import environment
    from tunehub_builder.replay.releases import installed_release, parse_releases
    from tunehub_builder.replay.run import replay as replay_on
    from tunehub_builder.replay.workloads import WorkloadFiles
    from tunehub_registry.compat import encode_compat

    if output is not None and len(packages) > 1:
        raise click.UsageError("-o: give one package, the results are of one")
    cache = read_options().cache
    files = WorkloadFiles(models=_absolute(models), misses=_absolute(misses))

    def python_of(release: TVMRelease) -> Path:
        return Path(sys.executable) if here else environment(release, cache)

    found: list[Compat] = []
    with errors():
        releases = (installed_release(),) if here else parse_releases(tvm)
        for path in packages:
            found.append(replay_on(path, releases, python_of, partial(_say, path), files))
            if output is not None:
                write_file(output, encode_compat(found[-1]))
    if as_json:
        print_json({"packages": [_summary(compat) for compat in found]})
    else:
        for compat in found:
            _print(compat)
    sys.exit(1 if any(_failed(release) for compat in found for release in compat.releases) else 0)


def _failed(release: ReleaseReplay) -> bool:
    sample = release.sample is not None and release.sample.outcome == "failed"
    return sample or any(item.outcome == "failed" for item in release.records)


def _absolute(paths: Sequence[Path]) -> tuple[str, ...]:
    return tuple(str(path.absolute()) for path in paths)


def _say(path: Path, release: TVMRelease) -> None:
    say(f"{path.name}: TVM {release.version} …", err=True)


def _print(compat: Compat) -> None:
    say(f"{compat.name} {compat.version}")
    rows = []
    for release in compat.releases:
        for tuner in sorted({item.tuner for item in release.records}):
            counts = Counter(item.outcome for item in release.records if item.tuner == tuner)
            ran = sum(item.ran for item in release.records if item.tuner == tuner)
            found = (counts[key] for key in ("ok", "differs", "failed", "not_run"))
            rows.append((release.tvm, tuner, *map(str, (*found, ran))))
    print_table(("TVM", "RECORDS", "OK", "TEXT DIFFERS", "FAILED", "NOT TRIED", "RUN"), rows, empty="no records")
    for release in compat.releases:
        for item in [item for item in release.records if item.outcome == "failed"][:_SHOWN]:
            say(f"TVM {release.tvm}: {item.tuner} {item.key}: {item.reason}")
        untried = Counter(item.reason for item in release.records if item.outcome == "not_run")
        for reason, count in untried.most_common(_SHOWN):
            say(f"TVM {release.tvm}: {count} not tried: {reason}")
        if release.sample is not None:
            say(f"TVM {release.tvm}: {_said(release.sample)}")


def _said(sample: NetworkSample) -> str:
    if sample.outcome == "failed":
        return f"{sample.network} failed: {sample.reason}"
    how = "compiled and run, with the default's outputs" if sample.ran else "compiled"
    return f"{sample.network} {how}: records serve {sample.by_record} of {sample.workloads} workloads"


def _summary(compat: Compat) -> dict[str, object]:
    releases = [
        {
            "tvm": release.tvm,
            "sample": msgspec.to_builtins(release.sample),
            "counts": dict(Counter(f"{item.tuner} {item.outcome}" for item in release.records)),
            "failed": [
                {"tuner": item.tuner, "key": item.key, "reason": item.reason}
                for item in release.records
                if item.outcome == "failed"
            ],
        }
        for release in compat.releases
    ]
    return {"name": compat.name, "version": compat.version, "sha256": compat.package, "releases": releases}
