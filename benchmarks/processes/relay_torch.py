"""A Relay network run by PyTorch, operator by operator, with the same weights and inputs: eager and as a CUDA graph.

TVM and PyTorch need not be in one environment: :func:`write_steps` writes the network down where TVM is, and
``python -m benchmarks.processes.relay_torch FOLDER LOCK ROUNDS [ONNX]`` runs it where PyTorch is, with TF32 off.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_STEPS, _TENSORS = "steps.json", "tensors.npz"
_WARM_UP = 3
Step = tuple[str, Sequence[int | str], Mapping[str, Any]]  # operator, positions or names of its arguments, attributes


def write_steps(module: Any, params: Mapping[str, Any], inputs: Mapping[str, Any], folder: Path) -> None:
    """Write the ``main`` of a Relay module with its weights and inputs into ``folder``.

    Raises NotImplementedError for an operator that none of TVM's standard networks has.
    """
    import numpy as np
    from tvm import relay

    steps: list[Step] = []
    place: dict[Any, int | str] = {}
    tensors = {f"i:{name}": value for name, value in inputs.items()}
    tensors |= {f"w:{name}": value.numpy() for name, value in params.items()}

    def visit(node: Any) -> None:
        if isinstance(node, relay.Var):
            name = str(node.name_hint)
            place[node] = f"{'i' if name in inputs else 'w'}:{name}"
        elif isinstance(node, relay.Constant):
            place[node] = f"c:{len(tensors)}"
            tensors[str(place[node])] = node.data.numpy()
        elif isinstance(node, relay.TupleGetItem):
            place[node] = place[node.tuple_value]  # of batch_norm and dropout only the first is used
        elif isinstance(node, relay.Call):
            name = str(node.op.name)
            if name not in _OPERATORS:
                raise NotImplementedError(f"{name}: add it to benchmarks/processes/relay_torch.py")
            fields = node.args[0].fields if isinstance(node.args[0], relay.Tuple) else node.args
            steps.append((name, [place[field] for field in fields], _attributes(node.attrs)))
            place[node] = len(steps) - 1

    relay.analysis.post_order_visit(module["main"].body, visit)
    (folder / _STEPS).write_text(json.dumps(steps))
    np.savez(folder / _TENSORS, **tensors)


def write_inputs(inputs: Mapping[str, Any], folder: Path) -> None:
    """Write the inputs alone: for a network that :func:`torch_of_onnx` runs."""
    import numpy as np

    np.savez(folder / _TENSORS, **{f"i:{name}": value for name, value in inputs.items()})


def _attributes(attrs: Any) -> dict[str, Any]:
    """Numbers and lists of numbers of an operator's attributes."""
    found = {}
    for name in () if attrs is None else map(str, attrs.keys()):
        value = attrs[name]
        if type(value).__name__ == "Array":
            found[name] = [int(item) for item in value]
        elif isinstance(value, bool | int | float | str) or type(value).__name__ == "IntImm":
            found[name] = value if isinstance(value, bool | float | str) else int(value)
    return found


class TorchSteps:
    """``network()`` runs what was written into a folder, with its inputs, and gives the output: of a softmax at the
    end what it was given (see :func:`tunehub_builder.backends.relay.network_worker.showing_logits`)."""

    def __init__(self, folder: Path, device: str = "cuda") -> None:
        import numpy as np
        import torch

        self._steps: list[Step] = json.loads((folder / _STEPS).read_text())
        with np.load(folder / _TENSORS) as arrays:
            self._tensors = {name: torch.from_numpy(arrays[name]).to(device) for name in arrays.files}

    def __call__(self) -> Any:
        values: list[Any] = []
        for operator, arguments, attributes in self._steps:
            given = [self._tensors[place] if isinstance(place, str) else values[place] for place in arguments]
            values.append(_OPERATORS[operator](given, attributes))
        return given[0] if operator == "nn.softmax" else values[-1]


def _functional() -> Any:
    from torch.nn import functional

    return functional


def _conv2d(given: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    data, weight = given
    top, left, bottom, right = attributes["padding"]
    if (top, left) != (bottom, right):
        data, top, left = _functional().pad(data, (left, right, top, bottom)), 0, 0
    numbers = attributes["strides"], (top, left), attributes["dilation"], attributes["groups"]
    return _functional().conv2d(data, weight, None, *numbers)


def _batch_norm(given: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    data, scale, offset, mean, variance = given
    scale = scale if attributes["scale"] else None
    return _functional().batch_norm(data, mean, variance, scale, offset, False, 0.0, attributes["epsilon"])


def _bias_add(given: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    data, bias = given
    after = data.dim() - 1 - attributes["axis"] % data.dim()
    return data + bias.reshape(-1, *[1] * after)


def _pool(given: Sequence[Any], attributes: Mapping[str, Any], function: str, **more: Any) -> Any:
    top, left, bottom, right = attributes["padding"]
    if (top, left) != (bottom, right) or attributes.get("ceil_mode"):
        raise NotImplementedError(
            "uneven padding or rounding up in a pooling: add it to benchmarks/processes/relay_torch.py"
        )
    run = getattr(_functional(), function)
    return run(given[0], attributes["pool_size"], attributes["strides"], (top, left), **more)


def _average(given: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    return _pool(given, attributes, "avg_pool2d", count_include_pad=bool(attributes["count_include_pad"]))


def _concatenate(given: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    import torch

    return torch.cat(list(given), attributes["axis"])


_OPERATORS: dict[str, Callable[[Sequence[Any], Mapping[str, Any]], Any]] = {
    "nn.conv2d": _conv2d,
    "nn.batch_norm": _batch_norm,
    "nn.bias_add": _bias_add,
    "nn.max_pool2d": lambda given, attributes: _pool(given, attributes, "max_pool2d"),
    "nn.avg_pool2d": _average,
    "nn.global_avg_pool2d": lambda given, _: given[0].mean((2, 3), keepdim=True),
    "nn.dense": lambda given, _: _functional().linear(given[0], given[1]),
    "nn.relu": lambda given, _: given[0].relu(),
    "nn.softmax": lambda given, attributes: given[0].softmax(attributes["axis"]),
    "nn.batch_flatten": lambda given, _: given[0].flatten(1),
    "nn.dropout": lambda given, _: given[0],
    "add": lambda given, _: given[0] + given[1],
    "concatenate": _concatenate,
}


def torch_of_onnx(path: Path, folder: Path) -> Callable[[], Any]:
    """The network of an ONNX file, with the inputs that were written into ``folder``."""
    import numpy as np
    import onnx
    import torch

    from benchmarks.shared.torch_network import TorchNetwork

    model = TorchNetwork(onnx.load(path), "cuda", torch.float32)
    with np.load(folder / _TENSORS) as arrays:
        inputs = [torch.from_numpy(arrays[name]).cuda() for name in arrays.files if name.startswith("i:")]
    return lambda: model(*inputs)


def measure(run: Callable[[], Any], folder: Path, lock: str, rounds: int) -> dict[str, Any]:
    """Milliseconds eager and as one CUDA graph; the output goes into ``folder``."""
    import numpy as np
    import torch

    from benchmarks.processes.gpu_network import alone, milliseconds
    from tunehub_builder.bench.gpu_runs import GpuRunner

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False

    def array(value: Any) -> Any:
        return value.float().cpu().numpy()

    with alone(lock), torch.inference_mode():
        for _ in range(_WARM_UP):
            run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            recorded = run()
        runners = {
            "torch": GpuRunner(run, torch.cuda.synchronize, array),
            "torch_graphs": GpuRunner(lambda: (graph.replay(), recorded)[1], torch.cuda.synchronize, array),
        }
        np.save(folder / "torch.npy", runners["torch_graphs"]())
        return {"ms": milliseconds(runners, rounds), "torch": torch.__version__}


def main() -> None:
    """``FOLDER LOCK ROUNDS [ONNX]``: print one line of JSON."""
    folder, lock, rounds, *model = sys.argv[1:]
    run = torch_of_onnx(Path(model[0]), Path(folder)) if model else TorchSteps(Path(folder))
    sys.stdout.write(json.dumps(measure(run, Path(folder), lock, int(rounds))) + "\n")


if __name__ == "__main__":
    main()
