from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub.deploy.interface import Interface, TensorSpec, check_sound, decoded, encoded
from tunehub.exceptions import LibraryError

pytestmark = pytest.mark.fast

EXTENTS = st.one_of(st.integers(0, 2**40), st.text(min_size=1))
SPECS = st.builds(
    TensorSpec, name=st.text(), dtype=st.text(), shape=st.none() | st.lists(EXTENTS, max_size=5).map(tuple)
)


def interface(*inputs: TensorSpec, outputs: tuple[TensorSpec, ...] = ()) -> Interface:
    return Interface(inputs=inputs, outputs=outputs, target="{}", device="llvm", tvm="0.27.0", tunehub="0.1.0")


IDS = TensorSpec(name="ids", dtype="int64", shape=("batch", "sequence"))
MASK = TensorSpec(name="mask", dtype="float32", shape=("batch", 1, "sequence"))


@given(st.lists(SPECS, max_size=3), st.lists(SPECS, max_size=3))
def test_what_is_encoded_is_decoded(inputs: list[TensorSpec], outputs: list[TensorSpec]) -> None:
    made = interface(*inputs, outputs=tuple(outputs))
    assert decoded(encoded(made), "model.so") == made


@given(st.binary())
def test_what_is_no_interface_is_an_error_that_names_the_library(data: bytes) -> None:
    with pytest.raises(LibraryError, match=r"model\.so"):
        decoded(data, "model.so")


def test_an_interface_of_another_version_is_refused() -> None:
    with pytest.raises(LibraryError, match=r"of version 2, this tunehub reads 1"):
        decoded(encoded(interface()).replace(b'"version":1', b'"version":2'), "model.so")


def test_open_dimensions_are_found_once_and_in_order() -> None:
    assert interface(IDS, MASK).open_dimensions() == ("batch", "sequence")


def test_sizes_of_open_dimensions_give_shapes() -> None:
    assert MASK.shape_at({"batch": 2, "sequence": 7, "other": 1}) == (2, 1, 7)
    with pytest.raises(LibraryError, match=r"'mask': has the open dimension 'sequence' .*--dim sequence=8"):
        MASK.shape_at({"batch": 2})
    with pytest.raises(LibraryError, match="--dim batch=8 --dim sequence=8"):
        MASK.shape_at({})
    with pytest.raises(LibraryError, match=r"'x': has no known number of axes .*--inputs"):
        TensorSpec(name="x", dtype="float32", shape=None).shape_at({})


def test_a_size_of_something_else_names_what_is_open() -> None:
    interface(IDS).check_sizes({"batch": 3})
    with pytest.raises(LibraryError, match=r"--dim: 'bath': .*batch, sequence"):
        interface(IDS).check_sizes({"bath": 3})
    with pytest.raises(LibraryError, match=r"nothing is open"):
        interface().check_sizes({"batch": 3})


def test_an_input_is_shown_with_its_type_and_shape() -> None:
    assert str(MASK) == "mask float32 [batch, 1, sequence]"
    assert str(TensorSpec(name="x", dtype="int8", shape=None)) == "x int8 of unknown shape"


@pytest.mark.parametrize(
    ("specs", "reason"),
    [
        ((IDS, IDS), "'ids' stands twice"),
        ((TensorSpec(name="x", dtype="object", shape=(1,)),), "'x' has the element type 'object'"),
        ((TensorSpec(name="x", dtype="float32", shape=(-1,)),), r"'x' has the shape \[-1\]"),
        ((TensorSpec(name="x", dtype="float32", shape=(2**63,)),), "'x' has the shape"),
    ],
)
def test_what_no_library_takes_or_gives_names_the_library_and_the_place(
    specs: tuple[TensorSpec, ...], reason: str
) -> None:
    for place, made in (("input", interface(*specs)), ("output", interface(outputs=specs))):
        with pytest.raises(LibraryError, match=rf"library: 'model.so': its interface is malformed: {place} {reason}"):
            check_sound(made, "model.so")
    check_sound(interface(IDS, MASK), "model.so")


def test_libraries_without_a_list_of_features_are_read() -> None:
    old = encoded(interface(IDS)).replace(b'"arch":null,', b"").replace(b'"features":[],', b"")
    assert b"features" not in old and decoded(old, "model.so") == interface(IDS)
