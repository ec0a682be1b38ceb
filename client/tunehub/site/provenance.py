"""What pages say of how records were made. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tunehub.site.contents import PackageContents
from tunehub_registry.manifest import Provenance
from tunehub_registry.printable import plain


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeView:
    """How records were made."""

    tuners: tuple[str, ...]
    machine: tuple[tuple[str, str], ...]
    options: tuple[tuple[str, str], ...]
    tvm: str
    trials: int
    threads: int
    seed: int
    started: str
    finished: str
    driver: str
    clocks: str
    command: str


def made_views(contents: PackageContents) -> tuple[MadeView, ...]:
    """Each provenance once, the newest first, with the tuners whose records it made."""
    tuners: dict[int, list[str]] = {}
    seen: list[Provenance] = []
    for entry in contents.manifest.record_sets:
        made = contents.manifest.provenance_of(entry)
        if made not in seen:
            seen.append(made)
        tuners.setdefault(seen.index(made), []).append(entry.tuner)
    views = [_made_view(made, tuners[number]) for number, made in enumerate(seen)]
    return tuple(sorted(views, key=lambda view: view.finished, reverse=True))


def _made_view(made: Provenance, tuners: Sequence[str]) -> MadeView:
    return MadeView(
        tuners=tuple(dict.fromkeys(tuners)),
        machine=_pairs(made.machine),
        options=_pairs(made.tuner_options),
        tvm=plain(made.tvm_version),
        trials=made.trials,
        threads=made.threads,
        seed=made.seed,
        started=made.started,
        finished=made.finished,
        driver=plain(made.driver or ""),
        clocks=plain(made.clocks or ""),
        command="\n".join(plain(text) for text in made.command.split("\n")),
    )


def _pairs(values: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    return tuple((plain(key), plain(str(value))) for key, value in sorted(values.items()))
