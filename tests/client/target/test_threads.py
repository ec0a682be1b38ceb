from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tunehub.target import host
from tunehub.target.threads import size_pool, stay_on_given_cores

pytestmark = pytest.mark.fast


@pytest.fixture
def without_hyper_threading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "machine_arch", lambda: "x86_64")
    monkeypatch.setattr(host, "usable_threads", lambda: 4)
    monkeypatch.setattr(host, "physical_cores", lambda: 4)
    monkeypatch.setattr("tunehub.target.threads.physical_cores", lambda: 4)
    monkeypatch.setattr("tunehub.target.threads.usable_threads", lambda: os.cpu_count())


@pytest.mark.usefixtures("without_hyper_threading")
def test_the_pool_gets_the_physical_cores() -> None:
    env: dict[str, str] = {}
    assert "TVM_NUM_THREADS was set to 4" in str(size_pool(env))
    assert env == {"TVM_NUM_THREADS": "4"}
    assert size_pool(env) is None


@pytest.mark.usefixtures("without_hyper_threading")
@pytest.mark.parametrize("name", ["TVM_NUM_THREADS", "OMP_NUM_THREADS"])
def test_what_the_application_set_stays(name: str) -> None:
    env = {name: "1"}
    assert size_pool(env) is None
    assert env == {name: "1"}


@pytest.mark.parametrize("given", [{}, {"TVM_BIND_THREADS": "1"}])
def test_threads_stay_on_the_cores_that_a_process_was_given(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    env = dict(given)
    monkeypatch.setattr("tunehub.target.threads.usable_threads", lambda: 8)
    stay_on_given_cores(env)
    assert env == given
    monkeypatch.setattr("tunehub.target.threads.usable_threads", lambda: 2)
    stay_on_given_cores(env)
    assert env == {"TVM_BIND_THREADS": "0", **given}


def test_a_pool_that_is_large_enough_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "small_pool", lambda _env: None)
    monkeypatch.setattr("tunehub.target.threads.small_pool", lambda _env: None)
    env: dict[str, str] = {}
    assert size_pool(env) is None
    assert env == {}


@pytest.mark.slow
def test_tvm_follows_the_variable_that_is_set_after_its_import() -> None:
    pytest.importorskip("tvm.relax")
    script = "import os, tvm; os.environ['TVM_NUM_THREADS'] = '2'; print(tvm.get_global_func('runtime.NumThreads')())"
    env = {name: value for name, value in os.environ.items() if name not in ("TVM_NUM_THREADS", "OMP_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2"]
