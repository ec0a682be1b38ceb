"""The client on TVM <= 0.19 against TVM's own ApplyHistoryBest: opening records, and looking workloads up."""

from __future__ import annotations

import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.shared.table import Row

_TARGET = "llvm -mcpu=skylake-avx512"


def client_rows(sizes: Mapping[str, int], queries: int) -> list[Row]:
    """A context over some numbers of records (by label) of as many workloads, opened and asked ``queries`` times; TVM's
    in the same process."""
    os.environ["TOPHUB_LOCATION"] = "NONE"
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no package is for this target: the log is the user's own
        os.environ["TUNEHUB_CACHE"] = str(Path(name) / "cache")
        for label, size in sizes.items():
            rows += _rows(label, _write_log(Path(name) / f"{label}.log", size), size, queries)
    return rows


def _rows(label: str, log: Path, size: int, queries: int) -> list[Row]:
    import tvm
    from tvm import autotvm

    import tunehub

    target = tvm.target.Target(_TARGET)

    def open_ours() -> None:
        with tunehub.context(target, user_records=log):
            pass

    indexed_s = _ms(open_ours) / 1e3
    ours = median(_ms(open_ours) for _ in range(15))
    loaded: list[Any] = []
    theirs = median(_ms(lambda: loaded.append(autotvm.task.ApplyHistoryBest(str(log)))) for _ in range(3))
    workloads = [_workload(number * (size // queries)) for number in range(queries)]
    with tunehub.context(target, user_records=log):
        current = autotvm.task.DispatchContext.current
        found: list[Any] = []
        ours_query = _ms(lambda: found.extend(current.query(target, workload) for workload in workloads))
    expected: list[Any] = []
    theirs_query = _ms(lambda: expected.extend(loaded[-1].query(target, workload) for workload in workloads))
    same = sum(mine.to_json_dict() == his.to_json_dict() for mine, his in zip(found, expected, strict=True))
    return [
        Row(name=f"context_index_{label}_s", value=indexed_s, unit="s", note="first use: the index is made"),
        Row(name=f"context_open_{label}_ms", value=ours, unit="ms", note="indexed before"),
        Row(name=f"apply_history_best_{label}_ms", value=theirs, unit="ms"),
        Row(name=f"context_open_{label}_vs_apply_history_best", value=theirs / ours, unit="times"),
        Row(
            name=f"lookup_{queries}_of_{label}_ms",
            value=ours_query,
            unit="ms",
            note=f"{queries} different workloads, each first",
        ),
        Row(name=f"apply_history_best_lookup_{queries}_of_{label}_ms", value=theirs_query, unit="ms"),
        Row(name=f"lookup_same_of_{label}", value=same / queries, unit="ratio", note="the same configuration"),
    ]


def _workload(number: int) -> tuple[Any, ...]:
    data = ("TENSOR", (1, 64, 7 + number, 56), "float32")
    return (
        "conv2d_NCHWc.x86", data, ("TENSOR", (64, 64, 3, 3), "float32"), (1, 1), (1, 1, 1, 1), (1, 1), "NCHW", "NCHW",
        "float32",
    )  # fmt: skip


def _write_log(path: Path, size: int) -> Path:
    """One record for each of ``size`` workloads, as TVM writes them."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(size):
            task, *arguments = _workload(number)
            entity = [["tile_ic", "sp", [-1, 16]], ["tile_oc", "sp", [-1, 16]], ["tile_ow", "sp", [-1, 8]],
                      ["unroll_kw", "ot", True]]  # fmt: skip
            record = {
                "input": [_TARGET, task, arguments, {}],
                "config": {"index": number, "code_hash": None, "entity": entity},
                "result": [[1e-4 * (1 + number % 7)], 0, 1.0, 1.6e9 + number], "version": 0.2, "tvm_version": "0.19.0",
            }  # fmt: skip
            file.write(json.dumps(record) + "\n")
    return path


def _ms(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1e3
