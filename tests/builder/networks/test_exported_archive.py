"""Archives of torch.export: what PyTorch would run is refused before PyTorch is imported.

`data/open.pt2` is what torch.export.save of PyTorch 2.15 wrote of a small network with an open batch.
"""

from __future__ import annotations

import io
import json
import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub_builder.networks import ModelFileError
from tunehub_builder.networks.exported_archive import checked_archive, is_expression

pytestmark = pytest.mark.fast

SAVED = Path(__file__).parent / "data" / "open.pt2"
GRAPH, WEIGHTS = "open/models/model.json", "open/data/weights/model_weights_config.json"


def written(path: Path, change: Callable[[dict[str, Any]], None], *, compression: int = zipfile.ZIP_STORED) -> Path:
    """The archive with changed entries: bytes, or what JSON has."""
    with zipfile.ZipFile(SAVED) as archive:
        entries: dict[str, Any] = {name: archive.read(name) for name in archive.namelist()}
    entries |= {name: json.loads(data) for name, data in entries.items() if name.endswith(".json")}
    change(entries)
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, value in entries.items():
            archive.writestr(name, value if isinstance(value, bytes) else json.dumps(value))
    return path


def said(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        checked_archive(path)
    assert caught.value.path == str(path) and caught.value.remedy
    return caught.value.reason


def test_what_pytorch_saves_passes_and_is_written_anew() -> None:
    checked = checked_archive(SAVED)
    with zipfile.ZipFile(SAVED) as before, zipfile.ZipFile(io.BytesIO(checked.data)) as after:
        contents = {name.partition("/")[2]: before.read(name) for name in before.namelist()}
        assert {name.partition("/")[2]: after.read(name) for name in after.namelist()} == contents
    assert checked.sample_inputs == contents["data/sample_inputs/model.pt"]
    assert "torch" not in sys.modules or "torch" in str(sys.modules["torch"])


def test_operators_of_quantised_programs_pass_and_others_of_their_library_do_not(tmp_path: Path) -> None:
    assert checked_archive(SAVED.with_name("quantised.pt2")).is_quantised
    assert not checked_archive(SAVED).is_quantised
    name = "torch.ops.quantized_decomposed.add.default"
    assert (
        said(written(tmp_path / "model.pt2", _target(name)))
        == f"calls {name!r}, which is not an operator of PyTorch's own"
    )


def _pickled(entries: dict[str, Any]) -> None:
    entries[WEIGHTS]["config"]["c.weight"]["use_pickle"] = True


def _object(entries: dict[str, Any]) -> None:
    entries["open/data/constants/custom_obj_0"] = pickle.dumps(print)


def _old_weights(entries: dict[str, Any]) -> None:
    entries["open/data/weights/model.pt"] = pickle.dumps(print)


def _library(entries: dict[str, Any]) -> None:
    entries["open/data/aotinductor/model/model.so"] = b"\x7fELF"


def _old(entries: dict[str, Any]) -> None:
    entries.clear()
    entries["serialized_exported_program.json"] = {}


def _target(name: str) -> Callable[[dict[str, Any]], None]:
    def change(entries: dict[str, Any]) -> None:
        entries[GRAPH]["graph_module"]["graph"]["nodes"][0]["target"] = name

    return change


def _size(entries: dict[str, Any]) -> None:
    size = {"as_expr": {"expr_str": "__import__('os').system('true')", "hint": None}}
    entries[GRAPH]["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][0] = size


def _range(entries: dict[str, Any]) -> None:
    entries[GRAPH]["range_constraints"] = {"exec('1')": {"min_val": 1, "max_val": 2}}


def _enum(entries: dict[str, Any]) -> None:
    entries[GRAPH]["graph_module"]["module_call_graph"] = [{"fqn": '{"__enum__": true, "fqn": "this:that"}'}]


def _two(entries: dict[str, Any]) -> None:
    entries["open/models/other.json"] = entries[GRAPH]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_pickled, "has a tensor that is pickled Python"),
        (_object, "custom_obj_0', which may be code"),
        (_old_weights, "weights/model.pt', which may be code"),
        (_library, "model.so', which may be code"),
        (_old, "is of PyTorch 2.7 or older"),
        (_target("torch.load"), "calls 'torch.load'"),
        (_target("torch.ops.aten.from_file.default"), "from_file"),
        (_target("torch.ops.aten.add.Tensor.__class__"), "calls"),
        (_target("_operator.attrgetter"), "calls '_operator.attrgetter'"),
        (_size, "__import__"),
        (_range, "exec"),
        (_enum, "has an enum among its inputs"),
        (_two, "has not the one program"),
    ],
)
def test_what_could_run_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], None], reason: str) -> None:
    assert reason in said(written(tmp_path / "model.pt2", change))


def test_compressed_and_repeated_entries_are_refused(tmp_path: Path) -> None:
    assert "is compressed" in said(written(tmp_path / "a.pt2", lambda _: None, compression=zipfile.ZIP_DEFLATED))
    path = written(tmp_path / "b.pt2", lambda _: None)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(GRAPH, b"{}")
    assert "stands twice" in said(path)


def test_what_is_no_archive_is_named(tmp_path: Path) -> None:
    assert said(tmp_path / "nowhere.pt2") == "no such file"
    assert said(tmp_path) == "is a folder, not a file"
    half = tmp_path / "half.pt2"
    half.write_bytes(SAVED.read_bytes()[:5000])
    assert "not readable as an archive" in said(half)
    text = tmp_path / "text.pt2"
    text.write_bytes(pickle.dumps(print))
    assert "not readable as an archive" in said(text)


@given(st.data())
def test_a_damaged_archive_passes_or_is_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = bytearray(SAVED.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "model.pt2"
    path.write_bytes(content)
    try:
        checked_archive(path)
    except ModelFileError as error:
        assert error.reason


@pytest.mark.parametrize(
    "text",
    [
        *("s77", "2*s0 + 1", "Max(1, s77)", "u0//2", "s0**2", "(s0 - 1) % 8 <= 64", "Pow(s0, Integer(2))"),
        *(
            "Symbol('s77', positive=True, integer=True)",
            "Add(Mul(Integer(2), Symbol('s0', integer=True)), Integer(-1))",
        ),
    ],
)
def test_arithmetic_of_symbols_is_an_expression(text: str) -> None:
    assert is_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        *("__import__('os')", "s77.__class__", "lambda: 1", "9**9**9", "s0**99", "Pow(9, Pow(9, 9))", "1 << 999"),
        *("eval(s0)", "Symbol('__import__')", "Symbol(s0)", "Symbol('s0', cls=1)", "[s0 for s0 in s1]", "Max(*s0)"),
        *("s0 if s1 else s2", "'s0'", "f'{s0}'", "s0[0]", "(" * 500 + "s0" + ")" * 500, "1" * 3000, ""),
    ],
)
def test_anything_else_is_none(text: str) -> None:
    assert not is_expression(text)


@given(st.text(max_size=40))
def test_no_text_is_an_error(text: str) -> None:
    assert is_expression(text) in (True, False)
