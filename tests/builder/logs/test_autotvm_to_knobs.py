"""What AutoTVM's x86 configurations mean as knobs, and which have no meaning here. Without TVM."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tunehub_builder.logs.autotvm_to_knobs import PLAIN, ConvLayer, DenseLayer, Translation, translate_knobs
from tunehub_builder.logs.autotvm_v01_to_v02 import UntranslatableError
from tunehub_registry.tuning_log import parse_line

from .autotvm_lines import CONV, conv_line, dense_line, depthwise_line, line, pointwise_line, tensor

pytestmark = pytest.mark.fast


def meaning(data: bytes, vector: int = 16) -> Translation:
    return translate_knobs(parse_line(data), vector)


def blocks_of(found: Translation) -> list[tuple[int, int]]:
    return [layer.blocks for layer in found.layers if isinstance(layer, ConvLayer)]


def test_a_convolution() -> None:
    found = meaning(conv_line(CONV))
    assert found == Translation(
        template="conv2d",
        layers=tuple(
            ConvLayer(
                batch=1, in_channels=64, out_channels=64, size=(56, 56), kernel=(3, 3), strides=(1, 1),
                padding=(1, 1, 1, 1), dilation=(1, 1), groups=1, blocks=(block, 16),
            )
            for block in (16, 8)
        ),
        knobs={
            "columns": 7, "blocks": 2, "row": 56, "order": "channels", "unroll": True, "padding": "whole",
            "parallel": True,
        },
    )  # fmt: skip


@pytest.mark.parametrize(
    ("vector", "tile_oc", "block", "blocks"),
    [(16, 64, 16, 4), (16, 8, 8, 1), (16, 16, 16, 1), (8, 16, 8, 2), (8, 4, 4, 1), (4, 32, 4, 8)],
)
def test_vectors_of_the_output_are_blocks(vector: int, tile_oc: int, block: int, blocks: int) -> None:
    found = meaning(conv_line({**CONV, "tile_oc": [-1, tile_oc]}), vector)
    assert {outside for _, outside in blocks_of(found)} == {block}
    assert found.knobs["blocks"] == blocks


def test_the_input_is_in_all_blocks_that_the_planner_may_take() -> None:
    assert meaning(conv_line(CONV)).notes == ()
    wide = meaning(conv_line({**CONV, "tile_ic": [-1, 64]}))
    assert blocks_of(wide) == [(16, 16), (8, 16)]
    assert wide.notes == ("tile_ic 64: the input is in blocks of 16 or 8 here",)
    single = meaning(conv_line({**CONV, "tile_ic": [-1, 1]}))
    assert blocks_of(single) == [(16, 16), (8, 16), (PLAIN, 16)] and single.notes == ()
    stem = meaning(conv_line({**CONV, "tile_ic": [-1, 3]}, data=(1, 3, 56, 56), kernel=(64, 3, 3, 3)))
    assert blocks_of(stem) == [(PLAIN, 16)] and stem.notes == ("tile_ic 3: the input is plain here",)


def test_the_padding_is_a_copy_where_there_is_any() -> None:
    assert meaning(conv_line(CONV, padding=[0, 0, 0, 0])).knobs["padding"] == "inline"
    for padding in (1, [1, 1], [0, 0, 1, 1]):
        assert meaning(conv_line(CONV, padding=padding)).knobs["padding"] == "whole"


@pytest.mark.parametrize(
    ("size", "tile_oh", "tile_ow", "columns", "row", "notes"),
    [
        (14, 1, 14, 14, 14, 0),
        (14, 1, 2, 2, 14, 0),
        (7, 7, 7, 49, 49, 0),  # whole rows: refused by the template, which has 32 columns at most
        (14, 2, 14, 28, 28, 0),
        (56, 2, 14, 28, 56, 1),  # pixels of another shape
    ],
)
def test_tiles_of_several_rows(size: int, tile_oh: int, tile_ow: int, columns: int, row: int, notes: int) -> None:
    found = meaning(pointwise_line(size, tile_oh=tile_oh, tile_ow=[-1, tile_ow]))
    assert (found.knobs["columns"], found.knobs["row"], len(found.notes)) == (columns, row, notes)
    assert found.knobs["unroll"] is True and found.knobs["padding"] == "inline"


def test_depthwise() -> None:
    found = meaning(depthwise_line())
    assert found.template == "depthwise" and found.notes == ()
    assert found.knobs == {"columns": 7, "unroll": False, "padding": "whole", "parallel": True}
    (layer,) = found.layers
    assert isinstance(layer, ConvLayer) and layer.depthwise and layer.blocks == (16, 16)
    (note,) = meaning(depthwise_line(unroll_kw=False)).notes
    assert note.startswith("unroll_kw false")


def test_a_packed_matrix_product() -> None:
    found = meaning(dense_line())
    assert found.layers == (DenseLayer(rows=8, depth=128, outputs=64, block=16),) and found.notes == ()
    assert found.knobs == {
        "columns": 4, "blocks": 2, "lanes": 16, "row": 8, "order": "outputs", "step": 2, "parallel": True,
    }  # fmt: skip
    fewer = meaning(dense_line(tile_k=[-1, 128], tile_x=[-1, 2, 32]))
    assert fewer.knobs["step"] == 16 and len(fewer.notes) == 2


REFUSED: dict[str, tuple[bytes, str]] = {
    "narrow output": (
        conv_line({**CONV, "tile_oc": [-1, 4]}),
        "tile_oc: 4 is no multiple of a block, which is 16 or 8",
    ),
    "odd output": (conv_line({**CONV, "tile_oc": [-1, 48]}), "tile_oc: 48 does not divide 64"),
    "grouped": (conv_line(CONV, kernel=(64, 16, 3, 3)), "16 input channels, its data 64"),
    "wide tile": (conv_line({**CONV, "tile_ow": [-1, 112]}), "tile_ow: 112 is more than 56"),
    "no tile_ow": (conv_line({"tile_ic": [-1, 16], "tile_oc": [-1, 16]}), "tile_ow"),
    "split in three": (conv_line({**CONV, "tile_oc": [1, 1, 64]}), "tile_oc"),
    "zero": (conv_line({**CONV, "tile_oc": [-1, 0]}), "tile_oc"),
    "text for a flag": (conv_line({**CONV, "unroll_kw": "yes"}), "unroll_kw"),
    "NHWC": (conv_line(CONV, layout="NHWC"), "NHWC"),
    "half precision": (conv_line(CONV, dtype="float16"), "float16"),
    "packed data": (conv_line(CONV, data=(1, 4, 56, 56, 16)), "4 axes"),
    "kernel larger than the image": (conv_line(CONV, data=(1, 64, 2, 2), padding=0), "no pixels"),
    "parts of rows": (pointwise_line(14, tile_oh=2, tile_ow=[-1, 2]), "4 pixels"),
    "rows of a strided image": (pointwise_line(28, strides=2, tile_oh=2), "28 pixels"),
    "rows of a larger kernel": (conv_line({**CONV, "tile_oh": 2}), "1×1"),
    "several blocks of channels": (depthwise_line(tile_oc=[-1, 32]), "tile_oc: 32 is no block"),
    "odd outputs": (dense_line(tile_x=[-1, 1, 50]), "tile_x: 50"),
    "inner tiles": (dense_line(tile_inner=[-1, 2]), "tile_inner: 2 of 4 rows"),
    "vectors of the reduction": (dense_line("dense_nopack.x86"), "dense_nopack adds up"),
    "another task": (conv_line(CONV, task="conv2d_NCHWc_int8.x86"), "no template is that of conv2d_NCHWc_int8.x86"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_template_can_express_is_refused_with_the_reason(name: str) -> None:
    data, reason = REFUSED[name]
    with pytest.raises(UntranslatableError) as error:
        meaning(data)
    assert reason in error.value.reason


NUMBER = st.integers(-2, 130)
VALUE = st.one_of(st.lists(NUMBER, max_size=4), NUMBER, st.booleans(), st.none(), st.text(max_size=4))
NAMES = ("tile_ic", "tile_oc", "tile_ow", "tile_oh", "unroll_kw", "tile_y", "tile_x", "tile_k", "tile_inner")
ARGUMENT = st.one_of(
    NUMBER,
    st.none(),
    st.text(max_size=4),
    st.lists(NUMBER, max_size=4),
    st.lists(NUMBER, max_size=6).map(lambda s: tensor(*s)),
)
TASKS = st.sampled_from(
    ["conv2d_NCHWc.x86", "depthwise_conv2d_NCHWc.x86", "dense_pack.x86", "dense_nopack.x86", "other"]
)


@given(
    TASKS, st.lists(ARGUMENT, max_size=8), st.dictionaries(st.sampled_from(NAMES), VALUE), st.sampled_from([4, 8, 16])
)
def test_any_line_has_a_meaning_or_a_reason(task: str, arguments: Any, knobs: dict[str, Any], vector: int) -> None:
    try:
        meaning(line(task, arguments, knobs), vector)
    except UntranslatableError as error:
        assert error.reason


@given(
    st.sampled_from([(3, 64), (64, 64), (24, 48), (128, 256)]), st.sampled_from([1, 3]), st.integers(7, 60),
    st.sampled_from([1, 2]), st.sampled_from([1, 4, 8, 16, 24, 32, 48, 64]), st.integers(1, 30), st.booleans(),
    st.sampled_from([4, 8, 16]),
)  # fmt: skip
def test_the_tile_of_sums_is_kept(
    channels: tuple[int, int],
    kernel: int,
    size: int,
    stride: int,
    tile_oc: int,
    tile_ow: int,
    unroll: bool,
    vector: int,
) -> None:
    knobs = {"tile_ic": [-1, 1], "tile_oc": [-1, tile_oc], "tile_ow": [-1, tile_ow], "unroll_kw": unroll}
    data, shape = (1, channels[0], size, size), (channels[1], channels[0], kernel, kernel)
    try:
        found = meaning(
            conv_line(knobs, data=data, kernel=shape, strides=[stride] * 2, padding=[kernel // 2] * 4), vector
        )
    except UntranslatableError:
        assume(False)
    assert found.knobs["columns"] == tile_ow and found.knobs["unroll"] is unroll
    for layer in found.layers:
        assert isinstance(layer, ConvLayer)
        inside, block = layer.blocks
        assert block in (vector, vector // 2) and (inside == PLAIN or channels[0] % inside == 0)
        assert found.knobs["blocks"] * block == tile_oc
        assert found.knobs["row"] == layer.out_size[1]
