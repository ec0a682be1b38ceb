"""`tunehub attest`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from tunehub.cli.output import print_json, say
from tunehub_builder.cli.errors import errors
from tunehub_builder.cli.options import (
    FILE,
    POSITIVE,
    fixed_shapes,
    resources_of,
    threads_option,
    workers_option,
    writable,
)


@click.command()
@click.argument("package", metavar="PACKAGE.tunepkg", type=FILE)
@click.option("--key", required=True, metavar="URI", help="The private key of this machine or its operator.")
@click.option("--sample", type=POSITIVE, default=20, show_default=True, help="Records to measure.")
@click.option("--seed", type=click.IntRange(min=0),
              help="Draw records by it, in a rehearsal that does not count.  [the key's signature]")  # fmt: skip
@click.option("--network", "names", multiple=True, metavar="NAME", help="A network that has the records' workloads.")
@click.option("--model", "models", multiple=True, type=FILE, help="An ONNX file that has the records' workloads.")
@click.option("--input-shape", "shapes", multiple=True, metavar="INPUT=1,3,224,224", help="Fixes an input of --model.")
@click.option("-o", "--output", type=FILE, default=Path("attestation.json"), show_default=True, help="The envelope.",
              callback=writable)  # fmt: skip
@threads_option
@workers_option
@click.option("--json", "as_json", is_flag=True, help="Print what was measured as JSON.")
def attest(
    package: Path,
    key: str,
    sample: int,
    seed: int | None,
    names: tuple[str, ...],
    models: tuple[Path, ...],
    shapes: tuple[str, ...],
    output: Path,
    threads: int | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Measure a sample of a package's records on this machine, and sign what was found; leave it alone meanwhile.

    Records for fixed shapes are built and run in turns with TVM's default, and outputs compared, as by `tunehub check`.
    Their workloads come from the networks that the package was made of. The result names the hardware, the versions
    and the times, and no host or user: a DSSE envelope with an in-toto statement. A fault (a record that does not
    build, does not run or computes something else) is in it, too, and means exit code 1.
    """
    from tunehub.cli.writing import private_key
    from tunehub_builder.gate.attest import SampleRequest, attest_package
    from tunehub_builder.tuning.journal import write_atomically
    from tunehub_registry.attestation import encode_attestation
    from tunehub_registry.trust.attestations import sign_attestation

    with errors():
        signer = private_key(key, "--key")  # before anything is measured
        fixed = fixed_shapes(shapes, models, "attest with each of several models by itself")
        request = SampleRequest(count=sample, seed=seed, names=names, models=models, shapes=fixed)
        said = attest_package(package, request, signer, resources_of(threads, workers), sys.stderr)
        write_atomically(output, [sign_attestation(said, signer)])
    found = said.predicate
    if as_json:
        print_json(json.loads(encode_attestation(said)))
    else:
        gain = f"gain {found.gain:.2f}" if found.gain else "no times"
        say(f"{output}: {len(found.records)} of {found.drawn_from} records of {said.subject[0].name} measured, {gain}")
        for fault in found.faults:
            say(f"fault: {fault}")
        say(f"signed with key {signer.public_key.keyid}")
    if found.faults:
        sys.exit(1)
