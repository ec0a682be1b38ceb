from __future__ import annotations

import pytest

from tunehub_builder.review.releases import release_notes
from tunehub_registry.compat import Compat, RecordReplay, ReleaseReplay

pytestmark = pytest.mark.fast


def test_each_release_is_summed_up_and_each_failure_named() -> None:
    good = RecordReplay(tuner="template", key="a" * 32, outcome="ok", text="f" * 32)
    bad = RecordReplay(tuner="template", key="b" * 32, outcome="failed", reason="no such intrinsic")
    compat = Compat(
        name="llvm-znver5", version="0.1.0", package="0" * 64, created_by="x", created="2026-11-23",
        releases=(ReleaseReplay(tvm="0.26.0", records=(good, bad)), ReleaseReplay(tvm="0.19.0")),
    )  # fmt: skip
    assert [(note.where, note.reason) for note in release_notes(compat)] == [
        ("TVM 0.26.0", "1 failed, 1 ok"),
        ("b" * 32, "fails on TVM 0.26.0: no such intrinsic"),
        ("TVM 0.19.0", "no records for it"),
    ]
