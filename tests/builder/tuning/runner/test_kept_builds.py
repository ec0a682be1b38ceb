"""What is judged on a GPU may be built ahead: whoever has the device loads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunehub.compiler.measure.session import packed, unpacked
from tunehub_builder.tuning.journal import KnobChoice
from tunehub_builder.tuning.runner.again_worker import CudaAgainSession, LookingSession
from tunehub_builder.tuning.runner.cuda_worker import PLAIN
from tunehub_builder.tuning.runner.kept_builds import KeptBuilds

pytestmark = pytest.mark.slow
CHOICE = KnobChoice(template="t", version=1, knobs={})
BROKEN = KnobChoice(template="broken", version=1, knobs={})


class _OnCpu:
    """Modules are compiled for a CPU, and a choice of knobs is the workload as it is."""

    _modules: dict[str, Any]

    def candidate(self, task: str, target: Any, candidate: Any) -> Any:
        if candidate == BROKEN:
            raise ValueError("no such tile")
        return self._modules[task]

    def default(self, task: str, target: Any) -> Any:
        return self._modules[task]

    def _build_plainly(self, task: str, target: Any) -> None:
        self._keep(PLAIN, self._modules[task], target)

    def _keep(self, number: int, mod: Any, target: Any) -> None: ...

    def _compiled(self, mod: Any, target: Any) -> Any:
        import tvm

        return tvm.tirx.build(mod, target=tvm.target.Target(target))

    def _kernels(self, library: Any, target: Any) -> tuple[str, bytes]:
        return "source", b"code"

    def _device(self) -> Any:
        import tvm

        return tvm.cpu()


class _Ahead(_OnCpu, LookingSession):
    _keep = LookingSession._keep
    _build_plain = _OnCpu._build_plainly


class _Judging(_OnCpu, CudaAgainSession):
    _keep = CudaAgainSession._keep
    known: list[bytes]

    def _know(self, target: Any, source: str, cubin: bytes) -> None:
        self.known.append(cubin)


def test_what_was_built_ahead_is_loaded_and_not_built(
    matmul: Any, target: dict[str, Any], tvm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, judging = _Ahead(None, tmp_path / "built"), _Judging(str(tmp_path / "lock"), folder=tmp_path / "built")
    judging.known = []
    for session in (ahead, judging):
        session.task("t", tvm.ir.save_json(matmul))
    errors = ahead.build_ahead("t", target, [CHOICE, BROKEN])
    assert [str(error)[:12] for error in errors] == ["None", "None", "None", "no such tile"]
    assert len(list((tmp_path / "built").iterdir())) == 3
    monkeypatch.setattr(LookingSession, "_keep", lambda *_: pytest.fail("built again"))
    assert ahead.build_ahead("t", target, [CHOICE]) == [None] * 3

    monkeypatch.setattr(judging, "_compiled", lambda *_: pytest.fail("built"))
    assert judging.build_case("t", target, [CHOICE])[:2] == [None, None]
    assert judging.known == [b"code"] * 3 and judging.difference(unpacked(0), 0) == 0.0
    assert judging.time(packed(0), 1) > 0.0


def test_a_build_that_is_not_whole_is_none(tmp_path: Path) -> None:
    builds = KeptBuilds(tmp_path / "built")
    assert builds.read("x") is None and builds.read_found("x") is None
    builds.keep_found("x", ("a", "b", "c"))
    assert builds.read_found("x") == ("a", "b", "c")
    (tmp_path / "built" / "x.found").write_bytes(b"\x93\xa1a")
    assert builds.read_found("x") is None


def test_builds_of_another_workload_target_or_candidate_have_another_name(
    tmp_path: Path, target: dict[str, Any]
) -> None:
    builds = KeptBuilds(tmp_path)
    said = [(target, "t", CHOICE), (target, "u", CHOICE), (target, "t", BROKEN), ({"kind": "llvm"}, "t", CHOICE)]
    assert len({builds.name(*each) for each in said}) == 4
    assert builds.name(target, "t", CHOICE) == builds.name({**target, "keys": ["cpu"]}, "t", CHOICE)
    assert np.all([len(builds.name(*each)) == 64 for each in said])
