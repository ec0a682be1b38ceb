"""`tunehub attest`: records of a published package, measured here, signed, and counted by who trusts the key."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import msgspec
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from tunehub.target.host import host_descriptor
from tunehub_builder.backends.relax.workload_gate import Verdict
from tunehub_builder.cli.attest import attest
from tunehub_builder.gate.attest import sampled_record
from tunehub_builder.gate.comparison import Finalist
from tunehub_registry.attestation import PackageSubject
from tunehub_registry.package import open_package, sha256_of
from tunehub_registry.target import Rejected, match
from tunehub_registry.trust.attestations import verify_attestations
from tunehub_registry.trust.keys import create_key, load_public_key
from tunehub_registry.trust.state import utc_now

pytestmark = pytest.mark.slow
PACKAGES = Path(__file__).parents[3] / "packages"
CPU, GPU = PACKAGES / "llvm-znver4-0.3.0.tunepkg", PACKAGES / "cuda-h200-0.14.0.tunepkg"
EXACT = "ab" * 16


@pytest.fixture
def key(tmp_path: Path) -> Path:
    create_key(tmp_path / "a.key", None)
    return tmp_path / "a.key"


def judged(finalist: Finalist, reason: str | None, default_s: tuple[float, ...] = (4e-3,)) -> Verdict:
    return Verdict(
        exact=EXACT, name="f", digest="d", threads=1, admitted=reason is None, reason=reason, default_s=default_s,
        finalists=(finalist,),
    )  # fmt: skip


def test_a_time_without_a_gain_is_no_fault() -> None:
    slower = Finalist(source="x", tuning_s=1.0, run_s=(5e-3, 6e-3, 7e-3), difference=1e-6)
    found = sampled_record("template", judged(slower, "0.667 times as fast"), op="conv2d")
    assert found.fault is None and found.times is not None
    assert found.times.gain == pytest.approx(4 / 6) and found.times.tuned_spread_s == pytest.approx(1e-3)


def test_what_a_client_has_without_the_record_is_stated_beside_it() -> None:
    record, rule = (Finalist(source="x", tuning_s=1.0, run_s=(s,), difference=0.0) for s in (2e-3, 3e-3))
    verdict = msgspec.structs.replace(judged(record, None), finalists=(record, rule))
    assert sampled_record("template", verdict, op="conv2d").times.rule_s == 3e-3
    assert not sampled_record("template", judged(record, None), op="conv2d").times.rule_s


@pytest.mark.parametrize(
    ("finalist", "reason"),
    [
        (Finalist(source="x", tuning_s=1.0, difference=0.3, reason="its output differs by 0.3"), "no finalist is left"),
        (Finalist(source="x", tuning_s=1.0), "the default crashed" * 100),
    ],
)
def test_what_was_not_timed_is_a_fault_with_its_reason(finalist: Finalist, reason: str) -> None:
    found = sampled_record("template", judged(finalist, reason, ()), op="conv2d")
    assert found.times is None and found.fault == (finalist.reason or reason[:400])


def test_two_machines_attest_a_package_and_both_count(
    key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunehub_registry.attestation.LEAST_SAMPLE", 1)  # ten take minutes
    with open_package(CPU, source=str(CPU)) as package:
        target, subject = package.manifest.target, PackageSubject.of("llvm-znver4", "0.3.0", sha256_of(CPU))
    if isinstance(match(target, host_descriptor()), Rejected):
        pytest.skip("this machine cannot run the package")
    create_key(tmp_path / "b.key", None)
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for signer, file in zip((key, tmp_path / "b.key"), files, strict=True):
        options = ["--key", str(signer), "--sample", "1", "--threads", "1", "--workers", "1", "-o", str(file)]
        done = CliRunner().invoke(attest, [str(CPU), *options])
        assert done.exit_code == 0, done.output
        # of those that need no instruction that this machine lacks
        assert re.search(r"\b1 of \d+ records of llvm-znver4-0\.3\.0\.tunepkg measured, gain ", done.output)
    keys = [load_public_key(f"{path}.pub") for path in (key, tmp_path / "b.key")]
    lines = b"".join(file.read_bytes() for file in files)
    found = verify_attestations(lines, subject, keys, "attestations.jsonl", now=utc_now())
    assert found.machines == 2 and found.text.startswith("measured by 2 machines, gain ")
    assert (
        all(each.draw for each in found.counted) and found.counted[0].seed != found.counted[1].seed
    )  # each key draws for itself
    assert verify_attestations(lines, subject, keys[:1], "x", now=utc_now()).machines == 1


@pytest.mark.parametrize(
    ("package", "options", "expected"),
    [
        (GPU, [], "this machine has no cuda device that TVM can use"),
        (CPU, ["--network", "nosuch"], "nosuch"),
        (Path("missing.tunepkg"), [], "give a package file"),
        (Path(__file__), [], "test_attest.py"),
    ],
)
def test_what_cannot_be_attested_says_why(key: Path, package: Path, options: list[str], expected: str) -> None:
    output = key.parent / "a.json"
    done = CliRunner().invoke(attest, [str(package), "--key", str(key), "-o", str(output), *options])
    assert done.exit_code != 0 and expected in done.output and not output.exists()
    assert isinstance(done.exception, SystemExit)


def test_what_is_said_of_a_model_with_an_open_input_helps(key: Path, tmp_path: Path) -> None:
    def ended(*options: str) -> str:
        arguments = [str(CPU), "--key", str(key), "-o", str(tmp_path / "a.json"), *options]
        done = CliRunner().invoke(attest, arguments)
        assert done.exit_code != 0
        return done.output

    value = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT, shape=["batch", 8])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "open", [value("x")], [value("y")])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "open.onnx")
    model = ("--model", str(tmp_path / "open.onnx"))
    with open_package(CPU, source=str(CPU)) as package:
        if isinstance(match(package.manifest.target, host_descriptor()), Rejected):
            pytest.skip("this machine cannot run the package")
    assert "--input-shape x:1,8" in ended(*model)
    assert "has no record for a workload of these networks" in ended(*model, "--input-shape", "x:1,8")
    assert "exactly one --model" in ended("--input-shape", "x:1,8")
    assert "at most 2147483648" in ended(*model, "--input-shape", "x=99999999999,8")


def test_a_key_that_cannot_sign_is_found_before_anything_is_measured(tmp_path: Path) -> None:
    done = CliRunner().invoke(attest, [str(CPU), "--key", str(tmp_path / "none.key")])
    assert done.exit_code == 1 and "tunehub key new" in done.output
