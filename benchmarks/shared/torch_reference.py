"""What a Relax function computes, by PyTorch in float32: operators one after the other, nothing fused, no TF32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tunehub.graph.names import name_of
from tunehub.kernels.cuda.low_batch.weights import QUANTISED, WORD_BITS, Format
from tunehub.tir.nodes import constant_array, is_constant


def evaluated(mod: Any, given: Sequence[Any]) -> Any:
    """The result of ``main``, a function of one dataflow block whose shapes are known, for these tensors.

    Floats are computed with in float32, whatever their type. Raises KeyError for an operator that is not known here.
    """
    import torch

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    main = mod["main"]
    device = given[0].device
    known = {name_of(var): _wide(value) for var, value in zip(main.params, given, strict=True)}
    for block in main.body.blocks:
        for binding in block.bindings:
            known[name_of(binding.var)] = _value(binding.value, known, device)
    return _value(main.body.body, known, device)


def _wide(value: Any) -> Any:
    return value.float() if value.is_floating_point() else value


def _value(expr: Any, known: Mapping[str, Any], device: Any) -> Any:
    import torch
    from tvm import relax

    if is_constant(expr):
        return _wide(torch.from_numpy(constant_array(expr).astype("float32")).to(device))
    if isinstance(expr, relax.Var):
        return known[name_of(expr)]
    if isinstance(expr, relax.ShapeExpr):
        return tuple(int(extent) for extent in expr.values)
    name = str(expr.op.name)
    if name == "relax.call_tir":
        return _dequantised(str(expr.args[0].name_hint), *(_value(each, known, device) for each in expr.args[1].fields))
    return _OPERATORS[name](expr.attrs, *(_value(each, known, device) for each in expr.args))


def _dequantised(name: str, words: Any, scales: Any) -> Any:
    """Of the functions that :mod:`benchmarks.random_cases.operators` makes for weights in groups."""
    form = next(each for each in QUANTISED if name.startswith(f"dequantize{each.bits}"))
    return wide_weights(words, scales, form)


def wide_weights(words: Any, scales: Any, form: Format) -> Any:
    """Weights [N, K] in float32, each rounded to the 16 bits of ``form``, of ``words`` [N, K * bits / 32] and
    ``scales``."""
    import torch

    kind = torch.bfloat16 if form.bfloat else torch.float16
    whole = words.view(torch.int32)
    numbers = [whole >> form.bits * at & 2**form.bits - 1 for at in range(WORD_BITS // form.bits)]
    halves = torch.stack(numbers, -1).reshape(words.shape[0], -1).to(kind) - form.offset
    return (halves * scales.to(kind).repeat_interleave(form.group, 1)).float()


def _convolved(attrs: Any, data: Any, weight: Any) -> Any:
    import torch

    last = str(attrs.data_layout) == "NHWC"
    if last:
        data, weight = (each.permute(0, 3, 1, 2) for each in (data, weight))
    top, left, bottom, right = map(int, attrs.padding)
    padded = torch.nn.functional.pad(data, (left, right, top, bottom))
    found = torch.nn.functional.conv2d(
        padded, weight, stride=_ints(attrs.strides), dilation=_ints(attrs.dilation), groups=int(attrs.groups)
    )
    return found.permute(0, 2, 3, 1) if last else found


def _pooled(kind: str) -> Callable[..., Any]:
    def pooled(attrs: Any, data: Any) -> Any:
        import torch

        pool = getattr(torch.nn.functional, f"{kind}_pool2d")
        more = {"count_include_pad": bool(attrs.count_include_pad)} if kind == "avg" else {}
        return pool(data, _ints(attrs.pool_size), _ints(attrs.strides), _ints(attrs.padding)[:2], **more)

    return pooled


def _reduced(name: str) -> Callable[..., Any]:
    def reduced(attrs: Any, data: Any) -> Any:
        import torch

        return getattr(torch, name)(data, dim=_ints(attrs.axis), keepdim=bool(attrs.keepdims))

    return reduced


def _normed(attrs: Any, data: Any, *scales: Any) -> Any:
    import torch

    return torch.nn.functional.layer_norm(data, data.shape[-1:], *scales, eps=float(attrs.epsilon))


def _rms_normed(attrs: Any, data: Any, scale: Any) -> Any:
    return data * (data.square().mean(-1, keepdim=True) + float(attrs.epsilon)).rsqrt() * scale


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(map(int, values))


def _of_torch(path: str) -> Callable[..., Any]:
    def call(attrs: Any, *given: Any) -> Any:
        import torch

        del attrs
        return (getattr(torch.nn.functional, path, None) or getattr(torch, path))(*given)

    return call


_OPERATORS: Mapping[str, Callable[..., Any]] = {
    "relax.matmul": _of_torch("matmul"),
    "relax.add": _of_torch("add"),
    "relax.multiply": _of_torch("multiply"),
    "relax.sigmoid": _of_torch("sigmoid"),
    "relax.nn.relu": _of_torch("relu"),
    "relax.nn.gelu": _of_torch("gelu"),
    "relax.nn.softmax": lambda attrs, data: data.softmax(int(attrs.axis)),
    "relax.nn.layer_norm": _normed,
    "relax.nn.rms_norm": _rms_normed,
    "relax.nn.conv2d": _convolved,
    "relax.nn.max_pool2d": _pooled("max"),
    "relax.nn.avg_pool2d": _pooled("avg"),
    "relax.mean": _reduced("mean"),
    "relax.sum": _reduced("sum"),
    "relax.max": _reduced("amax"),
    "relax.permute_dims": lambda attrs, data: data.permute(_ints(attrs.axes)),
    "relax.expand_dims": lambda attrs, data: data.unsqueeze(*_ints(attrs.axis)),
    "relax.broadcast_to": lambda attrs, data, shape: data.broadcast_to(shape),
    "relax.reshape": lambda attrs, data, shape: data.reshape(shape),
}
