"""Which network a graph-level record set was made for: TVM replays such a set node by node, whatever the network is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tvm import relay

if TYPE_CHECKING:
    from tunehub.relay.types import Call, Expr, RelayModule, RelayType
    from tunehub.tir.types import Attrs, Tensor

_ATTRIBUTES = (
    "strides", "padding", "dilation", "groups", "channels", "kernel_size", "data_layout", "kernel_layout", "out_dtype",
)  # fmt: skip


def graph_fingerprint(mod: RelayModule) -> str | None:
    """32 hex digits for the sequence of `nn.conv2d` calls of `main`, in the order in which AlterOpLayout meets them.

    Shapes, element types and attributes count, weights and names do not. None for a module without convolutions, or
    with one whose shape is dynamic. `mod` is not changed.
    """
    calls = [describe_call(call) for call in convolutions(mod)]
    if not calls or None in calls:
        return None
    text = json.dumps(calls, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def convolutions(mod: RelayModule) -> list[Call]:
    """The `nn.conv2d` calls of `main` in post order, typed."""
    typed = relay.transform.InferType()(mod)
    found: list[Call] = []

    def visit(node: Expr) -> None:
        if isinstance(node, relay.Call) and getattr(node.op, "name", None) == "nn.conv2d":
            found.append(node)

    relay.analysis.post_order_visit(typed["main"], visit)
    return found


def describe_call(call: Call) -> list[Any] | None:
    """Operator, argument types and attributes of a typed call as JSON; None when a shape is dynamic."""
    arguments = [argument.checked_type for argument in call.args]
    described = describe_operator(call.op.name, arguments, call.attrs)
    return None if None in described[1] else described


def describe_operator(name: str, arguments: Sequence[Tensor] | Sequence[RelayType], attrs: Attrs) -> list[Any]:
    """The same for an operator with tensors, or types of tensors, as arguments; None for one of dynamic shape."""
    attributes = {str(key): attrs[key] for key in attrs.keys()} if attrs is not None else {}  # noqa: SIM118
    return [name, [_tensor(item) for item in arguments], [str(attributes.get(key)) for key in _ATTRIBUTES]]


def _tensor(kind: RelayType | Tensor) -> list[Any] | None:
    shape = getattr(kind, "shape", None)
    if shape is None or not all(type(extent).__name__ == "IntImm" for extent in shape):
        return None
    return [[int(extent) for extent in shape], str(kind.dtype)]
