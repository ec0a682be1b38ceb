"""Every malformed record leaves the process alive and the compile right; the report says why it was not used.

The cases are those that broke TVM's own JSONDatabase (SIGSEGV, SIGFPE, memory corruption, wrong results) and those
that broke TVM behind our own rules until they were refused. All compile in one process, as a user's would.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
import tvm
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

import tunehub
import tunehub_registry
from tunehub.tir.traces import export_trace
from tunehub_registry.exceptions import RegistryError
from tunehub_registry.record import encode_record

from ...unoptimised import UNOPTIMISED

pytestmark = pytest.mark.slow

Trace = list[Any]
BLOCK = ["GetSBlock", [], ["conv2d_nchw", "main"], ["b900"]]
LOOPS = ["GetLoops", ["b900"], [], [f"l90{i}" for i in range(1, 8)]]
LAST = ["GetSBlock", [], ["compute", "main"], ["b901"]]
LAST_LOOPS = ["GetLoops", ["b901"], [], [f"l91{i}" for i in range(1, 5)]]


def tiles(trace: Trace) -> list[Any]:
    return [decision for decision in trace[1] if isinstance(decision[1], list)]


def only(*instructions: list[Any]) -> Callable[[Trace], None]:
    def change(trace: Trace) -> None:
        trace[:] = [copy.deepcopy(list(instructions)), []]

    return change


def append(*instructions: list[Any]) -> Callable[[Trace], None]:
    return lambda trace: trace[0].extend(copy.deepcopy(list(instructions)))


def decide(position: int, value: Any) -> Callable[[Trace], None]:
    def change(trace: Trace) -> None:
        tiles(trace)[position][1] = value

    return change


def index_map(final: list[Any], inverse: list[Any] | None = None) -> dict[str, Any]:
    backward = inverse and {"ndim": len(final), "final": inverse, "inverse": None}
    return {"index_map": {"ndim": 4, "final": final, "inverse": backward}}


def layout(block: str, final: list[Any], buffer: list[Any], inverse: list[Any] | None = None) -> list[Any]:
    return ["TransformLayout", [block, index_map(final, inverse)], buffer, []]


def parallelise_everything(trace: Trace) -> None:
    for instruction in trace[0]:
        if instruction[0] == "Annotate" and instruction[2] == ["meta_schedule.parallel"]:
            instruction[1][1] = 10**9


def replace_categories(trace: Trace) -> None:
    for decision in trace[1]:
        if not isinstance(decision[1], list):
            decision[1] = 99999


def rename_variable(trace: Trace) -> None:
    trace[0][6][1][:1] = ["nosuchrv"]


def all_zero(trace: Trace) -> None:
    for decision in tiles(trace):
        decision[1] = [0] * len(decision[1])


def first_to(value: int) -> Callable[[Trace], None]:
    return lambda trace: tiles(trace)[0][1].__setitem__(1, value)


def index_to(value: int) -> Callable[[Trace], None]:
    return lambda trace: trace[1][0].__setitem__(0, value)


def untile(scale: int) -> Callable[[Trace], None]:
    """Make the tiles of the output channels (16) too small or too large."""

    def change(trace: Trace) -> None:
        decision = next(d for d in tiles(trace) if np.prod(d[1]) == 16)
        decision[1] = [scale, 1, 2, 1]

    return change


# name -> (change of the trace, what the report must say, or None where the record serves or is harmless)
TRACES: dict[str, tuple[Callable[[Trace], None], str | None]] = {
    "ok": (lambda trace: None, None),
    "decprod": (decide(0, [1, 1, 7, 5]), None),  # TVM makes tiles perfect again
    "decsmall": (untile(1), None),
    "declarge": (untile(64), None),
    "deczero": (decide(0, [0, 1, 1, 1]), "at least 1"),
    "decneg": (decide(1, [-1, -1, 8, 8]), "at least 1"),
    "declen": (decide(1, [8, 8]), "has 4 integers"),
    "decstr": (decide(1, "xx"), "has 4 integers"),
    "zero1": (first_to(0), "at least 1"),
    "allzero": (all_zero, "at least 1"),
    "huge": (first_to(2**62), "at least 1"),
    "cat": (replace_categories, "not the index of a candidate|out of range"),
    "decidx": (index_to(10**6), "out of range"),
    "decidxneg": (index_to(-5), "out of range"),
    "badinst": (lambda trace: trace[0][0].__setitem__(0, "NoSuchInst"), "NoSuchInst"),
    "badblock": (lambda trace: trace[0][0][2].__setitem__(0, "nosuchblock"), "nosuchblock|block"),
    "dropinst": (lambda trace: trace[0].pop(-1), None),
    "drop_definition": (lambda trace: trace[0].pop(0), "before it is defined"),
    "emptytrace": (lambda trace: trace.__setitem__(slice(None), [[], []]), None),
    "vecbig": (parallelise_everything, "from 0 to 65536"),
    "rvname": (rename_variable, "expected a variable"),
    "unsafe_dtype": (append(BLOCK, ["UnsafeSetDType", ["b900"], [0, "float16"], []]), "it changes results"),
    "pragma_import_c": (append(BLOCK, ["Annotate", ["b900", '"x"'], ["pragma_import_c"], []]), "pragma_import_c"),
    "random_producer": (append(BLOCK, ["Annotate", ["b900", 1], ["meta_schedule.random_compute_producer"], []]), None),
    "endless_loops": (append(BLOCK, ["GetLoops", ["b900"], [], [f"l{i}" for i in range(9000, 9030)]]), None),
    # what the rules let through once, each wrong, a crash or an error of code generation then
    "split_without_check": (only(BLOCK, LOOPS, ["Split", ["l902", 7, 8], [1, 1], ["l1", "l2"]]), "not allowed"),
    "reorder_marks": (
        lambda trace: trace.__setitem__(
            slice(None),
            [
                [
                    BLOCK,
                    LOOPS,
                    ["SampleComputeLocation", ["b900"], [], ["l1"]],
                    ["Reorder", ["l1", "l902"], [], []],
                ],
                [[2, -2]],
            ],
        ),
        "not a loop",
    ),
    "layout_not_injective": (
        only(BLOCK, layout("b900", ["v0", ["%", "v1", 4], "v2", "v3"], [0, 1, None, 1])),
        "v1 is lost",
    ),
    "layout_dropped": (
        only(BLOCK, layout("b900", ["v0", "v2", "v3"], [0, 1, None, 1], ["v0", 0, "v1", "v2"])),
        "not fit",
    ),
    "layout_merged": (
        only(
            BLOCK,
            layout(
                "b900",
                ["v0", "v1", ["+", ["*", "v2", 5], "v3"]],
                [0, 1, None, 1],
                ["v0", "v1", ["//", "v2", 5], ["%", "v2", 5]],
            ),
        ),
        "not fit",
    ),
    "layout_of_output": (
        only(LAST, layout("b901", ["v0", "v1", "v3", "v2"], [0, 1, None, 1])),
        "layout of a parameter",
    ),
    "layout_of_input": (
        only(BLOCK, layout("b900", ["v0", "v1", "v3", "v2"], [1, 0, None, 1])),
        "layout of a parameter",
    ),
    "layout_serialised": (only(BLOCK, ["TransformLayout", ["b900", "{}"], [0, 1, None, 1], []]), "serialised"),
    "layout_false_inverse": (
        only(BLOCK, layout("b900", ["v0", "v2", "v3", "v1"], [0, 1, None, 0], ["v0", "v1", "v2", "v3"])),
        "inverse is wrong",
    ),
    "layout_huge": (
        only(BLOCK, layout("b900", ["v0", ["//", "v1", 1 << 29], ["%", "v1", 1 << 29], "v2", "v3"], [0, 1, None, 1])),
        "allocates",
    ),
    "parallel_nested": (
        only(LAST, LAST_LOOPS, ["Parallel", ["l912"], [], []], ["Parallel", ["l913"], [], []]),
        "parallel loops are nested",
    ),
    "vectors_nested": (
        only(LAST, LAST_LOOPS, ["Vectorize", ["l913"], [], []], ["Vectorize", ["l914"], [], []]),
        "vectors are nested",
    ),
    "vector_of_a_reduction": (only(BLOCK, LOOPS, ["Vectorize", ["l905"], [], []]), "rror"),
    "parallel_reduction": (only(BLOCK, LOOPS, ["Parallel", ["l905"], [], []]), "rror"),
    "unroll_explosion": (
        only(LAST, LAST_LOOPS, ["Split", ["l914", None, 10**7], [1, 0], ["l1", "l2"]], ["Unroll", ["l2"], [], []]),
        "unrolled 10000000 times",
    ),
    "vector_too_long": (
        only(LAST, LAST_LOOPS, ["Split", ["l914", None, 10**6], [1, 0], ["l1", "l2"]], ["Vectorize", ["l2"], [], []]),
        "longer than 1024",
    ),
    "endless_tile": (only(LAST, LAST_LOOPS, ["Split", ["l914", None, 2**31], [1, 0], ["l1", "l2"]]), "steps"),
    "deep_nest": (only(BLOCK, *[["AddUnitLoop", ["b900"], [], [f"l{i}"]] for i in range(1, 1900)]), "makes 1899 loops"),
    "deep_nest_allowed": (only(BLOCK, *[["AddUnitLoop", ["b900"], [], [f"l{i}"]] for i in range(1, 500)]), "too deep"),
    "many_copies": (
        only(BLOCK, *[["CacheRead", ["b900", []], [0, "global"], [f"b{i}"]] for i in range(1, 900)]),
        "899 blocks",
    ),
    "gpu_threads": (only(LAST, LAST_LOOPS, ["Bind", ["l912"], ["threadIdx.x"], []]), "GPU threads"),
    "gpu_pipeline": (only(BLOCK, LOOPS, ["Annotate", ["l905", [0, 1]], ["software_pipeline_stage"], []]), "for GPUs"),
    "gpu_buffers": (only(BLOCK, ["Annotate", ["b900", 5], ["double_buffer_scope"], []]), "for GPUs"),
    "gpu_scopes": (only(BLOCK, ["SetScope", ["b900"], [0, "shared"], []]), "is for GPUs"),
    "false_packing": (
        only(BLOCK, ["Annotate", ["b900", True], ["meta_schedule.layout_rewrite_preproc"], []]),
        "does not copy",
    ),
    "foreign_intrinsic": (only(BLOCK, LOOPS, ["Tensorize", ["l905"], ["dot_16x4_vnni", 1], []]), "avx512vnni"),
}

# name -> (change of the line, what the report must say or None)
LINES: dict[str, tuple[Callable[[bytes], bytes], str | None]] = {
    "trunc": (lambda line: line[:700], "not records"),
    "emptyline": (lambda line: b"\n", ""),
    "emptyfile": (lambda line: b"", ""),
    "emptyline_before": (lambda line: b"\n\n" + line, None),
    "runsecs_nan": (lambda line: line.replace(b'"run_s":[0.001]', b'"run_s":[NaN]'), "not records"),
    "runsecs_negative": (lambda line: line.replace(b'"run_s":[0.001]', b'"run_s":[-1.0]'), "not records"),
    "runsecs_huge": (lambda line: line.replace(b'"run_s":[0.001]', b'"run_s":[1e999]'), "not records"),
    "runsecs_none": (lambda line: line.replace(b'"run_s":[0.001]', b'"run_s":[]'), "not records"),
    "oversized": (lambda line: line.replace(b'"source"', b'"x":"' + b"x" * (1 << 20) + b'","source"'), "not records"),
    "oversized_before": (lambda line: b"[" * (3 << 20) + b"\n" + line, None),
    "not_utf8": (lambda line: line.replace(b"sketch", b"sk\xff\xfetch"), "not records"),
    "utf16": (lambda line: line.decode().encode("utf-16"), "not records"),
    "surrogate": (lambda line: line.replace(b"sketch", b"\\ud800"), "not records"),
    "nul": (lambda line: line.replace(b"sketch", b"sk\0etch"), "not records"),
    "duplicate_key": (lambda line: line.replace(b'"source"', b'"op":"other","source"'), "occurs twice"),
    "deep": (lambda line: line.replace(b'"source"', b'"x":' + b"[" * 5000 + b"]" * 5000 + b',"source"'), "not records"),
    "no_object": (lambda line: b"[" + line[:-1] + b"]\n", "not records"),
    "other_key": (lambda line: line.replace(b'"exact":"', b'"exact":"0'), "not records"),
    "unknown_field": (lambda line: line.replace(b'"source"', b'"target":{"kind":"cuda"},"source"'), None),
    "torn_last_line": (lambda line: line + line[:300], None),
}


@pytest.fixture(scope="module")
def stock_trace(tasks_of: Any, target: Any) -> Any:
    """A function that samples a trace of TVM's own space for a workload."""

    def sample(mod: Any) -> Trace:
        with pytest.MonkeyPatch.context() as patch:
            # TuneContext imports the intrinsics of all machines, which takes 7 to 20 s; none is needed here.
            patch.setitem(sys.modules, "tvm.s_tir.tensor_intrin", ModuleType("tvm.s_tir.tensor_intrin"))
            context = ms.TuneContext(
                mod=mod, target=target, space_generator="post-order-apply", rand_state=1, num_threads=1
            ).clone()
        for design in context.generate_design_space():
            for seed in range(1, 9):
                schedule = Schedule(mod, seed=seed, error_render_level="none")
                type(design.trace)(design.trace.insts, {}).apply_to_schedule(schedule, remove_postproc=True)
                schedule.enter_postproc()
                if all(step.apply(schedule) for step in context.space_generator.postprocs):
                    found: Trace = export_trace(schedule.trace)
                    return found
        raise AssertionError("no schedule of TVM's own space is legal")

    return sample


@pytest.fixture
def outcomes(
    names: list[str], tmp_path: Path, nets: Any, tasks_of: Any, make_record: Any, stock_trace: Any, target: Any
) -> dict[str, dict[str, Any]]:
    """Compile with every case of these names, and give what came of each."""
    folder = tmp_path
    net = nets.conv(channels=8, out=16, size=8)
    (task,) = tasks_of(net)
    (other,) = tasks_of(nets.matmul())
    good = stock_trace(task.mod)
    cases = []
    for name, (change, _) in TRACES.items():
        trace = copy.deepcopy(good)
        change(trace)
        cases.append((name, _line(make_record(task, trace))))
    line = _line(make_record(task, good))
    cases += [(name, change(line)) for name, (change, _) in LINES.items()]
    cases.append(("swapped", _line(make_record(task, stock_trace(other.mod)))))
    cases.append(("other_workload", _line(make_record(other, good))))
    listed = []
    for name, content in cases:
        path = folder / f"{name}.jsonl"
        path.write_bytes(content)
        listed.append([name, {"user_records": str(path)}])
    (folder / "cuda-h100.jsonl").write_bytes(line)
    listed.append(["wrong_target", {"user_records": str(folder / "cuda-h100.jsonl")}])
    (folder / "net.json").write_text(tvm.ir.save_json(net))
    (folder / "target.json").write_text(json.dumps(UNOPTIMISED))
    np.save(folder / "data.npy", nets.array(1, 8, 8, 8))
    (folder / "cases.json").write_text(json.dumps([case for case in listed if case[0] in names]))
    return _compile_all(folder)


def _line(record: Any) -> bytes:
    """As `encode_record`, but traces that it would refuse to read again are written too."""
    try:
        return encode_record(record)
    except RegistryError:
        return msgspec.json.encode(record) + b"\n"


def _compile_all(folder: Path) -> dict[str, dict[str, Any]]:
    roots = {str(Path(package.__file__).parents[1]) for package in (tunehub, tunehub_registry) if package.__file__}
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TUNEHUB_")},
        "PYTHONPATH": os.pathsep.join([*sorted(roots), str(Path(__file__).parents[3])]),
        "TUNEHUB_CACHE": str(folder / "cache"),
        "TVM_NUM_THREADS": "2",
    }
    script = Path(__file__).with_name("compile_cases.py")
    done = subprocess.run(
        [sys.executable, str(script), str(folder)], env=environment, capture_output=True, text=True, timeout=600
    )
    lines = [json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")]
    last = lines[-1]["name"] if lines else "none"
    assert done.returncode == 0, f"the process ended with {done.returncode} in case {last}:\n{done.stderr[-2000:]}"
    return {item["name"]: item for item in lines if "started" not in item}


EXPECTED: dict[str, str | None] = {
    **{name: why for name, (_, why) in TRACES.items()},
    **{name: why for name, (_, why) in LINES.items()},
    "swapped": "rror|not|Check",
    "other_workload": "",
    "wrong_target": "",
}


# Refused by a rule that another case shows in every run: of decisions, of layouts, of GPUs, of lines.
LIKE_OTHERS = {
    *("decneg", "zero1", "allzero", "decstr", "decidxneg", "decsmall"),
    *("layout_dropped", "layout_of_input", "gpu_buffers"),
    *("emptyline", "runsecs_negative", "runsecs_huge", "runsecs_none"),
    *("utf16", "surrogate", "nul", "no_object", "other_key"),
}


def complaint(outcome: dict[str, Any], why: str | None) -> str | None:
    """What is wrong with what came of a case of which the report must say why."""
    if outcome["difference"] > 1e-4 or outcome["failures"]:
        return f"it differs by {outcome['difference']}: {outcome['failures']}"
    if why is None:
        return None if outcome["rung"] == "user" else f"it was refused: {outcome['reasons']}"
    if outcome["rung"] not in ("template", "transfer"):  # what serves without this record
        return f"{outcome['rung']} serves"
    reasons = [reason for reason in outcome["reasons"] if "mcpu" not in reason and "no package" not in reason]
    return None if re.search(why, "\n".join(reasons)) else f"the reason is not said: {outcome['reasons']}"


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([name for name in EXPECTED if name not in LIKE_OTHERS], id="one of each rule"),
        pytest.param(sorted(LIKE_OTHERS), id="like others", marks=pytest.mark.sweep),
    ],
)
def test_the_compile_is_right_and_the_report_says_why(names: list[str], outcomes: dict[str, dict[str, Any]]) -> None:
    """In one test, so that one process of pytest-xdist compiles all."""
    assert outcomes.keys() == {*names}
    found = {name: complaint(outcome, EXPECTED[name]) for name, outcome in outcomes.items()}
    assert not {name: said for name, said in found.items() if said is not None}
