"""What the code takes from TVM's modules is there, under every supported TVM."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.tvm_versions
tvm = pytest.importorskip("tvm")

ROOT = Path(__file__).parents[2]
OF_TVM_0_27 = (
    "client/tunehub/kernels/cuda/gemm/hopper/kernel.py",
    "client/tunehub/kernels/cuda/gemm/hopper/product.py",
    "client/tunehub/kernels/cuda/gemm/tabulated.py",
    "client/tunehub/tir/cuda/ptx/tma.py",
)
OF_RELAY = ("relay/", "replay/logs.py")  # TVM up to 0.19


def _is_asked_for(name: str, tree: ast.Module) -> bool:
    """Whether ``hasattr`` or ``getattr`` has the name, too, or it stands where an import failed or ``hasattr`` has
    met another release."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value == name:
            return True
        is_met = isinstance(node, ast.If | ast.IfExp) and "'hasattr'" in ast.dump(node.test)
        if (is_met or isinstance(node, ast.Try)) and f"{name}'" in ast.dump(node):
            return True
    return False


def _used(tree: ast.Module) -> Iterator[str]:
    """Dotted names of TVM's, as they are written."""
    nodes, aliases = list(ast.walk(tree)), {}
    for node in nodes:
        if isinstance(node, ast.Import) and any(each.name.split(".")[0] == "tvm" for each in node.names):
            aliases |= {each.asname or "tvm": each.name if each.asname else "tvm" for each in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tvm":
            aliases |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    yield from aliases.values()
    for node in nodes:
        words, place = [], node
        while isinstance(place, ast.Attribute):
            words, place = [place.attr, *words], place.value
        if words and isinstance(place, ast.Name) and place.id in aliases:
            yield ".".join((aliases[place.id], *words))


def _lacking(dotted: str) -> str | None:
    """The first word that no module has; of what is in classes and functions nothing is known."""
    found: object = tvm
    for at, word in enumerate(words := dotted.split(".")[1:], 2):
        if not isinstance(found, ModuleType):
            return None
        if not hasattr(found, word):
            try:
                importlib.import_module(".".join(("tvm", *words[: at - 1])))
            except ImportError as error:
                return word if (error.name or "tvm").split(".")[0] == "tvm" else None  # or a package that is not here
        found = getattr(found, word)
    return None


def test_every_name_of_tvm_is_in_this_release_or_asked_for() -> None:
    since = importlib.import_module("tunehub.kernels.cuda.gemm.hopper.rule").has_functions()
    lacking = []
    for path in sorted(each for part in ("client/tunehub", "builder") for each in ROOT.glob(f"{part}/**/*.py")):
        name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        if " tvm" not in text or (name in OF_TVM_0_27 and not since) or any(part in name for part in OF_RELAY):
            continue
        tree = ast.parse(text)
        missing = {word for dotted in _used(tree) if (word := _lacking(dotted)) is not None}
        lacking += [f"{name}: {word}" for word in sorted(missing) if not _is_asked_for(word, tree)]
    assert lacking == []
