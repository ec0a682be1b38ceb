"""How the code stands: no import circle, no class name twice, folders instead of prefixes, no test imported."""

from __future__ import annotations

import ast
import gc
import importlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[1]
FOLDERS = {"client": "client", "builder": "builder", "registry": "registry", "benchmarks": ""}
MOST_AT_THE_TOP = 8
MOST_ANY = {"client": 307, "builder": 610, "registry": 98}  # annotations; lower them as they fall
WITHOUT_TVM = ("_files", "cli", "comparison", "records", "registries", "report", "site", "target")
NAMES_OF_TVM = re.compile(r"[\"'](TensorLoad|GenericConst|LetStmt)[\"']|ForKind|IterVarType")
STATEMENTS_OF_TVM = re.compile(r"\btirx\.(For|SeqStmt|IfThenElse|BufferStore|Evaluate|Bind|AllocBuffer|AttrStmt)\(")
BUILDERS = {"client/tunehub/tir/statements.py", "client/tunehub/tir/nodes.py"}
WITH_KINDS = re.compile(r"\b(For|IterVar)\(|\.(kind|iter_type)\b")  # parsing all modules again takes seconds
IMPORTS_OF_TESTS = re.compile(r"\bimport\b.*\btest_|\btest_\w+ import\b")
PLACES_OF_KINDS = {"For": 3, "IterVar": 2}
NAMES_OF_SPEED = ("MULTIPROCESSORS", "PLACES", "IN_CLUSTERS", "LAUNCHES_S", "BANDWIDTH")
WANTED = (ast.Import, ast.ImportFrom, ast.ClassDef)


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """Of a module, which is parsed once: imports and classes, annotations, what is said of speeds."""

    wanted: Sequence[ast.AST]
    annotations: Sequence[ast.expr]
    speeds: Sequence[str]


@cache
def _parsed(path: Path) -> Parsed:
    gc.disable()  # or it looks through all trees again and again
    try:
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))))
        wanted = [node for node in nodes if isinstance(node, WANTED)]
        return Parsed(wanted=wanted, annotations=list(_annotations(nodes)), speeds=list(_speeds(nodes)))
    finally:
        gc.enable()


@cache
def _modules() -> Mapping[str, Sequence[ast.AST]]:
    """Every module's imports and classes, in functions, too, by its full name; a package is its `__init__`."""
    found = {}
    for folder, base in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / base).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = _parsed(path).wanted
    return found


def _imports(name: str) -> Iterator[str]:
    """The modules that a module imports from anywhere in it: in functions and for type checkers, too."""
    for node in _modules()[name]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in _modules() else str(node.module)


def _graph() -> dict[str, set[str]]:
    return {name: {other for other in _imports(name) if other in _modules()} - {name} for name in _modules()}


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen


def circles(graph: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """The groups of modules that import one another, directly or through others."""
    reached = {name: _reached(graph, name) for name in graph}
    return {
        frozenset(other for other in reached[name] if name in reached[other]) for name in graph if name in reached[name]
    }


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}
    assert circles(graph) == {frozenset("abc")}


def test_relative_imports_are_not_used() -> None:
    found = {name for name, nodes in _modules().items() for node in nodes if getattr(node, "level", 0)}
    assert not found


def test_no_modules_import_one_another() -> None:
    assert not [sorted(circle) for circle in circles(_graph())]


def test_no_class_name_stands_twice() -> None:
    counts = Counter(node.name for found in _modules().values() for node in found if isinstance(node, ast.ClassDef))
    assert not sorted(name for name, count in counts.items() if count > 1)


def test_the_client_is_in_folders() -> None:
    assert len(list((ROOT / "client" / "tunehub").glob("*.py"))) <= MOST_AT_THE_TOP


@pytest.mark.parametrize("folder", WITHOUT_TVM)
def test_what_knows_no_tvm_imports_none_at_the_top(folder: str) -> None:
    """In functions, `target` asks TVM, and commands use it; the others never do (the contracts in pyproject.toml)."""
    for path in (ROOT / "client" / "tunehub" / folder).rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8"), str(path)).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.partition(".")[0] in ("tvm", "tvm_ffi")], path


@pytest.mark.parametrize("prefix", ["relax_", "cuda_"])
def test_no_prefix_stands_for_a_folder(prefix: str) -> None:
    assert not sorted(path.name for path in (ROOT / "client" / "tunehub").rglob(f"{prefix}*.py"))


def _speeds(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """What a module says of the speed of a GPU: names of costs and multiprocessors, and numbers that a device has."""
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            if node.id.endswith("COSTS") or node.id.lstrip("_") in NAMES_OF_SPEED:
                yield node.id
        elif isinstance(node, ast.Constant) and (node.value == 132 or _is_rate(node.value)):
            yield str(node.value)


def _is_rate(value: object) -> bool:
    """Whether it is as much in a second as only GPUs do."""
    return isinstance(value, float) and 1e11 <= value < 1e18


def test_only_devices_say_how_fast_a_gpu_is() -> None:
    client = ROOT / "client" / "tunehub"
    devices = client / "kernels" / "devices"
    found = {path: _parsed(path).speeds for path in client.rglob("*.py") if devices not in path.parents}
    assert not {path: names for path, names in found.items() if names}


def _numbers_for_kinds(code: str) -> list[int]:
    """The lines that make or compare a loop or an axis of TIR with a number for its kind."""
    found = []
    for node in ast.walk(ast.parse(code)):
        compared: list[ast.expr] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PLACES_OF_KINDS:
            place = PLACES_OF_KINDS[node.func.attr]
            compared = node.args[place : place + 1]
        elif isinstance(node, ast.Compare) and re.search(r"\.(kind|iter_type)\b", ast.unparse(node.left)):
            compared = [each for side in node.comparators for each in getattr(side, "elts", [side])]
        if any(isinstance(each, ast.Constant) and isinstance(each.value, int) for each in compared):
            found.append(node.lineno)
    return found


def test_numbers_for_kinds_are_found() -> None:
    code = "tirx.For(i, 0, 4, 2, body)\ntirx.IterVar(None, i, KIND, tag)\nint(loop.kind) in (0, 1)\nhost.kind == 'llvm'"
    assert _numbers_for_kinds(code) == [1, 3]


def test_names_and_numbers_of_tvm_stand_once() -> None:
    """What its versions call differently, and the numbers of its enums: other modules import them."""
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    code = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}
    assert {path for path, text in code.items() if NAMES_OF_TVM.search(text)} == {"client/tunehub/tir/versions.py"}
    assert not {path for path, text in code.items() if WITH_KINDS.search(text) and _numbers_for_kinds(text)}


def test_statements_are_made_by_one_builder() -> None:
    """What writes kernels statement by statement does so in its words; `nodes` copies what it has taken apart."""
    files = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "client").rglob("*.py")}
    assert {name for name, path in files.items() if STATEMENTS_OF_TVM.search(path.read_text())} == BUILDERS


def test_instructions_of_ptx_are_wrapped_once() -> None:
    """Kernels written in CUDA C++ alone have their own, in `.cuh` files."""
    found = {path.parent for path in (ROOT / "client").rglob("*.py") if "asm volatile" in path.read_text()}
    assert found == {ROOT / "client" / "tunehub" / "tir" / "cuda" / "ptx"}


def _tests_imported(code: str) -> list[str]:
    """The test modules that a module imports from, anywhere in it, or as a module."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            found += [name for name in modules if any(part.startswith("test_") for part in name.split("."))]
    return found


def test_imports_of_tests_are_found() -> None:
    code = "from .test_a import case\nfrom . import test_b\nimport tests.test_c\nfrom .cases import tested"
    assert _tests_imported(code) == ["test_a", "test_b", "tests.test_c"]


def test_no_module_imports_a_test() -> None:
    """What several tests need stands in a module that says what it holds."""
    files = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")}
    found = {path: _tests_imported(code) for path, code in files.items() if IMPORTS_OF_TESTS.search(code)}
    assert not {path: names for path, names in found.items() if names}


def test_commands_print_by_one_function() -> None:
    """`say` and its neighbours show texts of others as plain text; what is printed in another way is our own."""
    own, other = (
        {"output.py", "reference.py"},
        r"\bclick\.echo\(|(?<![\w.])print\((?!json\.dumps)|sys\.std(out|err)\.write",
    )
    folders = ("client/tunehub/cli", "builder/tunehub_builder/cli", "builder/tunehub_builder/bench")
    paths = [path for folder in folders for path in sorted((ROOT / folder).glob("*.py")) if path.name not in own]
    lines = [(path.name, line.strip()) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    counted = ("review.py", 'click.echo(f"\\r{position}/{total} records", nl=position == total, err=True)')
    assert [found for found in lines if re.search(other, found[1])] == [counted]


def _annotations(nodes: Iterable[ast.AST]) -> Iterator[ast.expr]:
    """Those of all parameters, results and variables, but for aliases of types, which name what has no stubs."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own = node.args
            each = [*own.posonlyargs, *own.args, *own.kwonlyargs, *filter(None, (own.vararg, own.kwarg))]
            yield from (found for found in (*(a.annotation for a in each), node.returns) if found is not None)
        elif isinstance(node, ast.AnnAssign):
            yield node.annotation


def _says_nothing(annotation: ast.expr) -> bool:
    """Whether `Any` is in it; names that only begin so are others."""
    return any(getattr(node, "id", getattr(node, "attr", None)) == "Any" for node in ast.walk(annotation))


def test_any_is_found_in_annotations() -> None:
    code = "def f(self, a: Any, *b: list[Any], c: AnyTile, d: typing.Any | None = None, **e: int) -> Any: g: set[Any]"
    found = [ast.unparse(each) for each in _annotations(ast.walk(ast.parse(code))) if _says_nothing(each)]
    assert found == ["Any", "typing.Any | None", "list[Any]", "Any", "set[Any]"]


@pytest.mark.parametrize("folder", MOST_ANY)
def test_annotations_say_what_they_are(folder: str) -> None:
    """TVM has no stubs: `tir/types.py` and its like have names for its classes. What is no more `Any` stays so."""
    found = {path: sum(map(_says_nothing, _parsed(path).annotations)) for path in (ROOT / folder).rglob("*.py")}
    assert sum(found.values()) <= MOST_ANY[folder], sorted(found.items(), key=lambda item: -item[1])[:20]


def test_every_folder_of_the_client_is_in_the_architecture() -> None:
    client = ROOT / "client" / "tunehub"
    folders = [path.parent for path in client.rglob("*/__init__.py")]
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert [str(each.relative_to(client)) for each in folders if f"{each.name}/`" not in text] == []


@pytest.mark.parametrize("floor", ["target", "tir", "graph", "relay"])
def test_names_of_types_are_explained_and_used(floor: str) -> None:
    types = importlib.import_module(f"tunehub.{floor}.types")
    body = ast.parse(Path(str(types.__file__)).read_text(encoding="utf-8")).body
    places = [at for at, node in enumerate(body) if isinstance(node, ast.AnnAssign)]
    assert all(isinstance(body[at + 1], ast.Expr) for at in places)
    imports = [node for found in _modules().values() for node in found if isinstance(node, ast.ImportFrom)]
    used = {alias.name for node in imports if node.module == types.__name__ for alias in node.names}
    assert {ast.unparse(body[at].target) for at in places} == used
