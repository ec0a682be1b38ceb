"""What hubs are opened with: keywords, and the environment for what they leave out, read when a hub is opened."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from tunehub.exceptions import SettingError

if TYPE_CHECKING:
    from typing_extensions import Unpack

Layout = Literal["keep", "auto"]
Verify = Literal["auto", "always", "never"]
Precision = Literal["float32", "tf32", "bf16", "auto"]
Address = str | os.PathLike[str]
Sizes = Mapping[str, Sequence[int]]  # of open dimensions, by their names

DEFAULT_BUDGET_S = 10.0
DEFAULT_COMPILED_MIB = 4096
MOST_MEASURED = 1000
_MOST_DIGITS = 9
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


class HubOptions(TypedDict, total=False):
    """The keywords of all public functions; what is left out or None comes from the environment (see README).

    `registry`: registries to search before the embedded one. `require`: `llvm-znver5>=0.1,<1`, `>=0.1` or
    `attested>=2`.
    `user_records`: your own records. `strict`: problems are errors. `offline`: never use the network.
    `budget`: seconds that opening a hub may spend on the network. `lock`: only the packages of this lock file; an
    empty one is none, whatever the environment says. `layout`: `keep` layouts, or choose them for the whole network
    (`auto`; CPUs, on TVM 0.25 and newer); by default what the records in use are for. `measure`: how many candidates
    compiling measures on this machine for each workload without a record of its own; the fastest are kept among your
    own records (CPUs, on TVM 0.25 and newer). `verify`: which schedules are run beside the plain schedule before they
    serve: on GPUs those that nobody has measured on this kind of device, on CPUs those by records of packages that are
    neither yours nor tunehub's, if no rule chooses the same (`auto`), all of them and the whole network (`always`), or
    none (`never`; TVM 0.25 and newer). `winograd`: convolutions of 3×3 by Winograd's algorithm where that should be
    faster (float32, TVM 0.25 and newer, on CPUs with layouts `auto`; the default);
    off, results round as those of direct convolutions. `check_indices`: inputs that index tables (a token's id) are
    held to the rows that there are: others are an error when the model runs (CPUs, TVM 0.25 and newer; the default).
    `precision`: `tf32` lets products and convolutions in float32
    round their operands to TF32, of 11 bits, where tensor cores take these (sm_90, TVM 0.27 and newer); `bf16` to
    bfloat16, of 8 bits, where a CPU multiplies pairs of these (AVX512_BF16, AMX, layouts `auto`, TVM 0.27 and newer);
    `auto` is `bf16` on CPUs that are known to be faster by it (AMX, or a machine profile says so), else `float32`.
    With both, products with weights of 4 or 8 bits in groups round activations to 8 bits where a CPU multiplies these
    (AVX512-VNNI, AVX-VNNI).
    """

    registry: Address | Sequence[Address] | None
    require: str | None
    user_records: Address | None
    strict: bool | None
    offline: bool | None
    lock: Address | None
    budget: float | None
    layout: Layout | None
    measure: int | None
    verify: Verify | None
    winograd: bool | None
    check_indices: bool | None
    precision: Precision | None


def _data_folder(name: str) -> Callable[[], Path]:
    return lambda: _platform_folder("user_data_path") / name


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The options as they hold: read once, then passed along.

    `registries` come before the embedded one. `records` is the user's own file, or a folder with one
    `<target name>.jsonl` per target; `cache` and `trust` (trusted roots, and names bound to registries) are folders.
    `compiled` is how many MiB of compiled code the cache keeps, 0 for none.
    `budget` is in seconds, None for no limit; `layout` None is what the records are for. `require_place` and
    `lock_place` say where those came from. The rest is as in HubOptions.
    """

    registries: tuple[str, ...] = ()
    cache: Path = field(default_factory=lambda: _platform_folder("user_cache_path"))
    records: Path = field(default_factory=_data_folder("records"))
    records_given: bool = False
    strict: bool = False
    offline: bool = False
    require: str | None = None
    require_place: str = "TUNEHUB_REQUIRE"
    lock: Path | None = None
    lock_place: str = "TUNEHUB_LOCK"
    budget: float | None = DEFAULT_BUDGET_S
    trust: Path = field(default_factory=_data_folder("trust"))
    layout: Layout | None = None
    measure: int = 0
    verify: Verify = "auto"
    winograd: bool = True
    check_indices: bool = True
    precision: Precision = "float32"
    compiled: int = DEFAULT_COMPILED_MIB


def read_options(environ: Mapping[str, str] | None = None, **given: Unpack[HubOptions]) -> Options:
    """The options that the environment (`TUNEHUB_REGISTRY` and so on) and, over it, the given keywords make.

    Raises SettingError, also for a variable that a keyword replaces, and TypeError for an unknown keyword.
    """
    env = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    for name, read in _READERS.items():
        variable = _variable(name)
        text = env.get(variable, "").strip()
        if text:
            values |= read(text, variable)
    for name, value in given.items():
        if name not in HubOptions.__annotations__:
            raise TypeError(f"{name!r} is no option: give one of {', '.join(HubOptions.__annotations__)}")
        if value is not None:
            values |= _READERS[name](value, name)
    return Options(**values)


def _variable(name: str) -> str:
    return f"TUNEHUB_{name.removeprefix('user_').upper()}"


def _flag(value: object, place: str) -> bool:
    text = str(value).lower()
    if text not in _TRUE | _FALSE:
        raise SettingError(value, "is not a yes or no", place=place, remedy="set it to 1 or 0, or unset it")
    return text in _TRUE


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


def _mebibytes(value: object, place: str) -> int:
    """A size."""
    text = str(value)
    if not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS:
        remedy = f"give MiB, such as {DEFAULT_COMPILED_MIB}, or 0 to keep no compiled code"
        raise SettingError(value, "is not a whole number of MiB", place=place, remedy=remedy)
    return int(text)


def _one_of(kind: object, what: str) -> Callable[[object, str], str]:
    """A reader of one of the words of ``kind``, a Literal."""

    def read(value: object, place: str) -> str:
        for known in get_args(kind):
            if value == known:
                return str(known)
        raise SettingError(value, f"is no {what}", place=place, remedy=f"give one of {', '.join(get_args(kind))}")

    return read


def _registries(value: object, place: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return _split(value)
    if isinstance(value, os.PathLike):
        return (os.fspath(value),)
    if isinstance(value, Sequence) and all(isinstance(item, (str, os.PathLike)) for item in value):
        return tuple(os.fspath(item) for item in value)
    raise SettingError(
        value, "is neither an address nor a sequence of addresses", place=place, remedy="give a folder or a list"
    )


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _platform_folder(kind: str) -> Path:
    import platformdirs

    folder: Path = getattr(platformdirs, kind)("tunehub", appauthor=False)
    return folder


def _one(field_name: str, read: Callable[[Any, str], object]) -> Callable[[Any, str], dict[str, Any]]:
    """A reader of the one field that an option sets."""
    return lambda value, place: {field_name: read(value, place)}


def _folder(value: Address, place: str) -> Path:
    return Path(value).expanduser()


# What each option sets in Options, from its keyword or the text of its variable, and the place that this came from.
_READERS: Mapping[str, Callable[[Any, str], dict[str, Any]]] = {
    "registry": _one("registries", _registries),
    "cache": _one("cache", _folder),
    "user_records": lambda value, place: {"records": _folder(value, place), "records_given": True},
    "strict": _one("strict", _flag),
    "offline": _one("offline", _flag),
    "require": lambda value, place: {"require": value, "require_place": place},
    "lock": lambda value, place: {
        "lock": _folder(value, place) if os.fspath(value) else None, "lock_place": place,
    },
    "budget": _one("budget", _budget),
    "trust": _one("trust", _folder),
    "layout": _one("layout", _one_of(Layout, "layout")),
    "measure": _one("measure", _measure),
    "verify": _one("verify", _one_of(Verify, "way to verify")),
    "winograd": _one("winograd", _flag),
    "check_indices": _one("check_indices", _flag),
    "compiled": _one("compiled", _mebibytes),
    "precision": _one("precision", _one_of(Precision, "precision")),
}  # fmt: skip
