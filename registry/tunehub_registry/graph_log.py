"""Graph-level record sets: AutoTVM lines in the order of a network's nodes, below one line that names the network.

TVM's `ApplyGraphBest` (autotvm/task/dispatcher.py) replays such a file node by node and skips lines that start with
`#`, so the file stays one that TVM itself reads.
"""

from __future__ import annotations

import msgspec

from tunehub_registry import _fields, _json
from tunehub_registry.exceptions import FormatError

_MARK = b"# tunehub-graph 1 "
MAX_HEADER_BYTES = 4096


class GraphHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The network that the records were tuned for; `fingerprint` is that of its convolutions (32 hex digits)."""

    network: _fields.Label
    fingerprint: _fields.Key


def encode_graph_header(header: GraphHeader) -> bytes:
    """The first line of the file, newline included."""
    return _MARK + _json.encode(header)


def parse_graph_header(line: bytes) -> GraphHeader | None:
    """Read the first line of a file; None when it is not such a header."""
    if not line.startswith(_MARK):
        return None
    try:
        value = _json.decode(line[len(_MARK) :].rstrip(b"\r\n"), "graph header", max_bytes=MAX_HEADER_BYTES)
        return _json.convert(value, GraphHeader, "graph header")
    except FormatError:
        return None
