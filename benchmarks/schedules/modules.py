"""What is scheduled for a dump: networks known by name in their forms, random operators, random open modules."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.random_cases.functions import random_network
from benchmarks.random_cases.open_modules import random_open_module
from benchmarks.random_cases.operators import NARROW, OPERATORS, random_case
from tunehub.options import Precision
from tunehub_builder import networks
from tunehub_builder.networks.network import Network

# What is behind the name of a network, and for which kinds of targets it is then.
FORMS: Mapping[str, tuple[str, ...]] = {
    "": ("llvm", "cuda"),
    "_bf16": ("llvm",),
    "_int8": ("llvm",),
    "_fp16": ("cuda",),
}
_BOTH: Mapping[str, Precision] = {"llvm": "float32", "cuda": "float32"}


@dataclass(frozen=True, kw_only=True, slots=True)
class DumpedModule:
    """An IRModule that ``make`` makes, the same each time. ``precisions``: the option with which it is scheduled, by
    the kind of the target; it is not for the others."""

    name: str
    make: Callable[[], Any]
    precisions: Mapping[str, Precision]


def chosen(patterns: str, operators: int, open_modules: int) -> list[DumpedModule]:
    """Networks whose names fit ``patterns``, which commas separate, and this many random operators and modules with
    open dimensions. Raises ValueError for a pattern that no network fits."""
    found = list(_networks([each.strip() for each in patterns.split(",") if each.strip()]))
    found += map(_operator, range(operators))
    return [*found, *map(_open_module, range(open_modules))]


def of_network(network: Network, kinds: tuple[str, ...] = ("llvm", "cuda")) -> DumpedModule:
    """A network, scheduled with the precision that it is compiled in."""
    precisions = dict.fromkeys(kinds, network.compiled_in)
    return DumpedModule(name=network.name, make=network.relax_module, precisions=precisions)


def network_names() -> dict[str, tuple[str, ...]]:
    """The networks in all their forms, and the kinds of targets that each is for."""
    wholes = [name for name in networks.names() if not name.endswith("_fp16")]
    both = ((f"{whole}{form}", kinds) for whole in wholes for form, kinds in FORMS.items())
    return {name: kinds for name, kinds in both if networks.is_known(name)}


def _networks(patterns: list[str]) -> Iterator[DumpedModule]:
    known = network_names()
    for pattern in patterns:
        if not fnmatch.filter(known, pattern):
            raise ValueError(f"no network fits {pattern!r}: there are {', '.join(known)}")
    for name, kinds in known.items():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            yield of_network(networks.get(name), kinds)


def _operator(seed: int) -> DumpedModule:
    """Every other one of all kinds that rules for CUDA serve, the others as networks have them."""
    if seed % 2:
        made = random_network(seed)
        name = f"operator {seed}, {made.kind} {made.dtype}"
        return DumpedModule(name=name, make=partial(_made, random_network, seed), precisions=_BOTH)
    case = random_case(seed, (*OPERATORS, *NARROW))
    precision: Precision = "tf32" if case.precision == "tf32" else "float32"
    return DumpedModule(
        name=f"operator {seed}, {case.kind} {case.precision if precision == 'tf32' else case.dtype}",
        make=lambda: random_case(seed, (*OPERATORS, *NARROW)).mod,
        precisions={"llvm": "float32", "cuda": precision},
    )


def _open_module(seed: int) -> DumpedModule:
    return DumpedModule(name=f"open module {seed}", make=partial(_made, random_open_module, seed), precisions=_BOTH)


def _made(make: Callable[[int], Any], seed: int) -> Any:
    return make(seed).mod
