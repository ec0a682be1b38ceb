"""`tunehub submit`."""

from __future__ import annotations

from pathlib import Path

import click

from tunehub.cli.output import print_json, say
from tunehub_builder.cli.errors import errors
from tunehub_builder.cli.options import FILE, FOLDER, resources_of, threads_option


@click.command()
@click.argument("directory", metavar="DIR", type=FOLDER)
@click.option("--version", required=True, help="The package's version, such as 0.1.0.")
@click.option("-o", "--output", type=FOLDER, default=Path("submission"), show_default=True, help="A new folder.")
@click.option(
    "--license",
    "--licence",
    "license",
    default="CC0-1.0",
    show_default=True,
    help="SPDX expression: CC0-1.0, Apache-2.0.",
)
@click.option("--with", "base", type=FILE, help="A published package of the same target: all that it holds goes along.")
@click.option("--sign-off", required=True, metavar="'NAME <MAIL>'",
              help="Who gives it, and certifies https://developercertificate.org.")  # fmt: skip
@threads_option
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON.")
def submit(
    directory: Path,
    version: str,
    output: Path,
    license: str,
    base: Path | None,
    sign_off: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Write what another registry needs to take the records of DIR: a folder with the package, the raw times of trials
    and comparisons, and digests of what the records compute on seeded inputs.

    It names the hardware, and no host, user, serial number, address or path. `tunehub review` is what the registry
    does with it.
    """
    with errors():
        from tunehub_builder.submission.writing import write_submission
        from tunehub_builder.tuning.work_directory import WorkDirectory

        with WorkDirectory(directory).locked() as work:
            written = write_submission(
                work, output, version=version, license=license, sign_off=sign_off, resources=resources_of(threads, 1),
                base=base,
            )  # fmt: skip
    if as_json:
        print_json({"path": str(written.path), "package": written.package, "bytes": dict(written.sizes)})
        return
    say(f"{written.path}: {written.package}, {sum(written.sizes.values())} bytes in {len(written.sizes)} files")
    say(f"next: tunehub review {written.path}")
