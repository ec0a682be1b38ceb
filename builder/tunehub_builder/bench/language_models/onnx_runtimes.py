"""A language model by onnxruntime, OpenVINO and tunehub, on CPUs: whole-model ONNX with keys and values as inputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tunehub.deploy.runtime import cpu_tensor
from tunehub.models.quantization import Quantization, quantization
from tunehub_builder.bench.language_models.case import LanguageCase, LanguageFacts, Logits, as_logits, resident_bytes
from tunehub_builder.bench.language_models.checkpoint import weights_of
from tunehub_builder.bench.language_models.onnx_decoder import WeightFile, past_names, write_decoder

Feeds = Mapping[str, npt.NDArray[Any]]
Runner = Callable[[Feeds], tuple[float, list[npt.NDArray[Any]]]]
"""Seconds of a run, and its outputs."""
_FORMS = ("step", "prompt")
_WARM_UP = 3


class OnnxLanguageModel:
    """See :class:`~tunehub_builder.bench.language_models.case.LanguageRuntime`. ``open_model`` loads a form of the
    model, an ONNX file in float32, in the case's quantisation."""

    def __init__(self, case: LanguageCase, open_model: Callable[[Path], Runner]) -> None:
        self._case, self._open = case, open_model
        self._runs: dict[str, Runner] = {}

    def preparation(self) -> LanguageFacts:
        """See :class:`LanguageRuntime`."""
        folder, began = self._files(), time.perf_counter()
        self._runs = {form: self._open(folder / f"{form}.onnx") for form in _FORMS}
        return LanguageFacts(compile_s=0.0, load_s=time.perf_counter() - began, resident_bytes=resident_bytes())

    def prefill_s(self, count: int) -> float:
        """See :class:`LanguageRuntime`."""
        return min(self._prompt(self._case.words(count))[0] for _ in range(2))  # the first one warms up

    def decode_s(self, batch: int, context: int, steps: int) -> float:
        """See :class:`LanguageRuntime`; the past grows."""
        config, words = self._case.config, np.array(self._case.words(batch))[:, None]
        shape = (batch, config.kv_heads, context, config.head_dim)
        past, seconds = [np.zeros(shape, "float32") for _ in past_names(config)], 0.0
        for step in range(_WARM_UP + steps):
            taken, (_, *past) = self._step(words, context + step, past)
            seconds += taken if step >= _WARM_UP else 0.0
        return seconds / steps

    def logits(self, lengths: Sequence[int]) -> Logits:
        """See :class:`LanguageRuntime`; one sequence after the other, since pasts have one length."""
        before, after = [], []
        for count, word in zip(lengths, self._case.words(len(lengths)), strict=True):
            _, (logits, *past) = self._prompt(self._case.words(count, count))
            before.append(logits)
            after.append(self._step(np.array([[word]]), count, past)[1][0])
        return as_logits([*before, *after])

    def _prompt(self, words: Sequence[int]) -> tuple[float, list[npt.NDArray[Any]]]:
        return self._runs["prompt"]({"ids": np.array([words]), "positions": np.arange(len(words))})

    def _step(
        self, words: npt.NDArray[Any], position: int, past: Sequence[npt.NDArray[Any]]
    ) -> tuple[float, list[npt.NDArray[Any]]]:
        named = dict(zip(past_names(self._case.config), past, strict=True))
        return self._runs["step"]({"ids": words, "positions": np.array([position]), **named})

    def _files(self) -> Path:
        """The folder of the models, which are written once."""
        assert self._case.folder is not None and self._case.work is not None
        folder = self._case.work / "onnx"
        if not folder.exists():
            made = self._case.work / "onnx.part"
            made.mkdir()
            weights, file = weights_of(self._case.folder), WeightFile(made)
            for form in _FORMS:
                write_decoder(self._case.config, weights, file, made / f"{form}.onnx", form)  # type: ignore[arg-type]
            made.rename(folder)
        return folder


def onnxruntime_model(case: LanguageCase, threads: int, *, dynamic: bool = False) -> OnnxLanguageModel:
    """By onnxruntime: weights of 4 and 8 bits in groups of 32 (``MatMulNBits``); or ``dynamic``: per-channel int8 and
    activations of 8 bits (``quantize_dynamic``). Other types are float32."""
    kind = quantization(case.quantization)

    def opened(path: Path) -> Runner:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        file = str(_in_form(path, kind, dynamic=dynamic))
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

        def run(feeds: Feeds) -> tuple[float, list[npt.NDArray[Any]]]:
            began = time.perf_counter()
            found = session.run(None, dict(feeds))
            return time.perf_counter() - began, list(found)

        return run

    return OnnxLanguageModel(case, opened)


def tunehub_model(case: LanguageCase, _threads: int, *, dynamic: bool = False) -> OnnxLanguageModel:
    """By tunehub, the files of :func:`onnxruntime_model`; bfloat16 is what operands may be rounded to."""
    kind = quantization(case.quantization)

    def opened(path: Path) -> Runner:
        import tvm
        from tvm import relax

        import tunehub
        from tunehub.graph.names import name_of
        from tunehub_builder import networks

        module = networks.open_onnx_file(_in_form(path, kind, dynamic=dynamic)).relax_module()
        names = [name_of(each) for each in module["main"].params]
        executable = tunehub.compile(module, precision="bf16" if kind.dtype == "bfloat16" else "float32")
        machine = relax.VirtualMachine(executable, tvm.cpu())

        def run(feeds: Feeds) -> tuple[float, list[npt.NDArray[Any]]]:
            arguments = [cpu_tensor(feeds[name]) for name in names]
            began = time.perf_counter()
            found = machine["main"](*arguments)
            return time.perf_counter() - began, [each.numpy() for each in found]

        return run

    return OnnxLanguageModel(case, opened)


def _in_form(path: Path, kind: Quantization, *, dynamic: bool) -> Path:
    """The file in float32 as the quantisation says."""
    if dynamic:
        return _quantized_dynamically(path)
    return _packed(path, kind.bits) if kind.bits else path


def _packed(path: Path, bits: int) -> Path:
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    made = path.with_name(f"{path.stem}_{bits}.onnx")
    if not made.exists():
        quantizer = MatMulNBitsQuantizer(onnx.load(path), bits=bits, block_size=32, is_symmetric=True, accuracy_level=4)
        quantizer.process()
        quantizer.model.save_model_to_file(str(made), True)
    return made


def _quantized_dynamically(path: Path) -> Path:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    made = path.with_name(f"{path.stem}_dynamic.onnx")
    if not made.exists():
        quantize_dynamic(
            path,
            made,
            weight_type=QuantType.QInt8,
            per_channel=True,
            op_types_to_quantize=["MatMul"],
            use_external_data_format=True,
        )
    return made


def openvino_model(case: LanguageCase, threads: int) -> OnnxLanguageModel:
    """By OpenVINO: weights of 8 bits per channel, of 4 in groups of 64, by NNCF; bfloat16 as its hint of precision."""
    kind = quantization(case.quantization)

    def opened(path: Path) -> Runner:
        import openvino

        core = openvino.Core()
        model = core.read_model(path)
        precision = "bf16" if kind.dtype == "bfloat16" else "f32"
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": precision,
        }
        request = core.compile_model(_compressed(model, kind.bits), "CPU", settings).create_infer_request()
        outputs = range(len(model.outputs))

        def run(feeds: Feeds) -> tuple[float, list[npt.NDArray[Any]]]:
            began = time.perf_counter()
            request.infer(dict(feeds), share_inputs=True)
            taken = time.perf_counter() - began
            return taken, [request.get_output_tensor(each).data.copy() for each in outputs]

        return run

    return OnnxLanguageModel(case, opened)


def _compressed(model: Any, bits: int) -> Any:
    if not bits:
        return model
    import nncf

    if bits == 8:
        return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
    mode = nncf.CompressWeightsMode.INT4_SYM
    return nncf.compress_weights(model, mode=mode, group_size=64, ratio=1.0, all_layers=True)
