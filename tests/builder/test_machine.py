from __future__ import annotations

import getpass
import platform
from typing import Any

import pytest

from tunehub import host
from tunehub_builder import machine
from tunehub_builder.exceptions import UnknownTargetError, UnsuitableTargetError


def test_the_host_is_the_cpu_that_llvm_finds(target: dict[str, Any]) -> None:
    found = machine.find_target("host")
    assert found.name == f"llvm-{target['mcpu']}"
    assert found == machine.find_target(found.name)
    assert found.config["num-cores"] == host.physical_cores()
    assert found.vector in (4, 8, 16)


@pytest.mark.parametrize("name", ["", "llvm", "llvm-", "znver5", "llvm-nonsense", "cuda-h100", "llvm-../../x"])
@pytest.mark.usefixtures("tvm")
def test_unknown_targets_are_refused(name: str) -> None:
    with pytest.raises(UnknownTargetError, match="expected 'host'"):
        machine.find_target(name)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the names are those of x86 CPUs")
@pytest.mark.usefixtures("tvm")
def test_the_widest_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = machine._extensions("graniterapids") | machine._extensions("znver5")
    real = machine._extensions
    host = machine.find_target("host").config["mcpu"]
    monkeypatch.setattr(machine, "_extensions", lambda model: everything if model == host else real(model))
    widths = {name: machine.find_target(f"llvm-{name}").vector for name in ("skylake-avx512", "haswell", "nehalem")}
    expected = {"skylake-avx512": 16, "haswell": 8, "nehalem": 4}
    assert {name: width for name, width in widths.items() if name != host} == {
        name: width for name, width in expected.items() if name != host
    }


@pytest.mark.usefixtures("tvm")
def test_a_cpu_with_more_than_this_one_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    host = machine.find_target("host").config["mcpu"]
    monkeypatch.setattr(machine, "_extensions", lambda model: set() if model == host else {"avx9"})
    other = "haswell" if host != "haswell" else "skylake"
    with pytest.raises(UnsuitableTargetError, match=r"lacks avx9"):
        machine.find_target(f"llvm-{other}")


@pytest.mark.usefixtures("tvm")
def test_the_description_names_hardware_only() -> None:
    described = machine.describe_machine()
    text = " ".join(map(str, described.values()))
    assert platform.node() not in text.split()
    assert getpass.getuser() not in text.split()
    assert described["physical_cores"] >= 1  # type: ignore[operator]
