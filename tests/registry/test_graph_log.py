"""The first line of a graph-level record file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub_registry.graph_log import GraphHeader, encode_graph_header, parse_graph_header

pytestmark = pytest.mark.fast


@given(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=256),
    st.text("0123456789abcdef", min_size=32, max_size=32),
)
def test_a_header_is_read_as_it_was_written(network: str, fingerprint: str) -> None:
    header = GraphHeader(network=network, fingerprint=fingerprint)
    line = encode_graph_header(header)
    assert line.startswith(b"#")
    assert line.count(b"\n") == 1
    assert parse_graph_header(line) == header


@pytest.mark.parametrize(
    "line",
    [b"", b"# a comment\n", b"# tunehub-graph 1 \n", b"# tunehub-graph 1 {}", b'# tunehub-graph 1 {"network": "x"}\n',
     b'# tunehub-graph 1 {"network": "x", "fingerprint": "zz"}', b"# tunehub-graph 2 {}", b"# tunehub-graph 1 \xff"],
)  # fmt: skip
def test_anything_else_is_no_header(line: bytes) -> None:
    assert parse_graph_header(line) is None


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_error(data: bytes) -> None:
    header = parse_graph_header(b"# tunehub-graph 1 " + data)
    assert header is None or isinstance(header, GraphHeader)
