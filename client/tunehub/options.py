"""Settings from the environment and from options. Options win; both are read when a hub is opened, never at import."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from tunehub.exceptions import SettingError

Layout = Literal["keep", "auto"]

DEFAULT_BUDGET_S = 10.0
MOST_MEASURED = 1000
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How hubs are opened.

    `registries` come before the embedded one. `records` is the user's own file, or a folder with one
    `<target name>.jsonl` per target. `require` restricts the packages (`llvm-znver5>=0.1,<1` or `>=0.1`).
    With `lock` only the packages of that lock file are considered. `budget` is what opening a hub may spend on the
    network, in seconds (None: no limit); `trust` is the folder of trusted roots and of names bound to registries.
    `layout`: `keep` the layouts of a module, or choose them for the whole network (`auto`, CPUs and current TVM);
    None: what the records are for. `measure`: how many candidates a compile measures for a workload without a record.
    """

    registries: tuple[str, ...]
    cache: Path
    records: Path
    records_given: bool
    strict: bool
    offline: bool
    require: str | None
    require_place: str = "TUNEHUB_REQUIRE"
    lock: Path | None = None
    lock_place: str = "TUNEHUB_LOCK"
    budget: float | None = DEFAULT_BUDGET_S
    trust: Path = field(default_factory=lambda: _platform_folder("user_data_path") / "trust")
    layout: Layout | None = None
    measure: int = 0


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read `TUNEHUB_REGISTRY`, `_CACHE`, `_RECORDS`, `_STRICT`, `_OFFLINE`, `_REQUIRE`, `_LOCK`, `_BUDGET`, `_TRUST`,
    `_LAYOUT`, `_MEASURE`.

    Raises SettingError.
    """
    env = os.environ if environ is None else environ
    records = env.get("TUNEHUB_RECORDS", "").strip()
    cache = env.get("TUNEHUB_CACHE", "").strip()
    trust = env.get("TUNEHUB_TRUST", "").strip()
    return Settings(
        registries=_split(env.get("TUNEHUB_REGISTRY", "")),
        cache=Path(cache).expanduser() if cache else _platform_folder("user_cache_path"),
        records=Path(records).expanduser() if records else _platform_folder("user_data_path") / "records",
        records_given=bool(records),
        strict=_flag(env, "TUNEHUB_STRICT"),
        offline=_flag(env, "TUNEHUB_OFFLINE"),
        require=env.get("TUNEHUB_REQUIRE", "").strip() or None,
        lock=_lock_path(env.get("TUNEHUB_LOCK", "").strip()),
        budget=_budget(env.get("TUNEHUB_BUDGET", "").strip() or DEFAULT_BUDGET_S, "TUNEHUB_BUDGET"),
        trust=Path(trust).expanduser() if trust else _platform_folder("user_data_path") / "trust",
        layout=_layout(env.get("TUNEHUB_LAYOUT", "").strip() or None, "TUNEHUB_LAYOUT"),
        measure=_measure(env.get("TUNEHUB_MEASURE", "").strip() or 0, "TUNEHUB_MEASURE"),
    )


def with_options(
    settings: Settings,
    *,
    registry: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    require: str | None = None,
    user_records: str | os.PathLike[str] | None = None,
    strict: bool | None = None,
    offline: bool | None = None,
    lock: str | os.PathLike[str] | None = None,
    budget: float | None = None,
    layout: Layout | None = None,
    measure: int | None = None,
) -> Settings:
    """Return `settings` with the options that are not None put over them. Raises SettingError.

    An empty `lock` is none, whatever the environment says.
    """
    result = settings
    if registry is not None:
        result = replace(result, registries=_registries(registry))
    if require is not None:
        result = replace(result, require=require, require_place="require")
    if user_records is not None:
        result = replace(result, records=Path(user_records).expanduser(), records_given=True)
    if lock is not None:
        result = replace(result, lock=_lock_path(os.fspath(lock)), lock_place="lock")
    if budget is not None:
        result = replace(result, budget=_budget(budget, "budget"))
    if layout is not None:
        result = replace(result, layout=_layout(layout, "layout"))
    if measure is not None:
        result = replace(result, measure=_measure(measure, "measure"))
    if strict is not None:
        result = replace(result, strict=strict)
    return result if offline is None else replace(result, offline=offline)


def _budget(value: object, place: str) -> float | None:
    """Seconds; infinity is no limit."""
    remedy = "give seconds, such as 10, or inf for no limit"
    try:
        seconds = float(str(value))
    except ValueError:
        raise SettingError(value, "is not a number of seconds", place=place, remedy=remedy) from None
    if not seconds > 0:
        raise SettingError(value, "is not more than 0", place=place, remedy=remedy)
    return None if seconds == float("inf") else seconds


def _measure(value: object, place: str) -> int:
    """A number of candidates."""
    try:
        count = int(str(value))
    except ValueError:
        count = -1
    if not 0 <= count <= MOST_MEASURED:
        remedy = "give how many candidates to measure for each workload, such as 8, or 0 for none"
        raise SettingError(value, f"is not a whole number from 0 to {MOST_MEASURED}", place=place, remedy=remedy)
    return count


def _layout(value: str | None, place: str) -> Layout | None:
    if value is None:
        return None
    for known in get_args(Layout):
        if value == known:
            return known  # type: ignore[no-any-return]
    raise SettingError(value, "is no layout", place=place, remedy=f"give one of {', '.join(get_args(Layout))}")


def _registries(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return _split(value)
    if isinstance(value, os.PathLike):
        return (os.fspath(value),)
    if isinstance(value, Sequence) and all(isinstance(item, (str, os.PathLike)) for item in value):
        return tuple(os.fspath(item) for item in value)
    raise SettingError(
        value, "is neither an address nor a sequence of addresses", place="registry", remedy="give a folder or a list"
    )


def _lock_path(text: str) -> Path | None:
    return Path(text).expanduser() if text else None


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _flag(env: Mapping[str, str], name: str) -> bool:
    text = env.get(name, "").strip().lower()
    if text not in _TRUE | _FALSE:
        raise SettingError(env[name], "is not a yes or no", place=name, remedy="set it to 1 or 0, or unset it")
    return text in _TRUE


def _platform_folder(kind: str) -> Path:
    import platformdirs

    folder: Path = getattr(platformdirs, kind)("tunehub", appauthor=False)
    return folder
