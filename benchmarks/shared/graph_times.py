"""Kernels timed in a CUDA graph of PyTorch's. Needs PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

_REPEATS = 7


def graph_us(launch: Callable[[], int], repeats: int = _REPEATS) -> float:
    """The median time of a launch in a CUDA graph of some, in microseconds; ``launch`` says of how many."""
    import torch
    import tvm_ffi

    side = torch.cuda.Stream()
    torch.cuda.synchronize()  # inputs are still being made; their memory is given on, and the first launch writes
    with tvm_ffi.use_torch_stream(torch.cuda.stream(side)):
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with tvm_ffi.use_torch_stream(torch.cuda.graph(graph)):
        count = launch()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / count)
    return float(median(times))
