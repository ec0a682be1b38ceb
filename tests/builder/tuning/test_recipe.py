from __future__ import annotations

import re
from pathlib import Path

import pytest

from tunehub_builder.exceptions import RecipeError
from tunehub_builder.tuning.recipe import Recipe, jobs, parse_dim, read_recipe

pytestmark = pytest.mark.fast

GOOD = """
targets = ["host", "llvm-znver5"]
networks = ["squeezenet"]
trials = 12

[[model]]
path = "model.onnx"
input_shapes = { data = [1, 3, 32, 32] }
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


def test_a_recipe_is_read_and_the_command_line_wins(tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path, GOOD))
    assert (recipe.targets, recipe.networks, recipe.trials) == (("host", "llvm-znver5"), ("squeezenet",), 12)
    assert recipe.models[0].path == str(tmp_path / "model.onnx")
    assert recipe.models[0].input_shapes == {"data": (1, 3, 32, 32)}
    assert recipe.search_trials == Recipe().search_trials
    given = recipe.overridden(targets=("host",), networks=(), trials=0, seed=None)
    assert (given.targets, given.networks, given.trials, given.seed) == (("host",), ("squeezenet",), 0, 0)


RELAY = """
targets = ["cuda -model=titanx", "host"]
template = "mine:matmul"
template_args = [32, "float32", [1, 2]]
tuner = "autotvm"
algorithm = "ga"
early_stopping = 100
transfer_from = ["old.log"]
layout = "NHWC"
graph_algorithm = "pbqp"
rpc = "tracker.example:9190"
rpc_key = "rasp4b"
cache_flush = true
"""


def test_what_tvm_0_19_and_older_take_too(tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path, RELAY))
    assert (recipe.tuner, recipe.algorithm, recipe.early_stopping, recipe.layout) == ("autotvm", "ga", 100, "NHWC")
    assert (recipe.template, recipe.template_args) == ("mine:matmul", (32, "float32", [1, 2]))
    assert recipe.transfer_from == (str(tmp_path / "old.log"),)
    assert (recipe.graph_algorithm, recipe.rpc, recipe.rpc_key) == ("pbqp", "tracker.example:9190", "rasp4b")
    assert (recipe.cache_flush, recipe.local_runner, recipe.trials) == (True, False, None)
    given = recipe.overridden(algorithm="random", cache_flush=None, transfer_from=(), trials=0)
    assert (given.algorithm, given.cache_flush, given.transfer_from, given.trials) == (
        "random", True, recipe.transfer_from, 0,
    )  # fmt: skip
    assert [job.directory.name for job in jobs(recipe, tmp_path)] == ["cuda_-model_titanx", "host"]


def test_each_of_several_targets_gets_its_folder(tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path, GOOD))
    assert [job.directory for job in jobs(recipe, tmp_path)] == [tmp_path / "host", tmp_path / "llvm-znver5"]
    assert [job.directory for job in jobs(recipe.overridden(targets=("host",)), tmp_path)] == [tmp_path]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("targets = [", "not TOML"),
        ('networks = ["squeezenet"]', "missing required field `targets`"),
        ('targets = []\nnetworks = ["squeezenet"]', "length >= 1"),
        ('targets = ["host"]', "names neither networks nor models"),
        ('targets = ["host"]\nnetwork = ["squeezenet"]', "unknown field `network`.*a recipe has the fields targets"),
        ('targets = ["host"]\nnetworks = "squeezenet"', r"Expected `array`, got `str` - at `\$.networks`"),
        ('targets = ["host"]\nnetworks = ["x"]\ntrials = -1', r">= 0 - at `\$.trials`"),
        ('targets = ["host"]\nnetworks = ["x"]\ntuner = "ansor"', r"Invalid enum value 'ansor' - at `\$.tuner`"),
        ('targets = ["host"]\ntemplate = "matmul"', r"matching regex.*at `\$.template`"),
        ('targets = ["host"]\nnetworks = ["x"]\nrpc = "here"', r"matching regex.*at `\$.rpc`"),
        ('targets = ["host"]\n[[model]]\npath = "m"\ninput_shapes = { x = [0] }', r"input_shapes"),
    ],
)
def test_a_bad_recipe_says_where_and_what(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        read_recipe(write(tmp_path, text))
    assert "recipe.toml" in str(caught.value)


def test_a_missing_recipe_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"nowhere\.toml: No such file"):
        read_recipe(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batch=1,2,4", ("batch", (1, 2, 4))),
        ("batch=8, 1,8", ("batch", (1, 8))),
        ("s0=16..512", ("s0", (16, 32, 64, 128, 256, 512))),
        ("s0=3..20", ("s0", (3, 6, 12, 20))),
        ("s0=7..7", ("s0", (7,))),
    ],
)
def test_values_of_open_dimensions_on_the_command_line(text: str, expected: tuple[str, tuple[int, ...]]) -> None:
    assert parse_dim(text) == expected


@pytest.mark.parametrize(
    "text", ["batch", "=1", "batch=", "batch=0", "batch=1,x", "batch=9..1", "batch=0..4", "b=1..x"]
)
def test_what_are_no_values_of_a_dimension(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        parse_dim(text)


def test_values_of_open_dimensions_in_a_recipe(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    start = 'targets = ["host"]\n[[model]]\npath = "m.onnx"\n[dims]\n'
    file.write_text(start + 'batch = [4, 1]\nlength = "16..64"\n')
    assert read_recipe(file).dims == {"batch": (1, 4), "length": (16, 32, 64)}
    file.write_text(start + 'length = "64..16"\n')
    with pytest.raises(RecipeError, match=r"dims: 64\.\.16"):
        read_recipe(file)


def test_a_precision_is_one_of_three(tmp_path: Path) -> None:
    start = 'targets = ["host"]\nnetworks = ["squeezenet"]\n'
    assert read_recipe(write(tmp_path, start)).precision is None
    assert read_recipe(write(tmp_path, f'{start}precision = "int8"\n')).precision == "int8"
    with pytest.raises(RecipeError, match=r"precision"):
        read_recipe(write(tmp_path, f'{start}precision = "int4"\n'))
