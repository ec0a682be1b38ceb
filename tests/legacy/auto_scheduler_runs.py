"""Small runs of auto_scheduler's tuner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tvm import relay
from tvm.relay.testing import create_workload

from tunehub_builder.backends.relay import auto_scheduler_tuner
from tunehub_builder.backends.relay.auto_scheduler_tuner import AutoSchedulerTuner
from tunehub_builder.backends.relay.networks import NHWC, RelayNetwork
from tunehub_builder.backends.relay.tuner import RelayOptions, RelaySession
from tunehub_builder.backends.relay.work import RelayWork
from tunehub_builder.tuning.progress import Progress, TrialTotals
from tunehub_builder.tuning.work_directory import WorkDirectory

from .relay_cases import FEW

TARGET = "llvm -mcpu=core-avx2 -num-cores=2"


SHAPE = (1, 8, 8, 4)


def small_net(*, nhwc: bool = True, dense: bool = False) -> Any:
    data = relay.var("data", shape=SHAPE if nhwc else (1, 4, 8, 8))
    if nhwc:
        weight: Any = relay.var("c_weight", shape=(3, 3, 4, 8))
        body = relay.nn.conv2d(data, weight, padding=(1, 1), data_layout="NHWC", kernel_layout="HWIO")
    else:
        weight = relay.var("c_weight", shape=(8, 4, 3, 3))
        body = relay.nn.conv2d(data, weight, padding=(1, 1))
    body = relay.nn.relu(body)
    if dense:
        body = relay.nn.dense(relay.nn.batch_flatten(body), relay.var("d_weight", shape=(100, 512)))
        body = relay.nn.bias_add(body, relay.var("d_bias", shape=(100,)))
    return create_workload(relay.Function(relay.analysis.free_vars(body), body))


def session(folder: Path, trials: int, *, show: Any = None, net: Any = small_net, **options: Any) -> RelaySession:
    folder.mkdir(exist_ok=True)
    network = RelayNetwork(name="net", source="here", inputs={"data": SHAPE}, layout=NHWC, definition=net)
    return RelaySession(
        target=TARGET,
        networks=(network,),
        work=RelayWork(WorkDirectory(folder)),
        options=RelayOptions(trials=trials, **options),
        threads=1,
        workers=1,
        show=show or (lambda step: None),
    )


def tune(folder: Path, trials: int, **options: Any) -> tuple[TrialTotals, list[Progress]]:
    """With a search that is as small as it can be; `search_params` has a test of its own."""
    small = {**FEW, "evolutionary_search_num_iters": 1}
    steps: list[Progress] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auto_scheduler_tuner, "search_params", lambda _cores: small)
        return AutoSchedulerTuner().tune(session(folder, trials, show=steps.append, **options)), steps


def lines(folder: Path) -> list[bytes]:
    return (folder / "auto_scheduler.json").read_bytes().splitlines()
