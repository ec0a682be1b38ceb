"""Every test states its tier, and a session of noxfile.py runs it; the README's test command is what CI runs."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from .sweeps import spread

TESTS = Path(__file__).parent
ROOT = TESTS.parent
STATED = frozenset({"fast", "slow", "tvm_versions", "legacy", "release", "browser"})
# Folders with an environment of their own.
PLACES = {"legacy": "legacy", "versions": "tvm_versions", "release": "release", "browser": "browser"}
FILES = sorted(TESTS.rglob("test_*.py"))

pytestmark = pytest.mark.fast


@cache
def tiers() -> dict[str, str]:
    """The table of noxfile.py: the markers that each run of pytest selects."""
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    values = [node.value for node in tree.body if isinstance(node, ast.Assign) and _name(node.targets[0]) == "TIERS"]
    table: dict[str, str] = ast.literal_eval(values[0])
    return table


def marks(expressions: Iterable[ast.expr]) -> frozenset[str]:
    """The names of the markers among decorators or in a `pytestmark`; not those of single parameters."""
    flat = [each for e in expressions for each in (e.elts if isinstance(e, ast.List | ast.Tuple) else [e])]
    heads = [e.func if isinstance(e, ast.Call) else e for e in flat]
    return frozenset(h.attr for h in heads if isinstance(h, ast.Attribute) and ast.unparse(h.value) == "pytest.mark")


def stated_by(body: list[ast.stmt], outer: frozenset[str] = frozenset()) -> Iterator[tuple[str, frozenset[str]]]:
    """Each test of a module or class with all its markers."""
    own = [node.value for node in body if isinstance(node, ast.Assign) and _name(node.targets[0]) == "pytestmark"]
    outer |= marks(own)
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from stated_by(node.body, outer | marks(node.decorator_list))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name, outer | marks(node.decorator_list)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


@cache
def selected(expression: str, markers: frozenset[str]) -> bool:
    """Whether pytest's `-m EXPRESSION` takes a test with these markers."""
    names = {node.id: node.id in markers for node in ast.walk(ast.parse(expression)) if isinstance(node, ast.Name)}
    return bool(eval(expression, {"__builtins__": {}}, names))


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(TESTS)))
def test_every_test_states_its_tier_and_a_session_runs_it(file: Path) -> None:
    table = tiers()
    place = PLACES.get(file.relative_to(TESTS).parts[0])
    for name, markers in stated_by(ast.parse(file.read_text()).body):
        assert markers & STATED, f"{name} states no tier: pytestmark = pytest.mark.fast, slow or another of {STATED}"
        assert place in (markers & set(PLACES.values()) or {None}), f"{name}: its folder and its tier do not agree"
        assert any(selected(expression, markers) for expression in table.values()), f"no session runs {name}"


@pytest.mark.parametrize("tier", sorted(STATED | {"alone", "sweep"}))
def test_no_session_runs_a_test_twice(tier: str) -> None:
    """What runs alone or in the sweep does not run beside others, too. Some run under more than one TVM, or early."""
    base = {tier} | ({"slow"} if tier not in STATED else set())
    runs = [name for name, expression in tiers().items() if selected(expression, frozenset(base))]
    assert len([run for run in runs if run not in ("fast", "versions")]) == 1, runs


def test_a_few_cases_have_all_values_that_so_many_can_have() -> None:
    grid = [{"rows": rows, "columns": columns} for rows in range(2) for columns in range(3)]
    chosen = [grid[each] for each in spread(grid, 3)]
    assert [{each[name] for each in chosen} for name in ("rows", "columns")] == [{0, 1}, {0, 1, 2}]
    assert spread([{"rows": rows} for rows in range(9)], 3) == {0, 4, 8}
    assert spread(grid, 99) == {*range(6)}


def test_the_readme_gives_the_command_that_ci_runs() -> None:
    commands = [line.strip() for line in (ROOT / "README.md").read_text().splitlines() if ".venv-test/bin/nox" in line]
    assert commands == [(ROOT / ".ci/run").read_text().splitlines()[-1]]
