"""A model as ONNX with keys and values of the past as inputs and outputs, which grow by `Concat`: as transformers and
optimum export it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from tunehub.models.config import ModelConfig
from tunehub_builder.bench.language_models.checkpoint import Weights

if TYPE_CHECKING:
    import onnx

Form = Literal["step", "prompt", "open"]
"""``step``: one word behind a past; ``prompt``: words without a past; ``open``: any number of words behind any past."""
OPSET = 18
_DATA = "weights.bin"


class WeightFile:
    """Float32 weights in a file beside the models, each there once. A model names its part of it."""

    def __init__(self, folder: Path) -> None:
        self._path, self._places = folder / _DATA, dict[str, Any]()
        self._path.write_bytes(b"")

    def tensor(self, name: str, array: npt.NDArray[Any] | None = None) -> Any:
        """The initializer of that name; ``array`` the first time."""
        if name not in self._places and array is not None:
            self._places[name] = self._written(name, np.ascontiguousarray(array, "float32"))
        return self._places[name]

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def _written(self, name: str, array: npt.NDArray[Any]) -> Any:
        import onnx

        with self._path.open("ab") as file:
            offset = file.tell()
            file.write(array.tobytes())
        tensor = onnx.TensorProto(name=name, dims=array.shape, data_type=onnx.TensorProto.FLOAT)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in {"location": _DATA, "offset": offset, "length": array.nbytes}.items():
            tensor.external_data.add(key=key, value=str(value))
        return tensor


def past_names(config: ModelConfig, kind: str = "past") -> list[str]:
    """Of keys and values, layer by layer."""
    return [f"{kind}_{each}_{layer}" for layer in range(config.layers) for each in ("key", "value")]


def write_decoder(config: ModelConfig, weights: Weights, file: WeightFile, path: Path, form: Form) -> None:
    """Write ``path``, beside the file of weights. Inputs ``ids`` int64 ``[batch, words]``, ``positions`` int64
    ``[words]`` and ``past_key_0``, ``past_value_0``, … float32 ``[batch, heads, past, size]``; outputs ``logits``
    float32 ``[batch, 1, vocabulary]`` of the last word, and ``present_key_0``, …"""
    import onnx

    if config.rope_scaling is not None:
        raise NotImplementedError("scaled rotary embeddings in ONNX")
    graph = _DecoderGraph(file=file, weights=weights)
    logits, present = _Decoder(config, graph, form).built()
    graph.node("Identity", logits, output="logits")
    for name, value in zip(past_names(config, "present"), present, strict=True):
        graph.node("Identity", value, output=name)
    model = onnx.helper.make_model(
        graph.proto(_inputs(config, form), _outputs(config)), opset_imports=[onnx.helper.make_opsetid("", OPSET)]
    )
    model.ir_version = 9
    path.write_bytes(model.SerializeToString())


def _inputs(config: ModelConfig, form: Form) -> list[onnx.ValueInfoProto]:
    from onnx import TensorProto, helper

    words = 1 if form == "step" else "words"
    past = [] if form == "prompt" else past_names(config)
    return [
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", words]),
        helper.make_tensor_value_info("positions", TensorProto.INT64, [words]),
        *(_cache_info(config, name, "past") for name in past),
    ]


def _outputs(config: ModelConfig) -> list[onnx.ValueInfoProto]:
    from onnx import TensorProto, helper

    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1, config.vocabulary])
    return [logits, *(_cache_info(config, name, "seen") for name in past_names(config, "present"))]


def _cache_info(config: ModelConfig, name: str, length: str) -> onnx.ValueInfoProto:
    from onnx import TensorProto, helper

    shape = ["batch", config.kv_heads, length, config.head_dim]
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


@dataclass(kw_only=True, slots=True)
class _DecoderGraph:
    """Nodes in their order, and what they take."""

    file: WeightFile
    weights: Weights
    nodes: list[Any] = field(default_factory=list)
    tensors: dict[str, Any] = field(default_factory=dict)
    constants: dict[Any, str] = field(default_factory=dict)

    def node(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """A node; the name of its output."""
        from onnx import helper

        name = output or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def halves(self, x: str) -> tuple[str, str]:
        """Of the last axis."""
        from onnx import helper

        first, second = f"{x}_first", f"{x}_second"
        self.nodes.append(helper.make_node("Split", [x], [first, second], axis=-1, num_outputs=2))
        return first, second

    def constant(self, value: npt.ArrayLike, dtype: str = "int64") -> str:
        """A small initializer."""
        from onnx import numpy_helper

        array = np.asarray(value, dtype)
        key = (dtype, array.shape, array.tobytes())
        if key not in self.constants:
            self.constants[key] = name = f"constant_{len(self.constants)}"
            self.tensors[name] = numpy_helper.from_array(array, name)
        return self.constants[key]

    def weight(self, name: str, *, turned: bool = False) -> str:
        """One of the model's, a matrix ``turned`` to ``[in, out]``."""
        key = f"{name}_turned" if turned else name
        array = None if key in self.file else self.weights(name)
        self.tensors[key] = self.file.tensor(key, array.T if turned and array is not None else array)
        return key

    def proto(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> onnx.GraphProto:
        """All of it."""
        from onnx import helper

        return helper.make_graph(self.nodes, "decoder", inputs, outputs, list(self.tensors.values()))


class _Decoder:
    """The layers, node by node."""

    def __init__(self, config: ModelConfig, graph: _DecoderGraph, form: Form) -> None:
        self._config, self._graph, self._form = config, graph, form
        self._present: list[str] = []
        self._cos = self._sin = self._mask = ""

    def built(self) -> tuple[str, list[str]]:
        """Logits, and keys and values of all layers."""
        graph, config = self._graph, self._config
        x = graph.node("Gather", graph.weight("model.embed_tokens.weight"), "ids")
        self._turns()
        for layer in range(config.layers):
            x = self._layer(x, layer)
        last = graph.node("Slice", x, *map(graph.constant, ([-1], [1 << 60], [1])))
        head = "model.embed_tokens.weight" if config.tied else "lm_head.weight"
        return graph.node("MatMul", self._norm(last, "model.norm"), graph.weight(head, turned=True)), self._present

    def _turns(self) -> None:
        """Cosines and sines of the positions."""
        graph, size = self._graph, self._config.head_dim
        rates = 1.0 / self._config.rope_theta ** (np.arange(0, size, 2) / size)
        places = graph.node("Unsqueeze", graph.node("Cast", "positions", to=1), graph.constant([1]))
        angles = graph.node("Mul", places, graph.constant([np.tile(rates, 2)], "float32"))
        self._cos, self._sin = graph.node("Cos", angles), graph.node("Sin", angles)

    def _layer(self, x: str, layer: int) -> str:
        graph, name = self._graph, f"model.layers.{layer}."
        attended = self._attention(self._norm(x, f"{name}input_layernorm"), f"{name}self_attn.", layer)
        x = graph.node("Add", x, attended)
        h = self._norm(x, f"{name}post_attention_layernorm")
        gate, up = (self._linear(h, f"{name}mlp.{each}_proj") for each in ("gate", "up"))
        both = graph.node("Mul", graph.node("Mul", gate, graph.node("Sigmoid", gate)), up)
        return graph.node("Add", x, self._linear(both, f"{name}mlp.down_proj"))

    def _attention(self, h: str, name: str, layer: int) -> str:
        graph, config = self._graph, self._config
        query, key, value = (
            self._heads(self._linear(h, f"{name}{each}_proj", bias=config.qkv_bias), count)
            for each, count in (("q", config.heads), ("k", config.kv_heads), ("v", config.kv_heads))
        )
        query, key = self._turned(query), self._turned(key)
        if self._form != "prompt":
            key = graph.node("Concat", f"past_key_{layer}", key, axis=2)
            value = graph.node("Concat", f"past_value_{layer}", value, axis=2)
        self._present += [key, value]
        mixed = self._grouped(query, key, value) if self._form == "step" else self._masked(query, key, value)
        rows = graph.node("Reshape", mixed, graph.constant([0, 0, config.heads * config.head_dim]))
        return self._linear(rows, f"{name}o_proj")

    def _grouped(self, query: str, key: str, value: str) -> str:
        """Of one word: heads that share keys are rows of one product."""
        graph, config = self._graph, self._config
        group = config.heads // config.kv_heads
        rows = graph.node("Reshape", query, graph.constant([0, config.kv_heads, group, config.head_dim]))
        mixed = graph.node("MatMul", self._shares(rows, key), value)
        return graph.node("Reshape", mixed, graph.constant([0, 1, config.heads, config.head_dim]))

    def _masked(self, query: str, key: str, value: str) -> str:
        graph = self._graph
        mask = self._mask = self._mask or self._causal(key)
        mixed = graph.node("MatMul", self._shares(query, self._repeated(key), mask), self._repeated(value))
        return graph.node("Transpose", mixed, perm=[0, 2, 1, 3])

    def _shares(self, query: str, key: str, mask: str | None = None) -> str:
        graph = self._graph
        scores = graph.node("MatMul", query, graph.node("Transpose", key, perm=[0, 1, 3, 2]))
        scores = graph.node("Mul", scores, graph.constant(self._config.head_dim**-0.5, "float32"))
        return graph.node("Softmax", scores if mask is None else graph.node("Add", scores, mask), axis=-1)

    def _causal(self, key: str) -> str:
        """What is added to scores ``[words, seen]``: nothing, or nearly minus infinity for words that come later."""
        graph = self._graph
        seen = graph.node("Gather", graph.node("Shape", key), graph.constant(2))
        places = graph.node("Range", graph.constant(0), seen, graph.constant(1))
        before = graph.node("LessOrEqual", places, graph.node("Unsqueeze", "positions", graph.constant([1])))
        lowest = float(np.finfo("float32").min)
        return graph.node("Where", before, graph.constant(0, "float32"), graph.constant(lowest, "float32"))

    def _repeated(self, x: str) -> str:
        """Keys or values once for each head that shares them."""
        graph, config = self._graph, self._config
        group = config.heads // config.kv_heads
        if group == 1:
            return x
        batch, length = graph.node("Shape", x, start=0, end=1), graph.node("Shape", x, start=2, end=3)
        size = graph.constant([config.head_dim])
        each = graph.node("Concat", batch, graph.constant([config.kv_heads, group]), length, size, axis=0)
        wide = graph.node("Expand", graph.node("Unsqueeze", x, graph.constant([2])), each)
        joined = graph.node("Concat", batch, graph.constant([config.heads]), length, size, axis=0)
        return graph.node("Reshape", wide, joined)

    def _heads(self, x: str, count: int) -> str:
        graph = self._graph
        split = graph.node("Reshape", x, graph.constant([0, 0, count, self._config.head_dim]))
        return graph.node("Transpose", split, perm=[0, 2, 1, 3])

    def _turned(self, x: str) -> str:
        graph = self._graph
        first, second = graph.halves(x)
        halves = graph.node("Concat", graph.node("Neg", second), first, axis=-1)
        return graph.node("Add", graph.node("Mul", x, self._cos), graph.node("Mul", halves, self._sin))

    def _norm(self, x: str, name: str) -> str:
        graph = self._graph
        squares = graph.node("Pow", x, graph.constant(2.0, "float32"))
        mean = graph.node("ReduceMean", squares, graph.constant([-1]), keepdims=1)
        root = graph.node("Sqrt", graph.node("Add", mean, graph.constant(self._config.epsilon, "float32")))
        return graph.node("Mul", graph.node("Div", x, root), graph.weight(f"{name}.weight"))

    def _linear(self, x: str, name: str, *, bias: bool = False) -> str:
        graph = self._graph
        product = graph.node("MatMul", x, graph.weight(f"{name}.weight", turned=True))
        return graph.node("Add", product, graph.weight(f"{name}.bias")) if bias else product
