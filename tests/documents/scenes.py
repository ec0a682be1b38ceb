"""What readers of a document have before they begin, files and names in Python; which of its steps no test does, and
why."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from tests.documents.blocks import ROOT, Step

ELSEWHERE = {
    "docs/tutorial.md": "tests/end_to_end/test_tutorial.py, and in an environment of its own tests/release",
    "docs/llm.md": "tests/end_to_end/test_llm.py",
    "docs/keys.md": "tests/client/cli/test_keys_page.py",
    "docs/reference.md": "tests/client/cli/test_reference.py",
    "docs/relay.md": "TVM up to 0.19: tests/legacy",
}
"""Documents that another test goes through."""

LEFT_OUT = {
    r"(\.venv|python3 -m venv|pip install|nox)\b|\S*/(pip install|nox\b)|git tag|CUDA_VISIBLE_DEVICES": "installs, or "
    "releases: nox -s release makes environments of the wheel and its extras",
    r"(TUNEHUB_\w+=\S+ )?python -m (benchmarks|tvm)\b|dask ": "hours, or several machines: tests/benchmarks",
    r"\S*tunehub (tune|check|attest|replay|rows|distill|demo|bench|calibrate|catalogue)\b": "measures, or takes long",
    r"tunehub (pack|submit|review|publish s3://hub)\b": "needs what a run of tuning left: tests/builder",
    r".*(s3://(bucket|our-mirror)|https://registry\.example)": "somebody's server",
    r".*python compile\S*\.py|tunehub import\b|tunehub export tophub|.*my-registry": "files of readers: tests/builder",
    r"import torch\b|from onnxruntime.quantization": "PyTorch's programs and calibration data are the reader's: "
    "tests/builder/networks, tests/client/graph/quantised",
}
"""Steps that no document's test does; they are read as far as the command line can be, without being done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """`files` makes what there is in a folder; `prelude` is Python before the first step. `left_out` are steps besides
    `LEFT_OUT`, `swapped` texts that stand for others. `alone`: each step begins with the files as they were."""

    files: Callable[[Path], object] = lambda folder: None
    prelude: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)
    swapped: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False

    def reason(self, step: Step) -> str | None:
        """Why a step is not done, None where it is."""
        patterns = {**LEFT_OUT, **self.left_out}.items()
        return next((reason for pattern, reason in patterns if re.match(pattern, step.text)), None)

    def text(self, step: Step) -> str:
        """A step as it is done."""
        text = step.text.replace(" [--json]", "")
        for words, others in self.swapped.items():
            text = text.replace(words, others)
        return text


def model(folder: Path, *dims: Any, name: str = "data", size_of_open: int = 2) -> None:
    """`model.onnx`: a product along the last of `dims`, and ReLU; `x.npz` for it."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = np.random.default_rng(0).standard_normal((dims[-1], 8)).astype("float32")
    graph = helper.make_graph(
        [helper.make_node("MatMul", [name, "weights"], ["product"]), helper.make_node("Relu", ["product"], ["prob"])],
        "model",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("prob", TensorProto.FLOAT, [*dims[:-1], 8])],
        [numpy_helper.from_array(weights, "weights")],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), str(folder / "model.onnx"))
    shape = [size if isinstance(size, int) else size_of_open for size in dims]
    np.savez(folder / "x.npz", **{name: np.ones(shape, "float32")})


def saved_module(folder: Path) -> None:
    """`model.json`: the model as a module of TVM's, which nothing else is needed to read."""
    import tvm

    from tunehub_builder import networks

    model(folder, "batch", 16)
    module = networks.open_onnx_file(str(folder / "model.onnx")).relax_module()
    (folder / "model.json").write_text(tvm.ir.save_json(module))


def tunehub(*words: object) -> None:
    """A command that prepares a scene."""
    from tunehub.cli import cli

    found = CliRunner().invoke(cli, list(map(str, words)))
    assert found.exit_code == 0, (words, found.output)


def registry(folder: Path, *published: str) -> None:
    """A signed registry in `reg` with a publisher acme, its root trusted, keys by their roles; packages of this
    repository in `dist`, of which some are published."""
    for role in ("root", "targets", "online", "acme"):
        tunehub("key", "new", folder / f"{role}.pem")
    keys = ("--targets-key", folder / "targets.pem", "--online-key", folder / "online.pem")
    tunehub("init", folder / "reg", "--root-key", folder / "root.pem", *keys, "--save-root", folder / "root.json")
    tunehub("delegate", folder / "reg", "acme", "--key", folder / "acme.pem.pub", "--names", "llvm-*", *keys)
    (folder / "dist").mkdir()
    (folder / "packages").mkdir()
    for version in ("0.2.0", "0.3.0"):
        for place in ("dist", "packages"):
            shutil.copy(ROOT / "packages" / f"llvm-znver5-{version}.tunepkg", folder / place)
    tunehub("trust", "add", folder / "reg", folder / "root.json", "--sha256", sha256(folder / "root.json"))
    for version in published:
        publisher = ("--key", folder / "acme.pem", "--online-key", folder / "online.pem")
        tunehub("publish", folder / "reg", folder / "dist" / f"llvm-znver5-{version}.tunepkg", *publisher)


def sha256(path: Path) -> str:
    """The hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def acme(folder: Path) -> None:
    """What a publisher sends to who runs a registry."""
    tunehub("key", "new", folder / "acme.pem")


def trusting(folder: Path) -> None:
    """A registry that is not trusted yet, and the key of a witness."""
    registry(folder)
    tunehub("trust", "remove", folder / "reg")
    tunehub("key", "new", folder / "witness")


_HERE = "import tvm\nimport tunehub\ntarget = tunehub.host_target()\n"
_MODULE = _HERE + (
    "from tunehub_builder import networks\n"
    "mod = networks.open_onnx_file('model.onnx').relax_module()\n"
    "import numpy as np\n"
    "inputs = [np.ones((2, 3, 16), 'float32')]\n"
)
_BUCKET = {"s3://tunehub-registry": "reg"}

SCENES: Mapping[str, Scene] = {
    "README.md": Scene(
        files=lambda folder: model(folder, "batch", 16),
    ),
    "docs/install.md": Scene(
        files=lambda folder: model(folder, "batch", 16),
        prelude="import numpy as np\narray = np.ones((2, 16), 'float32')\n",
    ),
    "docs/compile.md": Scene(files=lambda folder: model(folder, "batch", "sequence", 16), prelude=_MODULE),
    "docs/deploy.md": Scene(
        files=lambda folder: model(folder, "batch", 3, 224, 224, size_of_open=1),
        left_out={
            r"import (ctypes|json)": "another process with TVM's runtime alone: tests/client/deploy/test_library.py",
            r"g\+\+|\./run|cp \$SITE": "built and run by tests/client/deploy/test_library.py",
        },
    ),
    "docs/import-export.md": Scene(files=lambda folder: model(folder, 512, 512)),
    "docs/pin.md": Scene(
        files=lambda folder: (saved_module(folder), registry(folder, "0.2.0", "0.3.0")),
        prelude=_HERE + "mod = tvm.ir.load_json(open('model.json').read())\n",
        swapped=_BUCKET,
        alone=True,
        left_out={
            r".*attested>=2'": "needs two who attest: tests/client/cli/test_attestations.py",
            r"tunehub (lock --presign|mirror)|.*/media/mirror": "a bucket, a disk: tests/client/cli/test_lock.py",
            r"tunehub lock (--upgrade|'llvm-znver5>=|llvm-znver6)": "versions to come: tests/client/cli/test_lock.py",
            r"tunehub sync|executable = tunehub.compile\(mod, target, lock": "of the lock before",
            r"tunehub list --json": "a pipe into jq",
            r"tunehub lock --check": "of the lock before: tests/client/cli/test_lock.py",
        },
    ),
    "docs/publish.md": Scene(files=lambda folder: registry(folder), swapped=_BUCKET, left_out={
        r"tunehub attach": "a replay of minutes: tests/builder/replay",
    }),
    "docs/registry.md": Scene(files=acme, swapped=_BUCKET, left_out={
        r".*(env:WITNESS_PEM|env:ONLINE_PEM)": "keys of a job: tests/client/cli",
    }),
    "docs/attest.md": Scene(
        files=lambda folder: registry(folder, "0.3.0"),
        prelude="",
        left_out={
            r"with tunehub.context": "needs two who attest",
        },
    ),
    "docs/new-tvm.md": Scene(left_out={r"tunehub attach": "a replay of minutes: tests/builder/replay"}),
    "docs/quantised.md": Scene(
        left_out={r"import onnx\n|from tunehub_builder": "a quantised model: tests/client/graph/quantised"}
    ),
    "docs/report.md": Scene(files=lambda folder: model(folder, 2, 3, 16), prelude=_MODULE),
    "docs/trust.md": Scene(files=trusting, swapped={**_BUCKET}),
}  # fmt: skip
"""By document; one without a scene has nothing but what `LEFT_OUT` names."""
