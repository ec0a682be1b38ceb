"""The hub as a MetaSchedule database: TVM's own pipelines use it as they would use theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm.s_tir import meta_schedule as ms

from tunehub.compiler.database import HubDatabase

pytestmark = pytest.mark.slow


@pytest.fixture
def hub(nets: Any, record_for: Any, make_hub: Any) -> Any:
    return make_hub(record_for(nets.matmul()))


def test_stock_pipeline_compiles_with_the_hubs_records(
    nets: Any, hub: Any, tasks_of: Any, run: Any, target: Any
) -> None:
    mod = nets.matmul()
    (task,) = tasks_of(mod)
    database = HubDatabase(hub)
    assert database.has_workload(task.mod)
    record = database.query_tuning_record(task.mod, target, "main")
    assert [float(seconds) for seconds in record.run_secs] == [1e-3]
    tvm.ir.assert_structural_equal(
        database.query_ir_module(task.mod, target, "main"), database.query_schedule(task.mod, target, "main").mod
    )
    executable = ms.relax_integration.compile_relax(database, mod, target, None)
    data = nets.array(16, 24)
    np.testing.assert_allclose(run(executable, data), run(tvm.compile(mod, target), data), rtol=1e-4, atol=1e-5)


def test_unknown_workloads_have_no_record(nets: Any, hub: Any, tasks_of: Any, target: Any) -> None:
    (task,) = tasks_of(nets.matmul(m=8))
    database = HubDatabase(hub)
    assert not database.has_workload(task.mod)
    assert database.query_tuning_record(task.mod, target, "main") is None
    assert database.query_schedule(task.mod, target, "main") is None
    assert database.query_ir_module(task.mod, target, "main") is None


def test_it_stores_nothing(nets: Any, hub: Any, tasks_of: Any, target: Any) -> None:
    (task,) = tasks_of(nets.matmul())
    database = HubDatabase(hub)
    workload = database.commit_workload(task.mod)
    assert len(database) == 0
    assert list(database.get_all_tuning_records()) == []
    assert list(database.get_top_k(workload, 3)) == []  # no target, no choice
    with target:
        assert len(database.get_top_k(workload, 3)) == 1
        assert list(database.get_top_k(workload, 0)) == []
    record = database.query_tuning_record(task.mod, target, "main")
    with pytest.raises(TypeError, match="tunehub tune"):
        database.commit_tuning_record(record)
