"""`tunehub cache ls|verify|clear`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tunehub._files.atomic import open_regular
from tunehub.cli.options import json_option
from tunehub.cli.output import plain_size, print_json, print_table, say
from tunehub.options import read_options
from tunehub.registries.blob_cache import COMPILED, BlobCache, CachedFile, is_sound, unsealed


@click.group()
def cache() -> None:
    """Look at the cache of packages, indexes, verdicts and compiled code; check it, empty it."""


@cache.command("ls")
@json_option
def list_files(as_json: bool) -> None:
    """List the files of the cache."""
    store = _cache()
    files = list(_files(store))
    if as_json:
        rows = [{"path": str(file.path), "kind": file.kind, "size": file.size} for file in files]
        print_json({"root": str(store.root), "files": rows})
        return
    rows_ = ((file.kind, plain_size(file.size), str(file.path)) for file in files)
    print_table(("KIND", "SIZE", "PATH"), rows_, empty=f"the cache {store.root} is empty")


@cache.command()
@json_option
def verify(as_json: bool) -> None:
    """Check every file and delete the damaged ones and leftovers: they are made again when needed.

    Exits with 1 when a file was damaged.
    """
    store = _cache()
    verdicts = {file.path: verdict(file) for file in _files(store)}
    damaged = {path: problem for path, problem in verdicts.items() if problem is not None}
    for path in damaged:
        path.unlink(missing_ok=True)
    if as_json:
        rows = [{"path": str(path), "problem": problem} for path, problem in damaged.items()]
        print_json({"root": str(store.root), "checked": len(verdicts), "deleted": rows})
    else:
        for path, problem in damaged.items():
            say(f"deleted {path}: {problem}")
        say(f"{len(verdicts)} files checked, {len(damaged)} deleted")
    sys.exit(1 if any(problem != _LEFTOVER for problem in damaged.values()) else 0)


@cache.command()
@click.option("--compiled", is_flag=True, help="Only compiled code: libraries of models and kernels of GPUs.")
@json_option
def clear(compiled: bool, as_json: bool) -> None:
    """Delete all packages, indexes, verdicts and compiled code of the cache."""
    store = _cache()
    try:
        freed = store.clear(COMPILED if compiled else None)
    except OSError as error:
        raise click.ClickException(f"the cache {store.root} cannot be emptied: {error}") from None
    if as_json:
        print_json({"root": str(store.root), "freed": freed})
    else:
        say(f"{plain_size(freed)} freed in {store.root}")


_LIBRARY = ".so"
_LEFTOVER = "left by a process that was killed"


def verdict(file: CachedFile) -> str | None:
    """What is wrong with a file of the cache, or None."""
    if file.kind == "leftover":
        return _LEFTOVER
    if file.kind in ("partial", "registry", "verdicts"):
        return None  # they are checked when whole, by their signatures, and line by line
    if file.kind in ("blob", "document", "shard") or file.path.suffix == _LIBRARY:
        return None if is_sound(file.path, file.path.stem) else "its content does not have the hash in its name"
    if file.kind in ("library", "kernel"):
        return None if _is_sealed(file.path) else "its content does not have the hash in front of it"
    return _index_problem(file.path)


def _is_sealed(path: Path) -> bool:
    try:
        with open_regular(path) as stream:
            return unsealed(path.name, stream.read()) is not None
    except OSError:
        return False


def _index_problem(path: Path) -> str | None:
    from tunehub.records.index import IndexDamagedError, open_index

    try:
        index = open_index(path, None)
    except (OSError, IndexDamagedError) as error:
        return str(error)
    try:
        index.check()
    except IndexDamagedError as error:
        return str(error)
    finally:
        index.close()
    return None


def _cache() -> BlobCache:
    return BlobCache(read_options().cache)


def _files(store: BlobCache) -> list[CachedFile]:
    try:
        return list(store.files())
    except OSError as error:
        message = f"the cache {store.root} cannot be read: {error} (set TUNEHUB_CACHE to a folder of your own)"
        raise click.ClickException(message) from None
