"""Groups of channels in whole blocks: what a block of outputs reads has all inputs of its groups."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub.kernels.te.weights import ReadBlocks

pytestmark = pytest.mark.fast


@given(st.integers(2, 9), st.integers(1, 70), st.integers(1, 70), st.sampled_from([8, 32]))
def test_widened_weights_have_each_group_where_its_inputs_are(
    groups: int, inputs: int, outputs: int, block: int
) -> None:
    read = ReadBlocks.of(groups, (groups * inputs, groups * outputs), block)
    weight = 1 + np.arange(groups * outputs * inputs, dtype="int64").reshape(-1, inputs, 1, 1)
    wide = read.widened(weight)
    for output, row in enumerate(wide[:, :, 0, 0]):
        first = read.first(output // block)
        assert 0 <= first <= read.total - read.count
        whole = np.zeros(read.total * block, "int64")
        whole[first * block : first * block + len(row)] = row
        begin = output // outputs * inputs
        assert (whole[begin : begin + inputs] == weight[output, :, 0, 0]).all()
        assert np.count_nonzero(whole) == inputs


def test_blocks_read_no_more_than_their_groups_touch() -> None:
    assert ReadBlocks.of(4, (128, 128), 32).count == 1
    assert ReadBlocks.of(2, (96, 256), 32).count == 2
    assert ReadBlocks.of(4, (136, 136), 32).count == 3
