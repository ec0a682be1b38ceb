"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

json_option: Callable[[F], F] = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
registry_option: Callable[[F], F] = click.option(
    "--registry",
    multiple=True,
    metavar="PLACE",
    help="Registry to search before the embedded one; may be repeated (default: TUNEHUB_REGISTRY).",
)
require_option: Callable[[F], F] = click.option(
    "--require",
    metavar="SPECIFIER",
    help="Restrict packages: 'llvm-znver5>=0.1,<1', '>=0.1' or 'attested>=2'.",
)
lock_option: Callable[[F], F] = click.option(
    "--lock", metavar="FILE", help="The lock file (default: TUNEHUB_LOCK, or tunehub.lock)."
)
