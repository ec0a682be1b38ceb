"""AutoTVM records of version 0.1 (TVM 0.4 to 0.6) as records of version 0.2, where TVM 0.8+ has a template for them.

In version 0.1 a task was a topi function and a template key (`topi_nn_conv2d` with `winograd`), and the target decided
what ran; in version 0.2 every implementation has a name of its own (`conv2d_nchw_winograd.cuda`). The mapping of names
and arguments is that of the files which TopHub published in both versions (`llvm_v0.01.log` and `llvm_v0.04.log`,
`cuda_v0.06.log` and `cuda_v0.07.log`, ...), completed from the templates' signatures in `tvm/topi`.

What was measured does not change: target, knobs, costs and timestamp stay as they are. Version 0.1 does not say which
TVM wrote it, so the new line has no `tvm_version`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from tunehub_builder.exceptions import BuilderError
from tunehub_registry.tuning_log import LogLineError, parse_line

Knobs = Mapping[str, Any]


class UntranslatableError(BuilderError):
    """No record of version 0.2 says what this one does. Fields: `reason`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One mapping: which records it takes (task, family of targets, template keys, data layout) and what they become.

    `fits` looks at the knobs (name -> value) where the name and the key alone do not tell; `extra` are knobs that the
    template has gained since, with their only value, by the type of the data.
    """

    task: str
    families: tuple[str, ...]
    name: str
    form: Callable[[list[Any]], list[Any]]
    keys: tuple[str, ...] = ("direct", "")
    layout: str | None = None
    fits: Callable[[Knobs], bool] | None = None
    extra: Mapping[str, list[Any]] = field(default_factory=dict)


def translate(line: bytes) -> bytes:
    """Translate one line (without its newline); the result has none either. Raises UntranslatableError."""
    try:
        value = json.loads(line)
        target, task, arguments, options, *_rest, config = value["i"]
        key, entity, index = config["t"], config["e"], config["i"]
        knobs = {name: setting for name, _kind, setting in entity}
        result = value["r"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UntranslatableError(f"not an AutoTVM 0.1 record: {type(error).__name__} {error}") from None
    if not isinstance(target, str) or not isinstance(task, str) or not isinstance(arguments, list):
        raise UntranslatableError("not an AutoTVM 0.1 record: expected target, task and arguments")
    if options:
        raise UntranslatableError("it has keyword arguments, which TVM 0.8+ ignores")
    family = family_of(target)
    if task == "dense" and family == "vta":
        arguments = _packed_dense(value["i"])
    rule = _rule_for(task, family, key, arguments, knobs)
    added = rule.extra.get(_dtype(arguments), [])
    record = {
        "input": [target, rule.name, rule.form(arguments), {}],
        "config": {"index": index, "code_hash": config.get("c"), "entity": [*entity, *added]},
        "result": result,
        "version": 0.2,
    }
    return _checked(json.dumps(record).encode())


def _checked(line: bytes) -> bytes:
    """``line``, which the reader of records takes: not where the old one has NaN, infinity, or too large a number."""
    try:
        parse_line(line)
    except LogLineError as error:
        raise UntranslatableError(f"what version 0.2 would say is no record: {error.reason}") from None
    return line


def family_of(target: str) -> str:
    """The group of templates that TVM 0.6 used for a target: that of its `-device`, else that of its kind."""
    kind, *options = target.split()
    device = next((option[8:] for option in options if option.startswith("-device=")), "")
    if device in ("arm_cpu", "vtacpu"):
        return "arm_cpu"
    if device in ("mali", "bifrost", "intel_graphics", "vta"):
        return device
    return {"llvm": "x86"}.get(kind, "gpu" if kind in _GPU_KINDS else kind)


def _rule_for(task: str, family: str, key: str, arguments: list[Any], knobs: Knobs) -> Rule:
    of_task = [rule for rule in RULES if rule.task == task]
    if not of_task:
        if task.startswith("topi_"):
            raise UntranslatableError(f"template {task} no longer exists in TVM 0.8+")
        raise UntranslatableError(f"template {task} is not one of TVM's own: nothing says what it became in TVM 0.8+")
    of_family = [rule for rule in of_task if family in rule.families]
    if not of_family:
        raise UntranslatableError(f"template {task} for {family} targets no longer exists in TVM 0.8+")
    of_key = [rule for rule in of_family if key in rule.keys]
    if not of_key:
        raise UntranslatableError(f"template {task} with key {key!r} for {family} targets does not exist in TVM 0.8+")
    layout = _layout(arguments)
    of_layout = [rule for rule in of_key if rule.layout in (None, layout)]
    if not of_layout:
        raise UntranslatableError(f"template {task} for {family} targets has no layout {layout!r} in TVM 0.8+")
    fitting = [rule for rule in of_layout if rule.fits is None or rule.fits(knobs)]
    if not fitting:
        raise UntranslatableError(
            f"its knobs ({', '.join(knobs)}) are not those of {' or '.join(rule.name for rule in of_layout)}"
        )
    return fitting[0]


# Arguments: what the topi function of TVM 0.6 took, as what the template of TVM 0.8+ takes.


@dataclass(frozen=True, kw_only=True, slots=True)
class _Convolution:
    """The arguments of a convolution, whatever their order in version 0.1: dilation came late, layouts not always."""

    tensors: list[Any]
    strides: list[int]
    padding: list[int]
    dilation: list[int]
    layouts: list[str]
    numbers: list[int]
    dtype: str


def _convolution(arguments: list[Any], tensors: int = 2) -> _Convolution:
    first, rest = arguments[:tensors], arguments[tensors:]
    if len(first) != tensors or not all(map(_is_tensor, first)):
        raise UntranslatableError(f"expected {tensors} tensors as first arguments, got {_shown(first)}")
    if len(rest) > 4 and isinstance(rest[0], int) and isinstance(rest[1], list):
        rest = rest[2:]  # number of filters and size of the kernel: TVM 0.5 for x86, both known from the kernel
    words = [item for item in rest[2:] if isinstance(item, str)]
    if not words or len(rest) < 3:
        raise UntranslatableError(f"expected strides, padding and a type as arguments, got {_shown(rest)}")
    axes = 1 if len(first[0][1]) == 3 else 3 if len(first[0][1]) == 5 and len(first[-1][1]) == 5 else 2
    lists = [_numbers(item, axes) for item in rest[2:] if isinstance(item, list)]
    return _Convolution(
        tensors=first,
        strides=_numbers(rest[0], axes),
        padding=_padding(rest[1], axes),
        dilation=lists[0] if lists else [1] * axes,
        layouts=words[:-1],
        numbers=[item for item in rest[2:] if isinstance(item, int)],
        dtype=words[-1],
    )


def _plain(arguments: list[Any]) -> list[Any]:
    """Data, kernel, strides, padding, dilation, type: most convolutions."""
    conv = _convolution(arguments)
    return [*conv.tensors, conv.strides, conv.padding, conv.dilation, conv.dtype]


def _with_layout(arguments: list[Any]) -> list[Any]:
    """As `_plain`, with the layout of the data before the type."""
    conv = _convolution(arguments)
    layout = conv.layouts[0] if conv.layouts else "NCHW"
    return [*conv.tensors, conv.strides, conv.padding, conv.dilation, layout, conv.dtype]


def _with_layouts(arguments: list[Any]) -> list[Any]:
    """As `_plain`, with the layouts of data and output before the type."""
    conv = _convolution(arguments)
    layout, out_layout = (*conv.layouts, "NCHW", "NCHW")[:2] if len(conv.layouts) != 1 else conv.layouts * 2
    return [*conv.tensors, conv.strides, conv.padding, conv.dilation, layout, out_layout, conv.dtype]


def _grouped(arguments: list[Any]) -> list[Any]:
    """As `_plain`, with the number of groups before the type; it was no argument where there was always one."""
    conv = _convolution(arguments)
    groups = conv.numbers[0] if conv.numbers else 1
    return [*conv.tensors, conv.strides, conv.padding, conv.dilation, groups, conv.dtype]


def _deformable(arguments: list[Any]) -> list[Any]:
    conv = _convolution(arguments, tensors=3)
    if len(conv.numbers) != 2:
        raise UntranslatableError(f"expected deformable groups and groups, got {_shown(conv.numbers)}")
    return [*conv.tensors, conv.strides, conv.padding, conv.dilation, *conv.numbers, conv.dtype]


def _transposed(arguments: list[Any]) -> list[Any]:
    """Data, kernel, strides, padding, type, and the padding of the output, which TVM 0.6 did not have."""
    conv = _convolution(arguments)
    return [*conv.tensors, conv.strides, conv.padding, conv.dtype, [0] * len(conv.strides)]


def _dense(arguments: list[Any]) -> list[Any]:
    """Data, weight, bias, type. The bias is left out: TVM 0.8+ adds it outside, where it is fused again."""
    if len(arguments) < 2 or not all(map(_is_tensor, arguments[:2])):
        raise UntranslatableError(f"expected data and weight as first arguments, got {_shown(arguments[:2])}")
    dtype = arguments[3] if len(arguments) > 3 and isinstance(arguments[3], str) else _dtype(arguments)
    return [*arguments[:2], None, dtype]


def _batch_matmul(arguments: list[Any]) -> list[Any]:
    """Both matrices, shape and type of the output, and which are transposed: in TVM 0.6 always the second."""
    if len(arguments) < 2 or not all(_is_tensor(item) and len(item[1]) == 3 for item in arguments[:2]):
        raise UntranslatableError(f"expected two tensors of three axes, got {_shown(arguments[:2])}")
    (batch, rows, _depth), (_batch, columns, _) = arguments[0][1], arguments[1][1]
    return [*arguments[:2], [batch, rows, columns], _dtype(arguments), False, True]


def _unchanged(arguments: list[Any]) -> list[Any]:
    return arguments


def _packed_dense(parts: list[Any]) -> list[Any]:
    """VTA's dense had three numbers as arguments; its tensors stand in the workload, the fifth of six parts."""
    workload = parts[4] if len(parts) == 6 else None
    if not isinstance(workload, list) or len(workload) != 5 or not all(map(_is_shape, workload[1:3])):
        raise UntranslatableError("template dense for vta targets: its workload does not state the tensors")
    tensors = [["TENSOR", shape[:-1], shape[-1]] for shape in workload[1:3]]
    return [*tensors, None, workload[4]]


def _numbers(value: Any, axes: int) -> list[int]:
    """Strides or dilation, one number an axis."""
    values = [value] * axes if isinstance(value, int) else value
    if not isinstance(values, list) or not values or not all(isinstance(item, int) for item in values):
        raise UntranslatableError(f"expected numbers as strides, padding or dilation, got {_shown(value)}")
    return values


def _padding(value: Any, axes: int) -> list[int]:
    """Padding as TVM 0.8+ states it: before each axis, then after each axis."""
    values = _numbers(value, axes)
    if len(values) not in (axes, 2 * axes):
        raise UntranslatableError(f"padding {_shown(value)} does not fit {axes} axes")
    return values if len(values) == 2 * axes else values * 2


def _is_tensor(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list) and len(value) == 3 and value[0] == "TENSOR" and isinstance(value[1], list)


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 1 and isinstance(value[-1], str)


def _dtype(arguments: list[Any]) -> str:
    return str(arguments[0][2]) if arguments and _is_tensor(arguments[0]) else ""


def _layout(arguments: list[Any]) -> str:
    """The layout of the data; where it is no argument, that of a convolution in TVM 0.6."""
    words = [item for item in arguments[4:] if isinstance(item, str)]
    return words[0] if len(words) > 1 else "NCHW"


def _shown(value: Any) -> str:
    return json.dumps(value)[:120]


# Which template of several: the knobs tell, as their names and numbers of factors are those of the template.


def _has(*names: str) -> Callable[[Knobs], bool]:
    return lambda knobs: set(names) <= set(knobs)


def _packed(knobs: Knobs) -> bool:
    rows = knobs.get("tile_y")
    return "tile_inner" in knobs or (isinstance(rows, list) and len(rows) == 3)


def _small_batch(knobs: Knobs) -> bool:
    return set(knobs) == {"tile_k"}


_GPU_KINDS = frozenset({"cuda", "rocm", "opencl", "vulkan", "metal", "nvptx", "webgpu", "opengl"})
_NCHWC = _has("tile_ic", "tile_oc", "tile_ow")
# NNPACK's algorithms in tvm/contrib/nnpack.py: a knob with one value since the type of the data decides.
_NNPACK = {
    "float32": [["winograd_nnpack_algorithm", "ot", 3]],
    "float16": [["winograd_nnpack_algorithm", "ot", 6]],
}
_CONV, _DEPTHWISE, _DENSE = "topi_nn_conv2d", "topi_nn_depthwise_conv2d_nchw", "topi_nn_dense"
_DIRECT_ARM = ("direct", "", "vanilla")  # the key's name before TVM 0.4 was released

RULES: tuple[Rule, ...] = (
    Rule(task=_CONV, families=("gpu",), name="conv2d_nchw.cuda", form=_plain, layout="NCHW"),
    Rule(task=_CONV, families=("gpu",), name="conv2d_hwcn.cuda", form=_plain, layout="HWCN"),
    Rule(task=_CONV, families=("gpu",), name="conv2d_nchw_winograd.cuda", form=_plain, keys=("winograd",),
         layout="NCHW"),
    Rule(task=_CONV, families=("gpu",), name="conv2d_NCHWc_int8.cuda", form=_with_layout, keys=("int8",)),
    Rule(task=_CONV, families=("arm_cpu",), name="conv2d_nchw_spatial_pack.arm_cpu", form=_plain, keys=_DIRECT_ARM,
         layout="NCHW"),
    Rule(task=_CONV, families=("arm_cpu",), name="conv2d_nhwc_spatial_pack.arm_cpu", form=_plain, layout="NHWC"),
    Rule(task=_CONV, families=("arm_cpu",), name="conv2d_nchw_winograd.arm_cpu", form=_plain, keys=("winograd",),
         layout="NCHW"),
    Rule(task=_CONV, families=("arm_cpu",), name="conv2d_nchw_winograd_nnpack.arm_cpu", form=_plain,
         keys=("winograd_nnpack_fp16", "winograd_nnpack_fp32"), layout="NCHW", extra=_NNPACK),
    Rule(task=_CONV, families=("mali",), name="conv2d_nchw_spatial_pack.mali", form=_plain, layout="NCHW"),
    Rule(task=_CONV, families=("mali",), name="conv2d_nchw_winograd.mali", form=_plain, keys=("winograd",),
         layout="NCHW"),
    Rule(task=_CONV, families=("bifrost",), name="conv2d_nchw_spatial_pack.bifrost", form=_plain, layout="NCHW"),
    Rule(task=_CONV, families=("bifrost",), name="conv2d_nchw_winograd.bifrost", form=_plain, keys=("winograd",),
         layout="NCHW"),
    Rule(task=_CONV, families=("x86",), name="conv2d_NCHWc.x86", form=_with_layouts, layout="NCHW", fits=_NCHWC),
    Rule(task=_CONV, families=("intel_graphics",), name="conv2d_NCHWc.intel_graphics", form=_with_layouts,
         layout="NCHW", fits=_has("tile_ic", "tile_oc", "block_oh", "block_ow")),
    Rule(task=_CONV, families=("vta",), name="conv2d_packed.vta", form=_with_layout),
    *(
        Rule(task=task, families=("x86",), name="conv2d_NCHWc.x86", form=_with_layouts, fits=_NCHWC)
        for task in ("topi_x86_conv2d_NCHWc", "topi_x86_conv2d")
    ),
    Rule(task="topi_x86_conv2d_NCHWc_int8", families=("x86",), name="conv2d_NCHWc_int8.x86", form=_with_layouts,
         keys=("direct", "", "int8")),
    Rule(task="topi_intel_graphics_conv2d_NCHWc", families=("intel_graphics",), name="conv2d_NCHWc.intel_graphics",
         form=_with_layouts),
    *(
        Rule(task=task, families=("x86",), name="depthwise_conv2d_NCHWc.x86", form=_with_layouts, fits=_NCHWC)
        for task in ("topi_x86_depthwise_conv2d_NCHWc_from_nchw", "topi_x86_depthwise_conv2d_NCHWc", _DEPTHWISE)
    ),
    Rule(task=_DEPTHWISE, families=("gpu",), name="depthwise_conv2d_nchw.cuda", form=_plain),
    Rule(task=_DEPTHWISE, families=("arm_cpu",), name="depthwise_conv2d_nchw.arm_cpu", form=_plain, keys=_DIRECT_ARM),
    Rule(task=_DEPTHWISE, families=("arm_cpu",), name="depthwise_conv2d_nchw_spatial_pack.arm_cpu", form=_plain,
         keys=("contrib_spatial_pack",)),
    Rule(task=_DEPTHWISE, families=("mali",), name="depthwise_conv2d_nchw.mali", form=_plain),
    Rule(task="topi_nn_group_conv2d_nchw", families=("gpu",), name="group_conv2d_nchw.cuda", form=_grouped),
    Rule(task="topi_nn_group_conv2d_nchw", families=("gpu",), name="group_conv2d_NCHWc_int8.cuda", form=_grouped,
         keys=("int8",)),
    Rule(task="topi_nn_group_conv2d_nchw", families=("vta",), name="group_conv2d_packed.vta", form=_grouped),
    Rule(task="topi_nn_deformable_conv2d_nchw", families=("gpu",), name="deformable_conv2d_nchw.cuda",
         form=_deformable),
    *(
        Rule(task="topi_nn_conv2d_transpose_nchw", families=(family,), name=name, form=_transposed)
        for family, name in (
            ("gpu", "conv2d_transpose_nchw.cuda"),
            ("arm_cpu", "conv2d_transpose_nchw.arm_cpu"),
            ("vta", "conv2d_transpose_packed.vta"),
        )
    ),
    Rule(task="topi_nn_conv1d_transpose_ncw", families=("gpu",), name="conv1d_transpose_nchw.cuda", form=_transposed),
    Rule(task="topi_nn_conv3d", families=("gpu",), name="conv3d_ncdhw.cuda", form=_grouped, layout="NCDHW"),
    Rule(task="topi_nn_conv3d", families=("gpu",), name="conv3d_ndhwc.cuda", form=_grouped, layout="NDHWC"),
    Rule(task=_DENSE, families=("x86", "arm_cpu"), name="dense_pack.x86", form=_dense, fits=_packed),
    Rule(task=_DENSE, families=("x86", "arm_cpu"), name="dense_nopack.x86", form=_dense,
         keys=("direct", "", "direct_nopack"), fits=_has("tile_x", "tile_y", "tile_k")),
    Rule(task=_DENSE, families=("gpu",), name="dense_small_batch.gpu", form=_dense, fits=_small_batch),
    Rule(task=_DENSE, families=("gpu",), name="dense_large_batch.gpu", form=_dense,
         fits=_has("tile_x", "tile_y", "tile_k")),
    Rule(task=_DENSE, families=("gpu",), name="dense_int8.cuda", form=_dense, keys=("int8",)),
    Rule(task=_DENSE, families=("mali",), name="dense.mali", form=_dense),
    Rule(task=_DENSE, families=("bifrost",), name="dense.bifrost", form=_dense),
    *(Rule(task=task, families=("vta",), name="dense_packed.vta", form=_dense) for task in (_DENSE, "dense")),
    Rule(task="topi_nn_batch_matmul", families=("gpu",), name="batch_matmul.cuda", form=_batch_matmul),
    Rule(task="topi_nn_batch_matmul", families=("x86", "arm_cpu"), name="batch_matmul.x86", form=_batch_matmul),
    *(
        Rule(task=f"topi_nn_bitserial_{operator}", families=(family,), name=f"bitserial_{operator}.{family}",
             form=_unchanged)
        for operator, family in (
            ("conv2d_nchw", "x86"), ("conv2d_nhwc", "x86"), ("conv2d_nhwc", "arm_cpu"), ("dense", "x86"),
            ("dense", "arm_cpu"),
        )
    ),
)  # fmt: skip
