"""What to tune: from a recipe file, from the command line, or both (the command line wins).

targets = ["host"]
networks = ["squeezenet", "bert_base"]
trials = 96
search_trials = 64

[[model]]
path = "model.onnx"              # relative to the recipe
input_shapes = { input = [1, 3, 224, 224] }

Networks with open dimensions, with the tuner template: dims = { batch = [1, 2, 4, 8], sequence = "16..512" }. In
bfloat16 or 8 bits, with the same tuner: precision = "bf16" or "int8".

For boards also rpc and rpc_key. With TVM 0.19 and older also: tuner, algorithm, early_stopping, transfer_from (logs,
relative to the recipe), template, template_args, layout, graph_algorithm, cache_flush, local_runner; see
:class:`Recipe`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tunehub_builder.exceptions import RecipeError

Shape = tuple[Annotated[int, Meta(ge=1)], ...]
Tuner = Literal["meta_schedule", "template", "autotvm", "auto_scheduler", "graph_tuner"]
Algorithm = Literal["xgb", "ga", "random", "gridsearch"]
Precision = Literal["float32", "bf16", "int8"]
GraphAlgorithm = Literal["auto", "dp", "pbqp"]
Layout = Literal["NCHW", "NHWC"]
TRIALS = 64
TEMPLATE = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"  # module:function
TRACKER = r"^.+:\d{1,5}$"  # HOST:PORT
ENGINE = r"^(local|dask://.+:\d{1,5})$"


class ModelFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user's ONNX file; `input_shapes` fixes what the file leaves open."""

    path: str
    input_shapes: dict[str, Shape] = {}


class _RecipeFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    targets: Annotated[tuple[str, ...], Meta(min_length=1)]
    networks: tuple[str, ...] = ()
    trials: Annotated[int, Meta(ge=0)] | None = None
    search_trials: Annotated[int, Meta(ge=0)] | None = None
    seed: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    minutes: Annotated[float, Meta(gt=0)] | None = None
    warm_start: bool | None = None
    registry: tuple[str, ...] = ()
    models: tuple[ModelFile, ...] = msgspec.field(default=(), name="model")
    dims: dict[str, Annotated[tuple[Annotated[int, Meta(ge=1, le=2**31)], ...], Meta(min_length=1)] | str] = {}
    precision: Precision | None = None
    tuner: Tuner | None = None
    algorithm: Algorithm | None = None
    early_stopping: Annotated[int, Meta(ge=1)] | None = None
    transfer_from: tuple[str, ...] = ()
    template: Annotated[str, Meta(pattern=TEMPLATE)] | None = None
    template_args: tuple[Any, ...] = ()
    layout: Layout | None = None
    graph_algorithm: GraphAlgorithm | None = None
    rpc: Annotated[str, Meta(pattern=TRACKER)] | None = None
    rpc_key: str | None = None
    cache_flush: bool | None = None
    local_runner: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Targets and networks, and how to tune them.

    ``from_misses``: files of misses, see ``tuning.missed``.
    ``trials`` and ``search_trials``: see ``scheduler.batches.TunerOptions``, of the tuner template ``trials`` is the
    most choices of knobs that are measured of a workload; with TVM <= 0.19 ``trials`` and what follows ``seed``: see
    ``relay.tuner.RelayOptions``. ``trials`` None: the tuner's default. ``tuner`` None: that of the installed TVM.
    ``layout`` None: NHWC for the auto-scheduler, which is best at it, else NCHW. ``rpc``:
    ``HOST:PORT`` of a tracker where the devices ``rpc_key`` are. ``minutes``: when a run on a GPU ends.
    ``warm_start``: measure first what the records of a package propose (see ``search.warm_start``), None where one is
    found for the target; ``registry``: where to look, as for compiling. ``dims``: the names of open dimensions, and the
    values at which their workloads are tuned. ``precision``: that of the networks, see ``networks.precision``; None:
    their own.
    """

    targets: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    models: tuple[ModelFile, ...] = ()
    from_misses: tuple[str, ...] = ()
    trials: int | None = None
    search_trials: int = 32
    seed: int = 0
    minutes: float | None = None
    warm_start: bool | None = None
    registry: tuple[str, ...] = ()
    dims: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    precision: Precision | None = None
    tuner: Tuner | None = None
    algorithm: Algorithm = "xgb"
    early_stopping: int | None = None
    transfer_from: tuple[str, ...] = ()
    template: str | None = None
    template_args: tuple[Any, ...] = ()
    layout: Layout | None = None
    graph_algorithm: GraphAlgorithm = "auto"
    rpc: str | None = None
    rpc_key: str | None = None
    cache_flush: bool = False
    local_runner: bool = False

    def overridden(self, **given: Any) -> Recipe:
        """This recipe with every option that is given (not None and not empty) in place of its own."""
        return replace(self, **{name: value for name, value in given.items() if value not in (None, (), {})})


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A recipe for one of its targets, and where the results go."""

    target: str
    directory: Path
    recipe: Recipe = field(repr=False)


def read_recipe(path: Path) -> Recipe:
    """Read a recipe. Raises RecipeError: no such file, not TOML, a field that is unknown or has a wrong value."""
    if sys.version_info >= (3, 11):  # here, because every command imports this module
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        parsed = msgspec.convert(content, _RecipeFile)
    except OSError as error:
        raise RecipeError(path, error.strerror or str(error), "give the path of a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(path, f"not TOML: {error}", "mend that place") from error
    except msgspec.ValidationError as error:
        remedy = f"a recipe has the fields {', '.join(_RecipeFile.__struct_encode_fields__)}"
        raise RecipeError(path, str(error), remedy) from error
    if not parsed.networks and not parsed.models and not parsed.template:
        raise RecipeError(path, "names neither networks nor models", 'add networks = ["squeezenet"] or a [[model]]')
    given = {name: getattr(parsed, name) for name in _RecipeFile.__struct_fields__}
    given["models"] = tuple(msgspec.structs.replace(m, path=str(path.parent / m.path)) for m in parsed.models)
    try:
        given["dims"] = {name: _values(listed) for name, listed in parsed.dims.items()}
    except ValueError as error:
        raise RecipeError(path, f"dims: {error}", 'write [1, 2, 4] or "16..512"') from None
    given["transfer_from"] = tuple(str(path.parent / log) for log in parsed.transfer_from)
    return Recipe().overridden(**given)


def jobs(recipe: Recipe, directory: Path) -> list[Job]:
    """One job for each target: in ``directory`` itself, or for several targets in a folder of it for each."""
    if len(recipe.targets) == 1:
        return [Job(target=recipe.targets[0], directory=directory, recipe=recipe)]
    return [Job(target=target, directory=directory / folder_name(target), recipe=recipe) for target in recipe.targets]


def folder_name(target: str) -> str:
    """A name for the folder of ``target``, which may be TVM's text of a target: ``cuda_-model_titanx``."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", target).strip("_.") or "target"


def parse_dim(text: str) -> tuple[str, tuple[int, ...]]:
    """Read ``batch=1,2,4`` or ``sequence=16..512``, which is 16, 32, 64 and so on, and 512. Raises ValueError."""
    name, _, listed = text.partition("=")
    try:
        values = _values(listed)
    except ValueError:
        raise ValueError(text) from None
    if not name.strip():
        raise ValueError(text)
    return name.strip(), values


def _values(listed: str | tuple[int, ...]) -> tuple[int, ...]:
    """The values of a dimension, rising. Raises ValueError."""
    if not isinstance(listed, str):
        return tuple(sorted(set(listed)))
    first, dots, last = listed.partition("..")
    found = _doubling(int(first), int(last)) if dots else [int(number) for number in listed.split(",")]
    if not found or min(found) < 1 or max(found) > 2**31:
        raise ValueError(listed)
    return tuple(sorted(set(found)))


def _doubling(first: int, last: int) -> list[int]:
    """The first, twice that and so on below the last, and the last; nothing where there are none such."""
    if not 0 < first <= last:
        return []
    return [*(first << power for power in range((last // first).bit_length()) if first << power < last), last]
