"""`tunehub import`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from tunehub.cli.output import print_json, say
from tunehub.target.tvm_releases import RELAX_RANGE, RELAY_RANGE
from tunehub_builder.cli.errors import errors

if TYPE_CHECKING:
    from tunehub_builder.logs.read import ReadFile
    from tunehub_builder.logs.to_packages import ImportReport, Prover
    from tunehub_builder.logs.to_templates import TemplateImport
    from tunehub_builder.logs.tophub import FetchedLogs

_SHOWN = 20


@click.command("import")
@click.argument("names", metavar="[FILE | BACKEND]...", nargs=-1)
@click.option("--from", "place", metavar="tophub|PLACE",
              help="Fetch TopHub's files, of all BACKENDs or some: the public ones, or those of a mirror.")  # fmt: skip
@click.option("-o", "--output", required=True, type=click.Path(file_okay=False, path_type=Path),
              help="Folder that gets the packages (a registry) or the records; made if need be.")  # fmt: skip
@click.option("--as", "kind", type=click.Choice(["package", "template"]), default="package", show_default=True,
              help="Packages for TVM 0.8-0.19, or your own records of templates for TVM 0.25+.")  # fmt: skip
@click.option("--work", type=click.Path(file_okay=False, path_type=Path),
              help="With --as template: propose the knobs to this directory of `tunehub tune`.")  # fmt: skip
@click.option("--version", help="The packages' version.  [that of the file's name: cuda_v0.10.log, else 0.1.0]")
@click.option("--license", metavar="SPDX", help="The licence of the logs.  [not stated]")
@click.option("--proof/--no-proof", default=True, help="Load every record in TVM 0.8-0.19, where one is installed.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def import_logs(
    names: tuple[str, ...],
    place: str | None,
    output: Path,
    kind: str,
    work: Path | None,
    version: str | None,
    license: str | None,
    proof: bool,
    as_json: bool,
) -> None:
    """Make packages of tuning logs: AutoTVM 0.1 and 0.2 (TopHub's files), auto-scheduler 0.6.

    Every device model gets a package of its own. A line that cannot be used is listed with its reason and never loses
    the file. Exits with 1 when nothing could be imported.

    --from tophub imports TopHub's public files (arm_cpu, mali, adreno, rocm, opencl, intel_graphics, cuda, llvm, …),
    which are under Apache-2.0; their packages say where they are from.

    With --as template, AutoTVM's x86 lines become records of templates: a file DEVICE.jsonl for each device, in a
    folder that TUNEHUB_RECORDS takes. Their times are those of the log; nothing of them is published unmeasured.
    """
    if kind == "template" and (version is not None or license is not None):
        raise click.UsageError("--version and --license are for packages; records of templates have neither")
    if work is not None and kind != "template":
        raise click.UsageError("--work is for --as template")
    with TemporaryDirectory() as folder, errors():
        fetched = None if place is None else _fetched(place, names, Path(folder))
        files = _given(names) if fetched is None else fetched.files
        if kind == "template":
            _import_as_templates(files, output, work, as_json)
            return
        _import_as_packages(files, output, version, license, fetched, as_json=as_json, proof=proof)


def _import_as_packages(
    files: tuple[Path, ...],
    output: Path,
    version: str | None,
    license: str | None,
    fetched: FetchedLogs | None,
    *,
    as_json: bool,
    proof: bool,
) -> None:
    from tunehub_builder.logs.to_packages import import_as_packages
    from tunehub_builder.logs.tophub import LICENSE, PUBLIC

    origin = None if fetched is None else fetched.origin
    stated = license or (LICENSE if origin == PUBLIC else None)
    prover, how = _prover() if proof else (None, "not proved: --no-proof")
    report = import_as_packages(
        files, output, version=version, license=stated, prover=prover, proof=how, origin=origin
    )  # fmt: skip
    if as_json:
        print_json(report.as_json())
    else:
        _print(report, output)
    if not report.packages:
        raise SystemExit(1)


def _fetched(place: str, names: tuple[str, ...], folder: Path) -> FetchedLogs:
    from tunehub_builder.logs.tophub import fetch_tophub

    found = fetch_tophub(place, names, folder, lambda text: say(text, err=True))
    if found.missing:
        say(f"{found.place} has no {', '.join(found.missing)}", err=True)
    return found


def _given(names: tuple[str, ...]) -> tuple[Path, ...]:
    """The files that are named. Raises UsageError."""
    if not names:
        raise click.UsageError("give FILEs, or --from tophub")
    missing = next((name for name in names if not Path(name).is_file()), None)
    if missing is not None:
        raise click.UsageError(f"there is no file {missing!r}")
    return tuple(map(Path, names))


def _import_as_templates(files: tuple[Path, ...], output: Path, work: Path | None, as_json: bool) -> None:
    from tunehub.target.tvm_generation import find_tvm

    installed = find_tvm()
    if installed is None or installed.generation != "relax":
        found = f"TVM {installed.version} is installed" if installed else "no TVM is installed"
        raise click.ClickException(f"--as template keys layers with TVM {RELAX_RANGE}, but {found}")
    from tunehub_builder.logs.to_templates import import_as_templates

    report = import_as_templates(files, output, work)
    if as_json:
        print_json(report.as_json())
    else:
        _print_templates(report)
    if not report.translated:
        raise SystemExit(1)


def _print_templates(report: TemplateImport) -> None:
    for file in report.files:
        skipped = f", {len(file.skipped)} of them skipped" if file.skipped else ""
        say(f"{file.path}: {file.lines} lines{skipped}")
    workloads = len(report.translated) + len(report.refused)
    adapted = sum(bool(item.notes) for item in report.translated)
    noted = f"; --json has notes on {adapted} of them" if adapted else ""
    say(f"{len(report.translated)} of {workloads} workloads have knobs of a template{noted}")
    for item in report.refused[:_SHOWN]:
        say(f"  {item.file}:{item.line}: {item.name}: refused: {item.reason}")
    if len(report.refused) > _SHOWN:
        say(f"  and {len(report.refused) - _SHOWN} more; --json lists all")
    for device, path in report.written.items():
        count = sum(len(item.records) for item in report.translated if item.device == device)
        say(f"{path}: {count} records, with times of AutoTVM")
    if report.proposed is not None:
        say(f"{report.proposed} choices proposed: the next `tunehub tune` measures them")


def _prover() -> tuple[Prover | None, str]:
    from tunehub.target.tvm_generation import find_tvm

    installed = find_tvm()
    if installed is None or installed.generation != "relay" or installed.release < (0, 8):
        found = f"TVM {installed.version} is installed" if installed else "no TVM is installed"
        return None, f"not proved: {found}, records of this kind are loaded by TVM {RELAY_RANGE}"
    from tunehub_builder.backends.relay.prove import prove

    return prove, f"TVM {installed.version}"


def _print(report: ImportReport, output: Path) -> None:
    for file in report.files:
        _print_file(file)
    say(f"proof: {report.prover}")
    for package in report.packages:
        say(f"{output / package.file}: {package.records} records of {', '.join(package.tuners)}")
    if not report.packages:
        say("nothing was imported")


def _print_file(file: ReadFile) -> None:
    translated = sum(item.original is not None for item in file.imported)
    notes = [f"{translated} of them translated from v0.1"] if translated else []
    notes += [f"{len(file.skipped)} skipped"] if file.skipped else []
    notes += [f"TVM takes {file.proved}"] if file.proved else []
    notes += [f"{len(file.unproved)} not proved ({file.unproved[0].reason})"] if file.unproved else []
    say(f"{file.path}: {len(file.imported)} of {file.lines} records imported{''.join(f', {n}' for n in notes)}")
    remarks = [("skipped", remark) for remark in file.skipped]
    remarks += [("kept, though TVM does not take it", remark) for remark in file.refuted]
    for what, remark in remarks[:_SHOWN]:
        say(f"  {file.path.name}:{remark.line}: {what}: {remark.reason}")
    if len(remarks) > _SHOWN:
        say(f"  and {len(remarks) - _SHOWN} more; --json lists all")
