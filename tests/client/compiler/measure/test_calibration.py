"""Measuring this machine for the rules, and what they make of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

tvm = pytest.importorskip("tvm")
pytest.importorskip("tvm.relax")

import tunehub  # noqa: E402
from tunehub.cli.calibrate import profile_state, rules_state  # noqa: E402
from tunehub.cli.group import cli  # noqa: E402
from tunehub.compiler.measure import calibration  # noqa: E402
from tunehub.exceptions import MeasureError  # noqa: E402
from tunehub.kernels.cpu import amx, pairs  # noqa: E402
from tunehub.kernels.cpu.base import BUILT_IN, Machine, machine_of, rates_of, worth_threads  # noqa: E402
from tunehub.kernels.cpu.register_tile import cost  # noqa: E402
from tunehub.kernels.te.grouped import PAIRS, TILES, TILES_INT8, Groups  # noqa: E402
from tunehub.target.machine_profile import PublishedProfile, write_profile  # noqa: E402
from tunehub_registry.machine_profile import MachineProfile  # noqa: E402

from ....cpu_features import AMX, AVX2, cpu  # noqa: E402

pytestmark = pytest.mark.slow
SAPPHIRE_RAPIDS = cpu(AMX)
CORES = 2


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path))
    return tmp_path


def profile(target: Any = None, **changes: Any) -> MachineProfile:
    """The one of ``target``, else of an AVX2 CPU with two cores."""
    target = target or cpu(AVX2)
    found = MachineProfile(
        cpu=str(target.attrs["mcpu"]), mattr=tuple(map(str, target.attrs.get("mattr", ()))),
        cores=int(target.attrs["num-cores"]), measured="2026-11-23", multiply_add_s=2.8e-10, dependent_s=1.12e-9,
        memory_bytes=24e9, region_s=3e-6,
    )  # fmt: skip
    return replace(found, **changes)


def built_in(target: Any) -> Any:
    """The rates that rules have for ``target`` without a profile: on Intel's CPUs with AMX pairs are taken to be slow,
    also where it is switched off."""
    from tvm.target import codegen

    intels = any(codegen.target_has_features([each], target) for each in ("amx-tile", "avx512fp16"))
    return replace(BUILT_IN, pairs=machine_of(SAPPHIRE_RAPIDS).rates.pairs) if intels else BUILT_IN


@pytest.mark.usefixtures("pretended_host")
def test_rules_go_by_the_profile_of_their_target_alone(cache: Path) -> None:
    target = tunehub.host_target()
    assert machine_of(target).rates == built_in(target)
    write_profile(cache, profile(target))
    rates = machine_of(target).rates
    assert rates.cautious_flops == pytest.approx(0.5 / 2.8e-10)
    assert rates.latency == pytest.approx(2.0)
    assert machine_of(target, cores=64).rates == built_in(target)
    assert machine_of(cpu(AVX2)).rates == BUILT_IN


@pytest.mark.usefixtures("pretended_host")
def test_the_profile_of_a_package_serves_where_the_user_has_none(cache: Path) -> None:
    target = tunehub.host_target()
    published = PublishedProfile(profile=profile(target, multiply_add_s=5e-10), package="llvm-own 0.1.0")
    found = machine_of(target, published=published)
    assert found.rates.cautious_flops == pytest.approx(0.5 / 5e-10)
    assert found.profile == "the profile of llvm-own 0.1.0"
    more_cores = machine_of(target, cores=CORES + 1, published=published).rates
    assert (more_cores.cautious_flops, more_cores.region) == (found.rates.cautious_flops, BUILT_IN.region)
    assert machine_of(cpu(AVX2), published=published).profile is None
    write_profile(cache, profile(target))
    own = machine_of(target, published=published)
    assert (own.rates.cautious_flops, own.profile) == (0.5 / 2.8e-10, "your own profile of 2026-11-23")


def test_pairs_are_not_taken_to_be_fast_beside_instructions_for_matrices(cache: Path) -> None:
    assert machine_of(SAPPHIRE_RAPIDS).rates.pairs < 1 < BUILT_IN.pairs


@pytest.mark.skipif(amx.doubt(SAPPHIRE_RAPIDS, "uint8") is not None, reason="TVM is older than 0.27")
@pytest.mark.parametrize(
    ("groups", "instruction"), [(PAIRS, "vdpbf16ps"), (TILES, "tdpbf16ps"), (TILES_INT8, "tdpbusd")]
)
def test_kernels_for_matrices_are_built_for_a_cpu_that_has_them(groups: Groups, instruction: str) -> None:
    machine = Machine(vector=16, registers=32)
    found = calibration._product(SAPPHIRE_RAPIDS, machine, (96, 2, 128), calibration._on_one_core, groups=groups)
    assert instruction in found.run.mod.inspect_source("asm")


@pytest.mark.skipif(amx.doubt(SAPPHIRE_RAPIDS, "uint8") is not None, reason="TVM is older than 0.27")
def test_tiles_are_measured_on_all_cores_too_where_there_are_several() -> None:
    machine = Machine(vector=16, registers=32, cores=2)
    found = calibration._on_all_cores(SAPPHIRE_RAPIDS, machine)
    products = [each.run.mod.inspect_source("asm").count("tdpbf16ps") for each in found.values()]
    assert products[1] == 2 * products[0] > 0
    assert not calibration._on_all_cores(SAPPHIRE_RAPIDS, replace(machine, cores=1))
    assert not calibration._on_all_cores(cpu(AVX2), machine)


@pytest.mark.filterwarnings("ignore::tunehub.HubWarning")  # there is no package here
@pytest.mark.usefixtures("pretended_host")
def test_the_doctor_says_whose_rates_hold_and_what_auto_is(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEHUB_STRICT", "1")  # what is wrong with packages is no concern of this
    target, before = tunehub.host_target(), rules_state()
    with_tiles = amx.doubt(target, "bfloat16") is None
    assert before["profile"] is None
    assert (before["float32"] is None) == with_tiles  # pairs are not known to be faster
    write_profile(cache, profile(target, pairs_s=1e-9))
    after = rules_state()
    assert after["profile"] == "your own profile of 2026-11-23"
    assert (after["float32"] is None) == with_tiles  # pairs are slow by it, or there are none


@pytest.mark.usefixtures("pretended_host")
def test_a_damaged_profile_counts_as_none_and_the_doctor_says_so(cache: Path) -> None:
    target = tunehub.host_target()
    assert profile_state() == {}
    path = write_profile(cache, profile(target))
    assert profile_state() == {"measured": "2026-11-23"}
    path.write_bytes(b"{")
    assert machine_of(target).rates == built_in(target)
    assert path.name in profile_state()["problem"]


def test_what_rules_make_of_a_profile() -> None:
    assert rates_of(profile(), 16, CORES).pairs == BUILT_IN.pairs
    assert rates_of(profile(pairs_s=5.6e-10), 16, CORES).pairs == pytest.approx(0.9)
    shared = profile(two_tiles=1.3)
    assert [rates_of(shared, 16, cores).two_tiles for cores in (CORES, 3 * CORES)] == [1.3, BUILT_IN.two_tiles]
    slow = Machine(vector=16, registers=32, cores=2, rates=rates_of(profile(region_s=1e-4), 16, CORES))
    quick = Machine(vector=16, registers=32, cores=2, rates=rates_of(profile(region_s=1e-7), 16, CORES))
    assert not worth_threads(1e6, 0, slow)
    assert worth_threads(1e6, 0, quick)
    assert quick.rates.weight_loads is None
    assert rates_of(profile(cached_bytes=16e10), 16, CORES).weight_loads == pytest.approx(64 / 16e10 / 2.8e-10)
    waiting = replace(quick, rates=rates_of(profile(dependent_s=5e-9), 16, CORES))
    small, large = (8, 2, 1), (8, 8, 2)  # two sums at once, or sixteen
    assert cost(small, 16, waiting) / cost(large, 16, waiting) > 2 * cost(small, 16, quick) / cost(large, 16, quick)


@pytest.mark.alone
def test_this_machine_is_measured(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_DISTURBED", float("inf"))  # tests share the machine
    monkeypatch.setattr(calibration, "_ROUNDS", 3)
    result = CliRunner().invoke(cli, ["calibrate", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert Path(found["path"]).is_file()
    assert found["dependent_s"] > found["multiply_add_s"]
    assert (found["pairs_s"] is None) == (pairs.doubt(tunehub.host_target()) is not None)
    assert (found["tiles_s"] is None) == (amx.doubt(tunehub.host_target(), "bfloat16") is not None)
    assert (found["two_tiles"] is None) == (found["tiles_s"] is None or found["cores"] == 1)
    rates = machine_of(tunehub.host_target()).rates
    assert (rates.latency, rates.weight_loads) == pytest.approx(
        (found["rates"]["latency"], found["rates"]["weight_loads"])
    )
    dry = CliRunner().invoke(cli, ["calibrate", "--dry-run"])
    assert "nothing was kept" in dry.output


def test_a_busy_machine_is_not_measured() -> None:
    calibration._check([1.0, 1.0, 1.1, 1.2, 9.0])
    with pytest.raises(MeasureError, match="the CPU is busy"):
        calibration._check([1.0, 1.5, 1.6])
