from __future__ import annotations

import json
import subprocess
import sys

import pytest

import tunehub

pytestmark = pytest.mark.fast

_HEAVY = (
    "tvm",
    "numpy",
    "requests",
    "rich",
    "sqlite3",
    "click",
    "msgspec",
    "packaging",
    "filelock",
    "platformdirs",
    "boto3",
    "tuf",
    "urllib3",
)
_PROBE = """
import json, sys, time
before = set(sys.modules)
begin = time.process_time()  # not the clock: other processes may be busy
import tunehub
took = time.process_time() - begin
print(json.dumps({"ms": 1e3 * took, "modules": sorted(set(sys.modules) - before)}))
"""


def probe(code: str) -> dict[str, object]:
    path = json.dumps(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {path}\n{code}"], capture_output=True, text=True, check=True
    )
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_importing_is_light() -> None:
    answer = probe(_PROBE)
    modules = answer["modules"]
    assert isinstance(modules, list)
    assert not [name for name in modules if name.partition(".")[0] in _HEAVY]
    best = min(float(str(probe(_PROBE)["ms"])) for _ in range(3))
    assert best < 50


def test_every_public_name_is_there_and_listed() -> None:
    for name in tunehub.__all__:
        assert getattr(tunehub, name) is not None
        assert name in dir(tunehub)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tunehub.nothing


def test_opening_a_hub_does_not_import_what_is_for_people_or_for_the_network() -> None:
    """With the embedded registry alone, as without settings."""
    code = """
import json, sys
import tunehub.compiler.hub, tunehub.api
from tunehub_registry.target import TargetDescriptor
target = TargetDescriptor(kind="llvm", model="znver5", arch="x86_64", features=("avx512f",))
hub = tunehub.compiler.hub.open_hub(target, tvm_version="0.27.0")
hub.close()
print(json.dumps({"modules": sorted(sys.modules)}))
"""
    modules = probe(code)["modules"]
    assert isinstance(modules, list)
    for name in ("tvm", "numpy", "requests", "rich", "click", "tuf", "boto3", "urllib3", "securesystemslib"):
        assert name not in modules
