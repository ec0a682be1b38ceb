"""What to tune: from a recipe file, from the command line, or both (the command line wins).

targets = ["host"]
networks = ["squeezenet", "bert_base"]
trials = 96
search_trials = 64

[[model]]
path = "model.onnx"              # relative to the recipe
input_shapes = { input = [1, 3, 224, 224] }
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tunehub_builder.exceptions import RecipeError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

Shape = tuple[Annotated[int, Meta(ge=1)], ...]


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
    models: tuple[ModelFile, ...] = msgspec.field(default=(), name="model")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Targets and networks, and the trials of each workload (see ``tuning.tuner.TunerOptions``)."""

    targets: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    models: tuple[ModelFile, ...] = ()
    trials: int = 64
    search_trials: int = 32
    seed: int = 0

    def overridden(self, **given: Any) -> Recipe:
        """This recipe with every option that is given (not None and not empty) in place of its own."""
        return replace(self, **{name: value for name, value in given.items() if value not in (None, ())})


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A recipe for one of its targets, and where the results go."""

    target: str
    directory: Path
    recipe: Recipe = field(repr=False)


def read_recipe(path: Path) -> Recipe:
    """Read a recipe. Raises RecipeError: no such file, not TOML, a field that is unknown or has a wrong value."""
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
    if not parsed.networks and not parsed.models:
        raise RecipeError(path, "names neither networks nor models", 'add networks = ["squeezenet"] or a [[model]]')
    models = tuple(ModelFile(path=str(path.parent / m.path), input_shapes=m.input_shapes) for m in parsed.models)
    recipe = Recipe(targets=parsed.targets, networks=parsed.networks, models=models)
    return recipe.overridden(trials=parsed.trials, search_trials=parsed.search_trials, seed=parsed.seed)


def jobs(recipe: Recipe, directory: Path) -> list[Job]:
    """One job for each target: in ``directory`` itself, or for several targets in a folder of it for each."""
    if len(recipe.targets) == 1:
        return [Job(target=recipe.targets[0], directory=directory, recipe=recipe)]
    return [Job(target=target, directory=directory / target, recipe=recipe) for target in recipe.targets]


def parse_shape(text: str) -> tuple[str, Shape]:
    """Read ``NAME=1,3,224,224``. Raises ValueError."""
    name, equals, numbers = text.rpartition("=")
    shape = tuple(int(number) for number in numbers.replace("x", ",").split(","))
    if not equals or not name or min(shape) < 1:
        raise ValueError(text)
    return name, shape
