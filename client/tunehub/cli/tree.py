"""`tunehub tree`: which packages a compile looks through, and what is in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from tunehub import api
from tunehub.cli.options import json_option, registry_option
from tunehub.cli.output import plain_size, print_json, say
from tunehub.options import read_options
from tunehub.registries.locked import read_lock
from tunehub.registries.resolution import Chosen
from tunehub.target.host import gpu_descriptor, host_descriptor
from tunehub_registry.lock import LOCK_FILE, Lock


@click.command()
@click.argument("target", required=False)
@click.option("--lock", metavar="FILE", help=f"Of this lock file.  [TUNEHUB_LOCK, or {LOCK_FILE} where it is]")
@registry_option
@json_option
def tree(target: str | None, lock: str | None, registry: Sequence[str], as_json: bool) -> None:
    """Show which packages a compile for TARGET looks through, nearest first, and who made their records.

    Without TARGET, this machine's CPU, and its GPU if it has one. With a lock file, its pins alone, and what asked for
    them.
    """
    options = read_options(registry=registry or None)
    path = Path(lock) if lock else options.lock or (Path(LOCK_FILE) if Path(LOCK_FILE).exists() else None)
    pins = None if path is None else read_lock(path, "--lock")
    gpu = gpu_descriptor() if target is None else None
    targets = [target] if target else [host_descriptor().name, *([gpu.name] if gpu else [])]
    found = [_resolved(each, path, registry, pins) for each in targets]
    if as_json:
        print_json({"lock": None if path is None else str(path), "targets": found})
        return
    say(f"{path}: TVM {', '.join(pins.tvm) or 'any'}" if pins and path else "the registries, without a lock file")
    for each in found:
        say(*_lines(each))
    said = {package["name"] for each in found for package in each["packages"]}
    others = [pin.label for pin in pins.packages if pin.name not in said] if pins else []
    if others:
        say(f"for other targets: {', '.join(others)}")


def _resolved(target: str, path: Path | None, registry: Sequence[str], pins: Lock | None) -> dict[str, Any]:
    """A target with its packages. Raises as `resolve`."""
    found = api.resolve(target, registry=registry or None, lock=path)
    packages = [_package(each, pins) for each in (found.chosen, found.behind) if each is not None]
    return {"target": found.host.name, "packages": packages}


def _package(chosen: Chosen, pins: Lock | None) -> dict[str, Any]:
    entry = chosen.entry
    pin = next((each for each in pins.packages if each.sha256 == entry.sha256), None) if pins else None
    return {
        "name": chosen.name,
        "version": entry.version,
        "fit": chosen.match.fit,
        "registry": chosen.registry if pin is None else pin.registry,
        "size": entry.size,
        "sha256": entry.sha256,
        "requires": None if pin is None else pin.requires,
        "yanked": entry.yanked,
        "record_sets": [{"tuner": each.tuner, "tvm": each.tvm} for each in entry.record_sets],
    }


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield found["target"]
    packages = found["packages"]
    if not packages:
        yield "└── no package"
    for place, package in enumerate(packages):
        last = place == len(packages) - 1
        asked = f", asked for {package['requires']}" if package["requires"] else ""
        behind = "" if not place else "behind it: "
        yield (
            f"{'└' if last else '├'}── {behind}{package['name']} {package['version']} "
            f"({plain_size(package['size'])}, {package['registry']}{asked})"
        )
        before = "    " if last else "│   "
        yield f"{before}sha256 {package['sha256']}"
        sets = dict.fromkeys(f"{each['tuner']} for TVM {each['tvm']}" for each in package["record_sets"])
        yield f"{before}records: {'; '.join(sets)}"
