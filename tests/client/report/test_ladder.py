from __future__ import annotations

from collections.abc import Iterator

import pytest

from tunehub.report.ladder import StepRejected, walk

pytestmark = pytest.mark.fast

NO_FIT = StepRejected(step="exact", reason="does not fit", package="p 1", record="conv")
NO_FASTER = StepRejected(step="anchor", reason="no faster")


def _rejecting(_request: str) -> Iterator[StepRejected]:
    yield NO_FIT
    yield NO_FIT


def _nothing(_request: str) -> tuple[StepRejected, ...]:
    return ()


def test_the_first_step_that_serves_ends_the_walk() -> None:
    tried = []

    def serving(request: str) -> Iterator[str | StepRejected]:
        for name in ("first", "second"):
            tried.append(name)
            yield f"{request} by the {name}"

    def never(_request: str) -> Iterator[str]:
        raise AssertionError("a later step is not asked")

    assert walk((_nothing, _rejecting, serving, never), "conv") == ("conv by the first", (NO_FIT, NO_FIT))
    assert tried == ["first"], "one outcome is enough"


def test_without_any_that_serves_all_that_was_rejected_is_told() -> None:
    assert walk((_nothing,), "conv") == (None, ())
    assert walk((_rejecting, _nothing), "conv") == (None, (NO_FIT, NO_FIT))


def test_what_speaks_against_every_record_is_said_once() -> None:
    of_template = StepRejected(step="template", reason="no faster", template="conv2d")
    again = StepRejected(step="transfer", reason="no faster")
    steps = (lambda _: (NO_FASTER, NO_FASTER), lambda _: (again,), lambda _: (of_template,))
    assert walk(steps, "conv") == (None, (NO_FASTER, of_template))
