"""Rows of a benchmark. A row's name never changes its meaning."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import click
import msgspec


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure: ``unit`` is ms, s, MB, times, ratio, count or per hour; ``note`` says what it was compared with."""

    name: str
    value: float
    unit: str
    note: str = ""


def thousands(count: int) -> str:
    """A number of things in a row's name: ``50k``, or ``700``."""
    return f"{count // 1000}k" if count >= 1000 else str(count)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "tvm_threads": os.environ.get("TVM_NUM_THREADS"),
        "python": platform.python_version(),
        "system": platform.system(),
    }


def print_json(name: str, where: dict[str, Any], rows: list[Row]) -> None:
    """``{"benchmark", "machine", "rows": [{"name", "value", "unit"}]}``."""
    items = [{"name": row.name, "value": row.value, "unit": row.unit} for row in rows]
    click.echo(json.dumps({"benchmark": name, "machine": where, "rows": items}, indent=2))


def print_table(name: str, where: dict[str, Any], rows: list[Row]) -> None:
    """Columns aligned, for people."""
    click.echo(f"{name} on " + ", ".join(f"{key} {value}" for key, value in where.items() if value is not None))
    width = max(len(row.name) for row in rows)
    for row in rows:
        click.echo(f"  {row.name:<{width}}  {row.value:12.4g} {row.unit:<9} {row.note}".rstrip())


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
