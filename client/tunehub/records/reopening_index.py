"""An index of records that is opened anew, once, when it turns out to be damaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tunehub.exceptions import HubError, RecordUnusableError
from tunehub.records.index import IndexDamagedError, RecordIndex

T = TypeVar("T")


class ReopeningIndex:
    """What look-ups ask in place of a `RecordIndex`: a damaged one is a problem to report, and finds nothing."""

    def __init__(
        self,
        index: RecordIndex,
        *,
        package: str,
        reopen: Callable[[], RecordIndex],
        on_problem: Callable[[HubError], None],
    ) -> None:
        """`package` is for messages, `reopen` rebuilds the index."""
        self._index = index
        self._package = package
        self._reopen = reopen
        self._on_problem = on_problem
        self._reopened = False

    @property
    def stamp(self) -> str:
        """What the index was made from."""
        return self._index.stamp

    def ask(self, ask: Callable[[RecordIndex], list[T]]) -> list[T]:
        """What `ask` finds in the index; nothing when it is damaged for good. Raises what `on_problem` raises."""
        try:
            return ask(self._index)
        except IndexDamagedError as error:
            if self._reopened:
                return []
            self._reopened = True
            return self._ask_again(ask, error)

    def close(self) -> None:
        """Close the index."""
        self._index.close()

    def _ask_again(self, ask: Callable[[RecordIndex], list[T]], error: IndexDamagedError) -> list[T]:
        try:
            fresh = self._reopen()
        except HubError as problem:
            self._on_problem(problem)
            return []
        self._index.close()
        self._index = fresh
        try:
            return ask(fresh)
        except IndexDamagedError:
            reason = f"{self._package}: the index of its records is damaged, and again after it was rebuilt: {error}"
            self._on_problem(RecordUnusableError(reason, remedy="check the disk, then run `tunehub cache clear`"))
            return []
