"""A user's own template, as in TVM's tutorial on writing one: by module:function, arguments as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tvm

from tunehub_builder.backends.relay.templates import create_template_task, load_template
from tunehub_builder.exceptions import TuningError

pytestmark = pytest.mark.legacy

MODULE = """
from tvm import autotvm, te

@autotvm.template("my/matmul")
def matmul(n, l, m, dtype, shape=(1, 1)):
    a = te.placeholder((n, l), name="A", dtype=dtype)
    b = te.placeholder((l, m), name="B", dtype=dtype)
    k = te.reduce_axis((0, l), name="k")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    s = te.create_schedule(c.op)
    y, x = s[c].op.axis
    config = autotvm.get_config()
    config.define_split("tile_y", y, num_outputs=2)
    config.define_split("tile_x", x, num_outputs=2)
    yo, yi = config["tile_y"].apply(s, c, y)
    xo, xi = config["tile_x"].apply(s, c, x)
    s[c].reorder(yo, xo, s[c].op.reduce_axis[0], yi, xi)
    return s, [a, b, c]

def plain(n):
    return n
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_templates.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_a_template_is_found_in_the_current_folder() -> None:
    place = "my_templates:matmul"
    template = load_template(place)
    assert (template.module, template.task) == ("my_templates", "my/matmul")
    task = create_template_task(place, template, [32, 16, 8, "float32", [4, 4]], tvm.target.Target("llvm"))
    assert task.args == (32, 16, 8, "float32", (4, 4))
    assert len(task.config_space) == 24
    with pytest.raises(TuningError, match=r"it failed with 32, 'x' \(TypeError.*mend --template-args"):
        create_template_task(place, template, [32, "x"], tvm.target.Target("llvm"))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere:matmul", "cannot import nowhere"),
        ("my_templates:matmull", "my_templates has no matmull"),
        ("my_templates:plain", r"not registered as a template; write @autotvm\.template\("),
    ],
)
def test_what_is_no_template_is_refused(place: str, message: str) -> None:
    # Its second import in one process would register the template twice, which TVM refuses.
    with pytest.raises(TuningError, match=message):
        load_template(place)


def test_the_command_tunes_it(folder: Path) -> None:
    code = f"import sys; sys.path[:0] = {sys.path!r}; from tunehub.cli import main; main()"
    arguments = [
        "tune", "--target", "host", "--template", "my_templates:matmul", "--template-args", '[32, 16, 8, "float32"]',
        "--trials", "4", "--algorithm", "random", "--work", "out", "--threads", "1", "--workers", "1", "--json",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    (summary,) = json.loads(done.stdout)["targets"]
    assert (summary["tasks"], summary["trials"], summary["failed"]) == (1, 4, 0)
    line = json.loads((folder / "out" / "autotvm.log").read_text().splitlines()[0])
    assert line["input"][1:3] == ["my/matmul", [32, 16, 8, "float32"]]
    task = json.loads((folder / "out" / "relay_tasks.jsonl").read_text())
    assert (task["counts"], task["space"]) == ({"my_templates:matmul": 1}, 24)
    command = json.loads((folder / "out" / "run.json").read_text())["sittings"][0]["command"]
    assert "--template my_templates:matmul --template-args '[32,16,8,\"float32\"]'" in command
