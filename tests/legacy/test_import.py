"""Imported records, loaded by TVM itself."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tvm import autotvm

from tunehub_builder.backends.relay import prove as proving
from tunehub_builder.backends.relay.prove import prove, space_problem
from tunehub_builder.logs.autotvm_v01_to_v02 import RULES, translate
from tunehub_builder.logs.to_packages import import_as_packages
from tunehub_registry.tuning_log import parse_line

pytestmark = pytest.mark.legacy

CONV = [["TENSOR", [1, 64, 56, 56], "float32"], ["TENSOR", [64, 64, 3, 3], "float32"]]
DIRECT = [
    ["tile_f", "sp", [-1, 2, 8, 4]], ["tile_y", "sp", [-1, 1, 7, 1]], ["tile_x", "sp", [-1, 1, 14, 2]],
    ["tile_rc", "sp", [-1, 8]], ["tile_ry", "sp", [-1, 3]], ["tile_rx", "sp", [-1, 3]],
    ["auto_unroll_max_step", "ot", 1500], ["unroll_explicit", "ot", 1],
]  # fmt: skip


def new(task: str, arguments: list[Any], entity: list[Any], target: str = "cuda -model=titanx") -> bytes:
    row = {
        "input": [target, task, arguments, {}],
        "config": {"index": 1, "code_hash": None, "entity": entity},
        "result": [[0.001], 0, 1.5, 1563936283.5],
        "version": 0.2,
        "tvm_version": "0.7.dev0",
    }
    return json.dumps(row).encode()


def old(task: str, arguments: list[Any], entity: list[Any], target: str, key: str = "direct") -> bytes:
    config = {"i": 1, "c": None, "t": key, "e": entity}
    return json.dumps(
        {"i": [target, task, arguments, {}, None, config], "r": [[0.001], 0, 1.5, 1.6e9], "v": 0.1}
    ).encode()


def split(*names: str, parts: int) -> list[Any]:
    return [[name, "sp", [-1] + [1] * (parts - 1)] for name in names]


def knob(**values: Any) -> list[Any]:
    return [[name, "ot", value] for name, value in values.items()]


UNROLL = knob(auto_unroll_max_step=512, unroll_explicit=0)
PACK = [["reorder_0", "re", list(range(10))], ["ann_reduce", "an", ["none", "unroll"]],
        ["ann_spatial", "an", ["none", "unroll", "vec"]]]  # fmt: skip
ATTRIBUTES = [[1, 1], [1, 1], [1, 1], "NCHW", "float32"]
DEPTHWISE = [CONV[0], ["TENSOR", [64, 1, 3, 3], "float32"], [1, 1], [1, 1], [1, 1], "float32"]
DENSE = [["TENSOR", [1, 512], "float32"], ["TENSOR", [1000, 512], "float32"], None, "float32"]
ARM = "llvm -device=arm_cpu -model=rk3399 -target=aarch64-linux-gnu"
OLD = [
    old("topi_nn_conv2d", [*CONV, *ATTRIBUTES], DIRECT, "cuda -model=titanx"),
    old("topi_nn_conv2d", [*CONV, [1, 1], [1, 1], "NCHW", "float32"], DIRECT, "rocm -model=gfx900"),
    old("topi_nn_conv2d", [*CONV, *ATTRIBUTES],
        [["tile_b", "sp", [36, 1, 1, 1]], *split("tile_y", "tile_x", parts=4), *split("tile_rc", parts=2),
         *knob(auto_unroll_max_step=128, unroll_explicit=1)], "cuda -model=titanx", "winograd"),
    old("topi_nn_conv2d", [*CONV, *ATTRIBUTES], [*split("tile_co", "tile_oh", "tile_ow", parts=2), *PACK], ARM),
    old("topi_nn_conv2d", [*CONV, *ATTRIBUTES], [*split("tile_co", "tile_oh", "tile_ow", parts=3), *PACK],
        "opencl -device=mali -model=rk3399"),
    old("topi_x86_conv2d_NCHWc", [*CONV, 64, [3, 3], [1, 1], [1, 1], "NCHW", "NCHW", "float32"],
        [*split("tile_ic", "tile_oc", "tile_ow", parts=2), *knob(unroll_kw=True)], "llvm -mcpu=skylake-avx512", ""),
    old("topi_nn_depthwise_conv2d_nchw", DEPTHWISE, [*split("tile_f", "tile_y", "tile_x", parts=4), *UNROLL], "cuda"),
    old("topi_x86_depthwise_conv2d_NCHWc_from_nchw", DEPTHWISE,
        [*split("tile_ic", "tile_oc", "tile_ow", parts=2), *knob(unroll_kw=False)], "llvm"),
    old("topi_nn_conv2d_transpose_nchw", [CONV[0], CONV[1], [2, 2], [1, 1], "float32"],
        [*split("tile_n", "tile_f", "tile_y", "tile_x", parts=4), *split("tile_rc", parts=3), *UNROLL,
         *knob(fuse_yx=0)], "cuda -model=v100"),
    old("topi_nn_dense", DENSE, split("tile_y", "tile_x", "tile_k", parts=2), ARM),
    old("topi_nn_dense", DENSE, [*split("tile_y", "tile_x", parts=3), *split("tile_k", "tile_inner", parts=2)], "llvm"),
    old("topi_nn_dense", DENSE, split("tile_k", parts=2), "cuda"),
    old("topi_nn_dense", DENSE[:2], [*split("tile_y", "tile_x", parts=3), *split("c_unroll", parts=2)],
        "opencl -device=mali"),
    old("topi_nn_batch_matmul", [["TENSOR", [4, 8, 20], "float32"], ["TENSOR", [4, 16, 20], "float32"]],
        [*split("tile_y", "tile_x", parts=3), *split("tile_k", parts=2), *UNROLL], "cuda"),
]  # fmt: skip


def proved_here(lines: list[bytes], folder: Path) -> list[proving.Proof]:
    """What the child does, in this process: no line here ends TVM."""
    source, sink = folder / "lines", folder / "proofs"
    source.write_bytes(b"".join(line + b"\n" for line in lines))
    proving.main([str(source), str(sink), "0"])
    return proving._read(sink)


def test_translations_are_what_the_templates_of_tvm_take(tmp_path: Path) -> None:
    lines = [translate(line) for line in OLD]
    proofs = proved_here(lines, tmp_path)
    assert {(parse_line(line).task, proof.state, proof.reason) for line, proof in zip(lines, proofs, strict=True)} == {
        (parse_line(line).task, "proved", None) for line in lines
    }


def test_every_translation_names_a_template_of_tvm() -> None:
    known = set(autotvm.task.task.TASK_TABLE)
    missing = {rule.name for rule in RULES if rule.name not in known and not rule.name.endswith(".vta")}
    assert not missing


def test_what_tvm_does_not_take_is_refuted_with_the_reason(tmp_path: Path) -> None:
    arguments = [*CONV, [1, 1], [1, 1, 1, 1], [1, 1], "float32"]
    factors = [["tile_f", "sp", [-1, 2, 8]], *DIRECT[1:]]
    proofs = proved_here(
        [
            new("conv2d_nchw.cuda", arguments, DIRECT),
            new("conv2d_nchw.cuda", arguments, DIRECT[1:]),
            new("conv2d_nchw.cuda", arguments, factors),
            new("conv2d_nchw.cuda", arguments[:3], DIRECT),
            new("conv2d_packed.vta", arguments, DIRECT),
            new("conv2d_nchw.cuda", arguments, [["tile_f", "sp", [-1, 3, 8, 4]], *DIRECT[1:]]),
        ],
        tmp_path,
    )
    assert [proof.state for proof in proofs[:5]] == ["proved", "refuted", "refuted", "refuted", "unproved"]
    assert proofs[1].reason is not None and "has a knob tile_f" in proofs[1].reason
    assert proofs[2].reason is not None and "has 3 parts" in proofs[2].reason
    assert proofs[3].reason is not None and "missing" in proofs[3].reason
    assert proofs[4].reason is not None and "no template conv2d_packed.vta" in proofs[4].reason
    # TVM makes code of a split that leaves a tail; the proof tells that the template would not have tried it.
    assert proofs[5].state == "proved"
    assert proofs[5].reason is not None and "does not divide the axis of 64" in proofs[5].reason


def test_a_record_that_kills_tvm_costs_only_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "dies.py"
    program.write_text(
        "import json, os, sys\n"
        "source, sink, skip = sys.argv[1:]\n"
        "with open(sink, 'ab', buffering=0) as stream:\n"
        "    stream.write(b'started\\n')\n"
        "    for line in open(source, 'rb').read().split(b'\\n')[int(skip):-1]:\n"
        "        if line == b'deadly':\n"
        "            os.abort()\n"
        '        stream.write(json.dumps({"state": "proved", "reason": None}).encode() + b"\\n")\n'
    )
    run = proving.subprocess.run

    def instead(command: list[str], **options: Any) -> Any:
        return run([command[0], str(program), *command[3:]], **options)

    monkeypatch.setattr(proving.subprocess, "run", instead)
    proofs = prove([b"good", b"deadly", b"good", b"deadly"])
    assert [proof.state for proof in proofs] == ["proved", "refuted", "proved", "refuted"]
    assert proofs[1].reason == f"TVM died of signal {signal.SIGABRT.value} while it read this record"


def test_a_child_that_never_starts_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proving.sys, "executable", "/bin/false")
    (proof,) = prove([b"{}"])
    assert proof.state == "unproved"
    assert proof.reason is not None and "exit code 1" in proof.reason


def test_more_knobs_than_the_template_has_do_no_harm() -> None:
    task = autotvm.task.create("dense_nopack.x86", [tuple(DENSE[0]), tuple(DENSE[1]), None, "float32"], target="llvm")
    entity = split("tile_y", "tile_x", "tile_k", parts=2)
    assert space_problem(task.config_space.space_map, [*entity, ["tile_size", "ot", 4]]) is None
    assert space_problem(task.config_space.space_map, entity[1:]) is not None


def test_the_auto_schedulers_lines_are_loaded(tmp_path: Path) -> None:
    workload = json.dumps(["d7b65649a4dd54becea0a52aabbc5af5", 1, 1000, 1, 1000])
    task = [workload, "llvm -keys=cpu", [2, 64, 64, 0, 0, 0, 0, 0], "", 1, []]
    row = {"i": [task, [[], [["SP", 2, 0, 1000, [4, 2, 1], 1]]]], "r": [[0.001], 0, 1.5, 1600000000], "v": "v0.6"}
    log = tmp_path / "ansor_v0.1.log"
    log.write_text(json.dumps(row) + "\n")
    report = import_as_packages([log], tmp_path / "hub", prover=prove)
    assert report.files[0].proved == 1
