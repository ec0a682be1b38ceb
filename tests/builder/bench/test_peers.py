from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pytest

from tunehub_builder.bench.peers import PEERS, chosen_peers, version_of
from tunehub_builder.exceptions import BenchError

pytestmark = pytest.mark.fast

MODEL = Path("folder/model.onnx")


def installed(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in modules else None)


def names(asked: Sequence[str] | None, model: Path | None = MODEL) -> list[str]:
    return [each.name for each in chosen_peers(asked, model, "no file").runtimes]


def test_whoever_is_not_installed_is_left_out_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "tvm", "onnxruntime")
    chosen = chosen_peers(None, MODEL)
    assert [each.name for each in chosen.runtimes] == ["default", "onnxruntime"]
    assert chosen.left_out["openvino"] == "it is not installed: pip install openvino"


def test_whoever_is_asked_for_has_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "tvm")
    assert names(["default"]) == ["default"] and names([]) == []
    with pytest.raises(BenchError, match=r"--against openvino: it is not installed: pip install openvino"):
        chosen_peers(["default", "openvino"], MODEL)
    with pytest.raises(BenchError, match=r"--against tensorrt: expected some of default,onnxruntime"):
        chosen_peers(["tensorrt"], MODEL)


def test_what_does_not_read_the_model_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, *(peer.module for peer in PEERS.values()))
    chosen = chosen_peers(None, Path("model.pt2"))
    assert "onnxruntime" not in [each.name for each in chosen.runtimes]
    assert chosen.left_out["onnxruntime"] == "it does not read model.pt2, only .onnx: export the model"


def test_without_a_model_the_reason_is_everybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, *(peer.module for peer in PEERS.values()))
    chosen = chosen_peers(None, None, "no file")
    assert not chosen.runtimes and set(chosen.left_out.values()) == {"no file"}
    with pytest.raises(BenchError, match="--against default: no file"):
        chosen_peers(["default"], None, "no file")


def test_versions_are_those_installed() -> None:
    pytest.importorskip("onnxruntime")
    import onnxruntime

    assert version_of("onnxruntime") == onnxruntime.__version__
    assert version_of("nobody") is None
