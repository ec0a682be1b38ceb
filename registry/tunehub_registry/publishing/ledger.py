"""The port of ledgers, and the loop around them: read, change, commit, and all over again when another was first.

A ledger has one commit point, a file that is replaced on condition that it is what was read. Whatever happens to a
writer, readers see the state before or the state after. When the answer to a commit is lost, the next round reads the
state again and finds the change done: changes are idempotent.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tunehub_registry.publishing.changes import Change, NameState, apply_change
from tunehub_registry.publishing.exceptions import UnfinishedError
from tunehub_registry.stores.port import ConflictError, FullStoreError, StoreError, UnreachableError, WritableStore

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """How long a transaction is tried again after an obstacle: in all, and while the store is not reached; seconds."""

    total_s: float = 300.0
    unreachable_s: float = 60.0
    first_pause_s: float = 0.02
    longest_pause_s: float = 2.0


DEFAULT_RETRY = RetryPolicy()


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerState:
    """The names that were asked for, as they are, and what the ledger needs to commit over that state."""

    names: Mapping[str, NameState | None]
    token: object


class Ledger(Protocol):
    """Where a registry says what is published."""

    @property
    def store(self) -> WritableStore:
        """Where its files are."""

    def begin(self) -> None:
        """Called once for each transaction, before the first `read`."""

    def read(self, names: Iterable[str]) -> LedgerState:
        """The present state of some names.

        Raises NotInitialisedError, RoleError when the keys at hand may not change a name, and what stores and trust
        raise.
        """

    def commit(self, state: LedgerState, changed: Mapping[str, NameState]) -> None:
        """Replace the state by one with `changed` names.

        Raises ConflictError when the state is no longer the present one; what stores raise. After UnreachableError it
        is not known whether it was committed.
        """


def transact(
    ledger: Ledger, change: Change, *, retry: RetryPolicy = DEFAULT_RETRY, upload: Callable[[], None] | None = None
) -> dict[str, NameState]:
    """Commit a change; returns the new states of the names that were touched.

    `upload` writes what the change refers to. It is called before each commit, so it has to know what it did already; a
    change that is refused uploads nothing.

    Raises UnfinishedError when time is over, what the change raises, and what the ledger raises.
    """
    persist(ledger.begin, address=ledger.store.address, retry=retry)

    def attempt() -> dict[str, NameState]:
        state = ledger.read(change.names)
        changed = apply_change(change, state.names)
        if changed:
            if upload is not None:
                upload()
            ledger.commit(state, changed)
        return {**{name: known for name, known in state.names.items() if known is not None}, **changed}

    return persist(attempt, address=ledger.store.address, retry=retry)


def persist(attempt: Callable[[], T], *, address: str, retry: RetryPolicy = DEFAULT_RETRY) -> T:
    """Call `attempt` until it neither loses a race nor misses the store; pauses have jitter and grow. A full store is
    not waited for.

    Raises UnfinishedError when time is over, and what else `attempt` raises.
    """
    first: float | None = None  # the time of the first obstacle: an upload before it may take as long as it does
    first_miss = 0.0
    misses = 0
    while True:
        began = time.monotonic()
        try:
            return attempt()
        except ConflictError as error:
            misses = 0
            # About as long as an attempt takes, so that only some of many writers try at a time.
            pause = time.monotonic() - began
            obstacle: StoreError = error
        except FullStoreError:
            raise
        except UnreachableError as error:
            misses += 1
            pause = retry.first_pause_s * 2.0 ** min(misses, 16)
            obstacle = error
        now = time.monotonic()
        first = now if first is None else first
        first_miss = now if misses <= 1 else first_miss
        if now - first > retry.total_s or now - first_miss > retry.unreachable_s:
            raise _unfinished(obstacle, address, now - first) from obstacle
        time.sleep(random.uniform(0, min(pause, retry.longest_pause_s)))


def _unfinished(error: StoreError, address: str, seconds: float) -> UnfinishedError:
    reason = f"not finished after {seconds:.0f} s; the last obstacle: {error}"
    remedy = "run it again: what was committed is recognised, and nothing is published twice"
    return UnfinishedError(reason, address=address, remedy=remedy)
