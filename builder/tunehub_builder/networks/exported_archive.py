"""What an archive of `torch.export.save` may hold before PyTorch sees it. Imports neither torch nor tvm.

`torch.export.load` is not for files of others: it unpickles what the archive calls pickled, evaluates sizes as Python
(`sympy.sympify`), calls what a node names, imports modules that a tree of inputs names, and loads compiled code
(torch/export/pt2_archive/_package.py, torch/_export/serde/serialize.py of PyTorch 2.15). An archive passes only without
all that, and what passed is written anew, because PyTorch and Python may find other entries in a malformed one.
"""

from __future__ import annotations

import ast
import io
import json
import re
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunehub_builder.networks.exceptions import ModelFileError

MAX_GRAPH_BYTES = 256 << 20
_SAVE = "Save the program again with torch.export.save of PyTorch 2.8 or newer"
_NO_CODE = "Only tensors can be read: save a program without custom objects, or export it to ONNX"
# Entries behind the name of the archive.
_PLAIN = r"archive_format|archive_version|byteorder|version|\.data/(version|serialization_id)"
_WEIGHTS = r"data/(weights|constants)/(\w+_(weights|constants)_config\.json|(weight|tensor)_\d+)"
_ENTRY = re.compile(rf"{_PLAIN}|{_WEIGHTS}|models/\w+\.json|data/sample_inputs/\w+\.pt")
_DROPPED = re.compile(r"extra/.*")
_SYMBOL = re.compile(r"[A-Za-z]\w{0,63}", re.ASCII)
_NAME = re.compile(r"[suz][a-z]{0,4}\d{1,9}|oo|int_oo|true|false")
_FUNCTIONS = frozenset(
    {
        *(
            "Symbol",
            "Integer",
            "Add",
            "Mul",
            "Pow",
            "Max",
            "Min",
            "Mod",
            "PythonMod",
            "FloorDiv",
            "CleanDiv",
            "CeilDiv",
        ),
        *("IntTrueDiv", "FloatTrueDiv", "ToFloat", "TruncToInt", "CeilToInt", "FloorToInt", "RoundToInt", "floor"),
        *("ceiling", "Abs", "Eq", "Ne", "Equality", "Unequality", "Lt", "Le", "Gt", "Ge", "StrictLessThan", "LessThan"),
        *("StrictGreaterThan", "GreaterThan", "And", "Or", "Not"),
    }
)
_ASSUMPTIONS = frozenset({"integer", "positive", "nonnegative", "negative", "nonpositive", "zero", "nonzero", "real"})
QUANTISED = "quantized_decomposed"  # PyTorch's library of operators of quantised programs
_MOST_POWER = 4
_MAX_EXPRESSION = 2000  # characters
_TARGET = re.compile(
    r"torch\.ops\.(aten|prims)\.(?!from_file)\w+\.\w+|torch\.sym_\w+|math\.\w+"
    r"|torch\.ops\.higher_order\.wrap_with_(set_grad_enabled|autocast)"
    rf"|torch\.ops\.{QUANTISED}\.((de)?quantize_per_(tensor|channel)|choose_qparams(_symmetric)?|convert_element_type)\.\w+"
    r"|_operator\.(add|sub|mul|floordiv|truediv|mod|neg|pow|eq|ne|lt|le|gt|ge|and_|or_|not_|getitem|abs|index)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedArchive:
    """An archive that may be loaded, as bytes, and the entry in it that PyTorch unpickles: the sample inputs, which
    have to be nothing but tensors. Of one that is quantised PyTorch has to load the operators first."""

    data: bytes
    sample_inputs: bytes
    is_quantised: bool


def checked_archive(path: Path) -> CheckedArchive:
    """Read and check an archive. Raises ModelFileError: missing, no archive, of an old form, or with what is code."""
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "no such file"
        raise ModelFileError(str(path), what, "Give the path of a file that torch.export.save wrote")
    try:
        with zipfile.ZipFile(path) as archive:
            entries = _entries(archive, str(path))
            return _checked(entries, str(path))
    except (zipfile.BadZipFile, struct.error, EOFError, OSError, RuntimeError, ValueError) as error:
        raise ModelFileError(str(path), f"not readable as an archive of torch.export ({error})", _SAVE) from error


def _entries(archive: zipfile.ZipFile, path: str) -> dict[str, bytes]:
    """The contents by name, without the name of the archive in front. All are stored as they are, so none is larger
    than the file."""
    found: dict[str, bytes] = {}
    if "serialized_exported_program.json" in archive.namelist():
        raise ModelFileError(path, "is of PyTorch 2.7 or older, whose weights are pickled Python", _SAVE)
    for info in archive.infolist():
        name = info.filename.partition("/")[2]
        if _DROPPED.fullmatch(name):
            continue
        if not _ENTRY.fullmatch(name):
            raise ModelFileError(path, f"has the entry {info.filename[:80]!r}, which may be code", _NO_CODE)
        if name in found or info.compress_type != zipfile.ZIP_STORED:
            raise ModelFileError(path, f"its entry {info.filename[:80]!r} stands twice or is compressed", _SAVE)
        found[name] = archive.read(info)
    return found


def _checked(entries: dict[str, bytes], path: str) -> CheckedArchive:
    models = [name for name in entries if name.startswith("models/")]
    if models != ["models/model.json"]:
        raise ModelFileError(path, "has not the one program that torch.export.save writes", _SAVE)
    for name, data in entries.items():
        if not name.endswith(".json"):
            continue
        if len(data) > MAX_GRAPH_BYTES:
            raise ModelFileError(path, f"its entry {name} has more than {MAX_GRAPH_BYTES} bytes", _SAVE)
        try:
            _check_values(json.loads(data), path)
        except (ValueError, RecursionError) as error:
            raise ModelFileError(path, f"its entry {name} is not JSON ({error})", _SAVE) from error
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as written:
        for name, data in entries.items():
            written.writestr(f"model/{name}", data)
    return CheckedArchive(
        data=buffer.getvalue(),
        sample_inputs=entries.get("data/sample_inputs/model.pt", b""),
        is_quantised=QUANTISED.encode() in entries["models/model.json"],
    )


def _check_values(document: Any, path: str) -> None:
    """Raise ModelFileError for a value anywhere in a document by which PyTorch would run something."""
    for key, value in _fields(document):
        if key == "use_pickle" and value is not False:
            raise ModelFileError(path, "has a tensor that is pickled Python (of a subclass, say)", _NO_CODE)
        if key == "target" and not (isinstance(value, str) and _TARGET.fullmatch(value)):
            raise ModelFileError(
                path, f"calls {str(value)[:80]!r}, which is not an operator of PyTorch's own", _NO_CODE
            )
        if key in ("expr_str", "range_constraints", "dims", "derived"):
            _check_expressions(value, path)
        if "__enum__" in str(key) or (isinstance(value, str) and "__enum__" in value):
            raise ModelFileError(path, "has an enum among its inputs, whose module would be imported", _NO_CODE)


def _check_expressions(value: Any, path: str) -> None:
    for text in [value] if isinstance(value, str) else list(value or ()):
        if not isinstance(text, str) or not is_expression(text):
            raise ModelFileError(path, f"has {str(text)[:80]!r} for a size, which is no plain expression", _NO_CODE)


def is_expression(text: str) -> bool:
    """Whether a text is arithmetic of symbols and numbers and nothing else: SymPy evaluates it as Python."""
    if len(text) > _MAX_EXPRESSION:
        return False
    try:
        return _is_arithmetic(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _is_arithmetic(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) is bool or (type(node.value) is int and abs(node.value) < 2**64)
    if isinstance(node, ast.Name):
        return _NAME.fullmatch(node.id) is not None
    if isinstance(node, ast.UnaryOp):
        return _is_arithmetic(node.operand)
    if isinstance(node, ast.BinOp):
        powers = (ast.Pow, ast.LShift, ast.RShift)
        small = not isinstance(node.op, powers) or _is_small(node.right)
        return small and _is_arithmetic(node.left) and _is_arithmetic(node.right)
    if isinstance(node, ast.Compare):
        return all(map(_is_arithmetic, (node.left, *node.comparators)))
    return isinstance(node, ast.Call) and _is_plain_call(node)


def _is_plain_call(node: ast.Call) -> bool:
    """A call of one of SymPy's functions, such as `Symbol('s77', positive=True)`."""
    if not isinstance(node.func, ast.Name) or node.func.id not in _FUNCTIONS:
        return False
    named = all(each.arg in _ASSUMPTIONS and _is_arithmetic(each.value) for each in node.keywords)
    if node.func.id == "Symbol":
        (name,) = node.args if len(node.args) == 1 else (None,)
        return named and isinstance(name, ast.Constant) and _is_symbol(name.value)
    small = node.func.id != "Pow" or (len(node.args) == 2 and _is_small(node.args[1]))
    return named and small and all(map(_is_arithmetic, node.args))


def _is_small(node: ast.expr) -> bool:
    """Whether it is a number that may be an exponent: others would take all time and memory."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Integer" and node.args:
        node = node.args[0]
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) <= _MOST_POWER


def _is_symbol(name: object) -> bool:
    return isinstance(name, str) and _SYMBOL.fullmatch(name) is not None


def _fields(document: Any) -> Iterator[tuple[str, Any]]:
    """All fields of all objects, and items of lists with an empty name."""
    waiting = [("", document)]
    while waiting:
        key, value = waiting.pop()
        yield key, value
        if isinstance(value, dict):
            waiting += value.items()
        elif isinstance(value, list):
            waiting += (("", item) for item in value)
