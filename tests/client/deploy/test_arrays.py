from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub.deploy.arrays import random_array, random_inputs, read_inputs, write_arrays
from tunehub.deploy.interface import Interface, TensorSpec
from tunehub.exceptions import LibraryError

pytestmark = pytest.mark.fast

X = TensorSpec(name="x", dtype="float32", shape=("batch", 3))
Y = TensorSpec(name="y", dtype="int64", shape=("batch",))
INTERFACE = Interface(inputs=(X, Y), outputs=(), target="{}", device="llvm", tvm="0.27.0", tunehub="0.1.0")
GOOD: dict[str, Any] = {"x": np.ones((2, 3), "float32"), "y": np.zeros(2, "int64")}


class Runs:
    """What would run if it were unpickled."""

    ran = False

    def __reduce__(self) -> Any:
        return setattr, (Runs, "ran", True)


def refused(path: Path) -> str:
    with pytest.raises(LibraryError) as caught:
        read_inputs(path, INTERFACE)
    assert str(path) in str(caught.value)
    return str(caught.value)


def saved(path: Path, **changes: Any) -> Path:
    np.savez(path, **{name: array for name, array in {**GOOD, **changes}.items() if array is not None})
    return path


def claimed(path: Path, header: dict[str, Any], data: bytes = b"") -> Path:
    """An archive whose `x` says of itself what `header` says."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, **header})
    saved(path, x=None)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("x.npy", stream.getvalue() + data)
    return path


def test_arrays_come_in_the_order_of_the_inputs(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", y=GOOD["y"], x=GOOD["x"])
    found = read_inputs(tmp_path / "x.npz", INTERFACE)
    assert list(found) == ["x", "y"]
    assert all(np.array_equal(found[name], GOOD[name]) for name in GOOD)


def test_other_orders_of_bytes_and_elements_are_made_plain(tmp_path: Path) -> None:
    x = np.arange(6, dtype=">f4").reshape(2, 3)
    found = read_inputs(saved(tmp_path / "x.npz", x=np.asfortranarray(x)), INTERFACE)["x"]
    assert found.dtype == np.dtype("float32") and found.dtype.isnative and found.flags.c_contiguous
    assert np.array_equal(found, x)


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    assert "has no array 'y'" in refused(saved(path, y=None))
    assert "has 'z.npy', which is no input (x float32 [batch, 3], y int64 [batch])" in refused(saved(path, z=GOOD["x"]))
    assert "array 'x' is float64, the input is float32" in refused(saved(path, x=np.ones((2, 3))))
    assert "array 'x' is [2, 4], the input [batch, 3]" in refused(saved(path, x=np.ones((2, 4), "float32")))
    assert "array 'x' is [3], the input [batch, 3]" in refused(saved(path, x=np.ones(3, "float32")))
    assert "'batch' is 2 in 'x' and 3 in 'y'" in refused(saved(path, y=np.zeros(3, "int64")))


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, **{**GOOD, "x": np.array([[Runs()] * 3], dtype=object)})
    assert "array 'x' is object" in refused(path)
    assert not Runs.ran
    pickle = tmp_path / "pickle.npz"
    pickle.write_bytes(__import__("pickle").dumps(Runs()))
    assert "not a sound .npz" in refused(pickle)
    assert not Runs.ran


def test_an_array_that_claims_more_than_it_has_is_not_made(tmp_path: Path) -> None:
    assert "has not the size that its shape" in refused(claimed(tmp_path / "a.npz", {"shape": (2**40, 3)}))
    assert "has not the size that its shape" in refused(claimed(tmp_path / "b.npz", {"shape": (2, 3)}, b"\0" * 23))
    assert "has not the size that its shape" in refused(claimed(tmp_path / "c.npz", {"shape": (-1, 3)}))
    assert refused(claimed(tmp_path / "d.npz", {"shape": (2, 3), "descr": "|O"})).count("object") == 1


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "nowhere.npz")
    assert "Is a directory" in refused(tmp_path)
    text = tmp_path / "text.npz"
    text.write_text("x")
    assert "not a sound .npz" in refused(text)


@given(st.data())
def test_a_damaged_file_is_read_right_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = saved(tmp_path_factory.mktemp("damaged") / "x.npz")
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        found = read_inputs(path, INTERFACE)
    except LibraryError:
        return
    assert {name: (array.shape, str(array.dtype)) for name, array in found.items()} == {
        "x": ((2, 3), "float32"), "y": ((2,), "int64")
    }  # fmt: skip


def test_random_inputs_are_fixed_by_the_seed() -> None:
    first, again, other = (random_inputs(INTERFACE, {"batch": 4}, seed) for seed in (1, 1, 2))
    assert {name: array.shape for name, array in first.items()} == {"x": (4, 3), "y": (4,)}
    assert np.array_equal(first["x"], again["x"]) and not np.array_equal(first["x"], other["x"])
    assert set(random_array(0, "ids", (100,), "int64")) == {0, 1}
    with pytest.raises(LibraryError, match="'batch'"):
        random_inputs(INTERFACE, {}, 0)
    with pytest.raises(LibraryError, match="too large"):
        random_inputs(INTERFACE, {"batch": 2**60}, 0)


def test_outputs_are_written_whole(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    narrow = np.array([1.5, 2.0], ml_dtypes.bfloat16)
    folder = tmp_path / "folder"
    folder.mkdir()
    write_arrays(folder / "y.out", {"y": GOOD["x"], "narrow": narrow})
    with np.load(folder / "y.out") as found:
        assert np.array_equal(found["y"], GOOD["x"])
        assert found["narrow"].dtype == np.float32 and list(found["narrow"]) == [1.5, 2.0]
    assert [each.name for each in folder.iterdir()] == ["y.out"]


@pytest.mark.parametrize("from_end", [True, False])
def test_values_that_index_are_counted_from_the_end_only_where_the_model_does(tmp_path: Path, from_end: bool) -> None:
    spec = TensorSpec(name="ids", dtype="int64", shape=(2,), rows=5, from_end=from_end)
    interface = Interface(inputs=(spec,), outputs=(), target="{}", device="cuda", tvm="0.27.0", tunehub="0.1.0")
    for wrong, fits in ((4, True), (5, False), (-1, from_end), (-6, False)):
        np.savez(tmp_path / "x.npz", ids=np.array([0, wrong]))
        if fits:
            read_inputs(tmp_path / "x.npz", interface)
            continue
        with pytest.raises(LibraryError, match=f"has {wrong}, .*give values from {-5 if from_end else 0} to 4"):
            read_inputs(tmp_path / "x.npz", interface)
