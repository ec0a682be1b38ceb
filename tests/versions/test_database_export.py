"""Records as a MetaSchedule database that TVM alone applies, on every supported TVM."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from . import make_data as made

pytestmark = [
    pytest.mark.tvm_versions,
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the data is for x86-64"),
]

tvm = pytest.importorskip("tvm")

CASES = [("conv_relu", "tunehub"), ("conv_sigmoid", "tunehub"), ("conv_pointwise", "tvm"), ("matmul_bias", "none")]
PLAIN = """
import json, sys
import numpy as np
import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms

target = tvm.target.Target(json.loads(sys.argv[1]))
for folder in sys.argv[2:]:
    with open(f"{folder}/module.json") as file:
        mod = tvm.ir.load_json(file.read())
    files = [f"{folder}/database/database_{name}.json" for name in ("workload", "tuning_record")]
    with target, ms.database.JSONDatabase(*files, allow_missing=False):
        applied = relax.transform.MetaScheduleApplyDatabase()(mod)
    with open(f"{folder}/applied.json", "w") as file:
        file.write(tvm.ir.save_json(applied))
    with target:
        packed = tvm.transform.Sequential([
            relax.transform.SplitLayoutRewritePreproc(),
            relax.transform.LiftTransformParams(),
            relax.transform.FoldConstant(),
        ])(applied)
    machine = relax.VirtualMachine(tvm.compile(packed, target), tvm.cpu())
    np.save(f"{folder}/y.npy", machine["main"](tvm.runtime.tensor(np.load(f"{folder}/x.npy"))).numpy())
assert not [name for name in sys.modules if name.startswith("tunehub")]
"""


@pytest.fixture(scope="module")
def target() -> Any:
    return tvm.target.Target(made.TARGET)


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory, target: Any) -> dict[tuple[str, str], tuple[Any, Any]]:
    """By net and who prepared it: what was exported, and our own schedule of its function. TVM alone has run all."""
    from tunehub.compiler.database_export import export_database
    from tunehub.compiler.pipeline import schedulings

    found, root = {}, tmp_path_factory.mktemp("exports")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("REGISTRY", "RECORDS", "STRICT", "REQUIRE"):
            patch.delenv(f"TUNEHUB_{name}", raising=False)
        patch.setenv("TUNEHUB_CACHE", str(root / "cache"))
        patch.setenv("XDG_DATA_HOME", str(root / "own"))
        for name, prepare in CASES:
            folder = root / f"{name}-{prepare}"
            folder.mkdir()
            mod = _module(name, prepare, target)
            hub = _hub()
            done = export_database(mod, folder / "database", target, hub, prepare=prepare)
            users = mod if prepare == "none" else _by_tvm(mod, target)
            text = done.module.read_text() if done.module else tvm.ir.save_json(users)
            (folder / "module.json").write_text(text)
            np.save(folder / "x.npy", np.random.default_rng(1).uniform(-1, 1, made.NETS[name][0]).astype("float32"))
            ((_, ours),) = schedulings(tvm.ir.load_json(text), target, hub).items()
            found[name, prepare] = done, ours.served
    folders = [str(root / f"{name}-{prepare}") for name, prepare in CASES]
    command = [sys.executable, "-c", PLAIN, json.dumps(made.TARGET), *folders]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=root)
    assert ran.returncode == 0, ran.stderr
    return found


def _hub() -> Any:
    from tunehub.compiler.hub import open_hub

    return open_hub(
        tvm.target.Target(made.TARGET), registry=made.DATA, require="llvm-x86-64-v2", strict=True, winograd=False
    )


def _module(name: str, prepare: str, target: Any) -> Any:
    mod = getattr(made.Nets(), name)()
    return _by_tvm(mod, target) if prepare == "none" else mod


def _by_tvm(mod: Any, target: Any) -> Any:
    """What TVM's `static_shape_tuning` makes of a module before it tunes it."""
    relax = tvm.relax
    with target:
        return tvm.transform.Sequential([
            relax.transform.DecomposeOpsForInference(),
            relax.transform.CanonicalizeBindings(),
            relax.get_pipeline("zero"),
            relax.transform.AttachAttrLayoutFreeBuffers(),
        ])(mod)  # fmt: skip


def _text(function: Any) -> str:
    """A function without its attributes; TVM's files have 1 for True."""
    lines = function.with_attr("global_symbol", "main").script(show_meta=False).splitlines()
    return "\n".join(line.replace(": True", ": 1") for line in lines if "T.func_attr" not in line)


@pytest.mark.parametrize(("name", "prepare"), CASES)
def test_tvm_alone_schedules_as_we_do_and_is_right(exports: Any, name: str, prepare: str, target: Any) -> None:
    done, ours = exports[name, prepare]
    (item,) = done.exported
    assert not done.left_out and item.rung == ("anchor" if made.NETS[name][1] is None else "exact")
    assert item.seconds == ours.run_s and item.package == ours.package
    folder = done.folder.parent
    applied = tvm.ir.load_json((folder / "applied.json").read_text())
    (function,) = [each for each in applied.functions.values() if isinstance(each, tvm.tirx.PrimFunc)]
    assert _text(function) == _text(ours.schedule.mod["main"])
    plain = tvm.relax.VirtualMachine(tvm.compile(getattr(made.Nets(), name)(), target), tvm.cpu())
    expected = plain["main"](tvm.runtime.tensor(np.load(folder / "x.npy"))).numpy()
    np.testing.assert_allclose(np.load(folder / "y.npy"), expected, rtol=1e-4, atol=1e-4)


def test_a_folder_with_files_is_left_alone(tmp_path: Path, target: Any) -> None:
    from tunehub.compiler.database_export import export_database
    from tunehub.exceptions import DatabaseFolderError

    mine = tmp_path / "database_tuning_record.json"
    mine.write_text("hours of tuning")
    mod = made.Nets().matmul_bias()
    for folder in (tmp_path, mine, tmp_path / "not" / "there"):
        with pytest.raises(DatabaseFolderError, match="name a new or empty folder"):
            export_database(mod, folder, target, hub=_hub())
    assert mine.read_text() == "hours of tuning" and list(tmp_path.iterdir()) == [mine]
