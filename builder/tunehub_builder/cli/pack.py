"""`tunehub pack`."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import click

from tunehub.cli.output import print_json, say
from tunehub_builder.cli.errors import errors
from tunehub_builder.cli.options import FILE, FOLDER
from tunehub_registry.licenses import DEFAULT_LICENSE


@click.command()
@click.argument("directory", metavar="[DIR]", type=FOLDER, required=False)
@click.option("--name", help="The package's name, to be sure: it must be that of the target.  [the target's]")
@click.option("--version", required=True, help="The package's version, such as 0.1.0.")
@click.option("-o", "--output", type=FOLDER, default=Path("packages"), show_default=True, help="Where to write it.")
@click.option("--index", type=FILE, help="Add the version to this index; the package goes to `packages` beside it.")
@click.option("--measured", type=FILE, help="JSON of `tunehub demo --json` with these records, kept as evidence.")
@click.option("--with", "base", type=FILE, help="A package of the same target: all that it holds goes along.")
@click.option("--without", metavar="KEY[=REASON]", multiple=True,
              help="Leave this record of the package given by --with out; its evidence says why.")  # fmt: skip
@click.option("--judged", type=FILE, help="What `tunehub check --again` wrote of the package given by --with.")
@click.option("--network", "networks", metavar="NAME", multiple=True,
              help="Only what is of this network, in all its precisions; may be repeated.")  # fmt: skip
@click.option("--evidence-alone", is_flag=True,
              help="What was measured, and none of the records: where rules are as good.")  # fmt: skip
@click.option("--profile", type=FILE, help="What `tunehub calibrate` kept of this CPU.  [that of DIR]")
@click.option("--license", default=DEFAULT_LICENSE, show_default=True, metavar="SPDX",
              help="The licence of what DIR gives; Apache-2.0 is the other usual one.")  # fmt: skip
@click.option("--base-license", metavar="SPDX", help="The licence of a package given by --with that states none.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON.")
def pack(
    directory: Path | None,
    name: str | None,
    version: str,
    output: Path,
    index: Path | None,
    measured: Path | None,
    base: Path | None,
    without: tuple[str, ...],
    judged: Path | None,
    networks: tuple[str, ...],
    evidence_alone: bool,
    profile: Path | None,
    license: str,
    base_license: str | None,
    as_json: bool,
) -> None:
    """Write the admitted records of DIR, with their evidence, as a package.

    With --with PACKAGE and --without KEY, DIR may be left out: the next version of PACKAGE without some of its records.
    So it may with --measured FILE, times of its networks, and with --judged FILE, which `tunehub check --again PACKAGE`
    wrote: records that lost go by themselves, what was measured of the others is their evidence.

    With --evidence-alone the package has no record: it says that rules are as good, as networks that were run beside
    them show, and clients that it serves look no further.

    With --network NAME the package is a bundle for that model, of DIR or PACKAGE: its records alone, to hand on.
    """
    from tunehub_builder.packing.left_out import read_left_out
    from tunehub_builder.packing.network_evidence import read_network_evidence
    from tunehub_builder.packing.pack import pack_directory
    from tunehub_builder.packing.publish import publish_locally
    from tunehub_builder.tuning.work_directory import WorkDirectory

    again = None
    with errors(), WorkDirectory(directory).locked() if directory else nullcontext() as work:
        if judged:
            from tunehub_builder.gate.judged import read_judged

            again = read_judged(judged)
        networks_measured = read_network_evidence(measured) if measured else ()
        built = pack_directory(
            work, version, name=name, measured=networks_measured, base=base, profile=profile, license=license,
            base_license=base_license, without=read_left_out(without), again=again, networks=networks,
            evidence_alone=evidence_alone,
        )  # fmt: skip
        path = publish_locally(built, output, index)
    stated = built.manifest.license
    summary = {**built.counts, "package": str(path), "bytes": len(built.data), "sha256": built.sha256,
               "license": stated}  # fmt: skip
    if as_json:
        print_json(summary)
        return
    number = built.counts["taken_along" if directory is None else "records"]
    number = sum(entry.count for entry in built.manifest.record_sets) if networks or evidence_alone else number
    say(f"{path}: {number} records, {len(built.data)} bytes, sha256 {built.sha256}")
    if base is not None and not networks:
        left_out = f", {built.counts['left_out']} left out" if without or judged else ""
        say(f"taken along from {base.name}: {built.counts['taken_along']} records{left_out}")
    say(f"licence: {stated or f'not stated, as in {base and base.name}: --base-license states it'}")
    if directory is not None:
        say(f"left out: {built.counts['rejected']} rejected by the gate, {built.counts['not_checked']} not checked")
