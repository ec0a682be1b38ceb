"""What a log line of TVM <= 0.19 was measured for: canonical workloads, their keys, and names for people. Pure."""

from __future__ import annotations

import hashlib
import math
import re
from typing import Any

import msgspec

from tunehub_registry.exceptions import RegistryError

Workload = tuple[Any, ...]

_SCHEME_AUTOTVM, _SCHEME_AUTO_SCHEDULER, _SCHEME_OPERATOR = "autotvm-1", "auto-scheduler-1", "operator-1"
_MAX_DEPTH, _MAX_ITEMS = 12, 4096
_INT_LIMIT = 2**63


class LogLineError(RegistryError):
    """A line of a tuning log cannot be used. Field: `reason`; whoever knows the file and the line adds them."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{reason} (the line is skipped; tune the workload again to replace it)")


def canonical(value: Any, depth: int = 0) -> Any:
    """`value` as TVM compares it: lists are tuples, bools and whole floats are ints. Raises TypeError for the rest."""
    kind = type(value)
    if kind is str or (kind is int and -_INT_LIMIT <= value < _INT_LIMIT):
        return value  # most are
    if kind is list or kind is tuple or isinstance(value, (list, tuple)):
        if depth >= _MAX_DEPTH or len(value) > _MAX_ITEMS:
            raise TypeError("the arguments are too deep or too many to be those of an operator")
        return tuple([canonical(item, depth + 1) for item in value])
    if isinstance(value, int):
        number = int(value)
        if not -_INT_LIMIT <= number < _INT_LIMIT:
            raise TypeError(f"the number {str(number)[:40]} is out of range")
        return number
    if isinstance(value, str):
        return str.__str__(value)  # TVM has a subclass of its own, that JSON is not written from
    if value is None:
        return None
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(f"{value} is not a finite number")
        return int(value) if value == int(value) and abs(value) < _INT_LIMIT else float(value)
    raise TypeError(f"a {kind.__name__} cannot be part of a workload (of a dynamic shape, perhaps)")


def autotvm_key(workload: Any) -> str:
    """The key of an AutoTVM workload `(task name, *arguments)`, as a dispatch context is asked for it: 32 hex digits.

    As in TVM a tuple equals a list, a bool an int, and 1.0 equals 1. Raises TypeError for anything that no record can
    hold, such as the variable of a dynamic shape.
    """
    return canonical_key(canonical(workload))


def canonical_key(workload: Workload) -> str:
    """`autotvm_key` of a workload that is canonical already."""
    return digest(_SCHEME_AUTOTVM, workload)


def auto_scheduler_key(workload_key: str) -> str:
    """The key of an auto-scheduler workload, `["<hash of the DAG>", shapes…]` as JSON: 32 hex digits.

    As in TVM the shapes are compared flattened, and text that is no such list is compared as it is. Raises TypeError
    for what no record can hold.
    """
    return digest(_SCHEME_AUTO_SCHEDULER, auto_scheduler_workload(workload_key)[0])


def auto_scheduler_workload(workload_key: str) -> tuple[Workload, str]:
    """The flat workload and its name for people. Raises TypeError."""
    workload_key = canonical(workload_key)
    try:
        value = msgspec.json.decode(workload_key)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        value = None
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        return (workload_key, None), workload_key[:60]
    shapes = canonical(value[1:])
    name = f"{value[0][:8]} {_shape_text(shapes)}".rstrip()
    return (value[0], *_flat(shapes)), name


def template_key(workload: Workload, template: str) -> str:
    """The key of a v0.1 record: there the name of the template was part of what was tuned."""
    return digest(f"{_SCHEME_AUTOTVM} template {template}", workload) if template else canonical_key(workload)


def operator_key(workload: Workload) -> str:
    """Equal for all implementations of one operator on the same shapes; for an operator not known, the task's own."""
    return digest(_SCHEME_OPERATOR, operator_form(workload) or workload)


def name_of(workload: Workload) -> str:
    """The task with its shapes: `conv2d_NCHWc.x86 1x64x56x56 64x64x3x3 s1 p1`."""
    task, *args = workload
    tensors = [arg for arg in args if is_tensor(arg)]
    parts = [str(task), *("x".join(map(str, tensor[1])) for tensor in tensors)]
    convolution = _CONVOLUTION.match(str(task)) and len(tensors) >= 2 and args[:2] == tensors[:2]
    if convolution:
        parts += [mark + _short(arg) for mark, arg in zip("spd", args[2:5], strict=False) if _is_numbers(arg)]
        parts = [part for part in parts if part not in ("p0", "d1")]
    else:
        parts += [_shape_text(arg) for arg in args if isinstance(arg, tuple) and not is_tensor(arg) and arg]
    if tensors and isinstance(tensors[0][2], str) and tensors[0][2] != "float32":
        parts.append(tensors[0][2])
    return " ".join(parts)[:240]


# The operators whose implementations differ in the name of the task and in how data is packed, never in the first
# arguments (python/tvm/topi of TVM 0.19). What comes after them is told apart by its type.
_CONVOLUTION = re.compile(
    r"(?P<op>conv2d_transpose|conv3d_transpose|conv1d_transpose|depthwise_conv2d|group_conv2d|group_conv1d|conv1d|conv2d"
    r"|conv3d)_(?P<rest>[A-Za-z0-9_]*?)(?:\.|\Z)"
)
_PLAIN = re.compile(r"(?P<op>batch_matmul|dense|matmul)(?:_[a-z0-9_]+)?(?:\.|\Z)")
_LAYOUTS = ("NCDHW", "NDHWC", "NCHW", "NHWC", "HWCN", "HWNC", "NCW", "NWC")


def operator_form(workload: Workload) -> Workload | None:
    """What is computed, without how: `(operator, layout, data, kernel, strides, padding, dilation, groups, type)`.

    Packed tensors (`NCHW16c`) are unpacked. None where the implementations are not known to agree.
    """
    task, *args = workload
    if not isinstance(task, str):
        return None
    found = _PLAIN.match(task)
    if found is not None:
        return (found["op"], *args)
    found = _CONVOLUTION.match(task)
    # The transform of the weights hides how large the kernel was.
    if found is None or "without_weight_transform" in task or "without_transform" in task or len(args) < 4:
        return None
    data, kernel, strides, padding, *rest = args
    if not (is_tensor(data) and is_tensor(kernel)):
        return None
    op = found["op"].replace("group_", "")
    layout = _layout(found["rest"], rest, len(data[1]))
    if "transpose" in op:
        return (op, layout, data, kernel, strides, _padding(padding), *rest)
    return (
        op,
        layout,
        _unpacked(data, op),
        _unpacked(kernel, op, is_kernel=True),
        *_plain_rest(strides, padding, rest),
    )


def _plain_rest(strides: Any, padding: Any, rest: list[Any]) -> Workload:
    dilation = _pair(rest[0]) if rest and isinstance(rest[0], tuple) else (1, 1)
    groups = [item for item in rest if type(item) is int]
    types = [item for item in rest if isinstance(item, str) and item[:1].islower()]
    return (_pair(strides), _padding(padding), dilation, groups[0] if groups else 1, types[-1] if types else None)


def _layout(rest_of_name: str, rest: list[Any], rank: int) -> str:
    """The layout of the data as Relay has it: of the arguments if they say so, else of the task's name."""
    said = [item for item in rest if isinstance(item, str) and item[:1].isupper()]
    text = said[0] if said else rest_of_name
    plain = re.sub(r"[0-9]+[a-z]", "", text).upper()
    for layout in _LAYOUTS:
        if plain.startswith(layout) or f"_{layout}" in plain:
            return layout
    return str(rank)


def _unpacked(tensor: Any, op: str, *, is_kernel: bool = False) -> Any:
    """`NCHW[x]c` data and `OIHW[x]i[y]o[4i]` kernels with their blocks multiplied back."""
    shape = tensor[1]
    if not all(type(size) is int for size in shape) or op not in ("conv2d", "depthwise_conv2d"):
        return tensor
    if not is_kernel and len(shape) == 5:
        batch, outer, height, width, inner = shape
        shape = (batch, outer * inner, height, width)
    elif is_kernel and len(shape) in (6, 7):
        out, into, height, width, inner, block, *four = shape
        shape = (out * block, into * inner * math.prod(four), height, width)
    return ("TENSOR", shape, *tensor[2:])


def _pair(value: Any) -> Any:
    return (value, value) if type(value) is int else value


def _padding(value: Any) -> Any:
    """One number or (height, width) as (top, left, bottom, right)."""
    value = _pair(value)
    return (*value, *value) if isinstance(value, tuple) and len(value) == 2 else value


def is_tensor(value: Any) -> bool:
    """Whether this part of a canonical workload is a tensor: `("TENSOR", shape, element type)`."""
    return isinstance(value, tuple) and len(value) >= 3 and value[0] == "TENSOR" and isinstance(value[1], tuple)


def _is_numbers(value: Any) -> bool:
    return type(value) is int or (isinstance(value, tuple) and all(type(item) is int for item in value))


def _short(value: Any) -> str:
    numbers = value if isinstance(value, tuple) else (value,)
    return str(numbers[0]) if len(set(numbers)) == 1 else "x".join(map(str, numbers))


def _shape_text(value: Any) -> str:
    if not isinstance(value, tuple):
        return str(value)
    if any(isinstance(item, tuple) for item in value):
        return " ".join(filter(None, map(_shape_text, value)))
    return "x".join(map(str, value))


def _flat(value: Any) -> list[Any]:
    if not isinstance(value, tuple):
        return [value]
    return [leaf for item in value for leaf in _flat(item)]


def digest(scheme: str, value: Any) -> str:
    """The key of `value`, made of what JSON can hold, under a scheme: 32 hex digits. Raises TypeError for bad text."""
    try:
        data = msgspec.json.encode((scheme, value))
    except UnicodeError:
        raise TypeError("the workload holds text that is not valid Unicode") from None
    return hashlib.sha256(data).hexdigest()[:32]
