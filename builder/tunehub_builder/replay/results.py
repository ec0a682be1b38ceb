"""Results of records that a release cannot use, or that nobody could try."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tunehub.exceptions import typed_last_line
from tunehub_registry.compat import NetworkSample, RecordReplay

MAX_REASON = 300  # characters, as the document allows
OnBegin = Callable[[str, str], None]  # a tuner and a key, or nothing and the name of a network


def failure(tuner: str, key: str, error: BaseException | str) -> RecordReplay:
    """The result of a record that the release cannot use."""
    return RecordReplay(tuner=tuner, key=key, outcome="failed", reason=_reason(error))


def failed_sample(network: str, error: BaseException | str) -> NetworkSample:
    """The result of a network that cannot be compiled, or that computes something else."""
    return NetworkSample(network=network, outcome="failed", reason=_reason(error))


def not_run(tuner: str, keys: Collection[str], reason: str) -> list[RecordReplay]:
    """The results of records that nobody could try."""
    return [RecordReplay(tuner=tuner, key=key, outcome="not_run", reason=reason[:MAX_REASON]) for key in keys]


def _reason(error: BaseException | str) -> str:
    reason = error if isinstance(error, str) else typed_last_line(error)
    return reason[:MAX_REASON] or "no reason given"
