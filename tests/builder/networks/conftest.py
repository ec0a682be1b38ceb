"""Running small networks in TVM and in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from tunehub_builder.networks import Network

Output = npt.NDArray[np.float32]


@pytest.fixture
def run_onnxruntime() -> Callable[[Network], Output]:
    """The output of a network in onnxruntime."""
    onnxruntime = pytest.importorskip("onnxruntime")

    def run(network: Network) -> Output:
        session = onnxruntime.InferenceSession(network.onnx_model().SerializeToString())
        output: Output = session.run(None, network.sample_inputs())[0]
        return output

    return run


@pytest.fixture
def difference(run_onnxruntime: Callable[[Network], Output]) -> Callable[[Network], float]:
    """How far TVM's output of a network is from onnxruntime's, relative to the largest value."""
    tvm = pytest.importorskip("tvm")

    def compare(network: Network) -> float:
        built = tvm.compile(network.relax_module(), tvm.target.Target({"kind": "llvm"}))
        inputs = [tvm.runtime.tensor(array) for array in network.sample_inputs().values()]
        output = tvm.relax.VirtualMachine(built, tvm.cpu())["main"](*inputs).numpy()
        expected = run_onnxruntime(network)
        assert output.shape == expected.shape
        assert float(expected.std()) > 0
        return float(np.abs(output - expected).max() / np.abs(expected).max())

    return compare
