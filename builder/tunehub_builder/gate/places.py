"""Several places that judge at the same time, such as the GPUs of one machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import SimpleQueue
from typing import Generic, TypeVar

_Case = TypeVar("_Case")
_Place = TypeVar("_Place")
_Verdict = TypeVar("_Verdict")


def judge_at_once(
    cases: Iterable[_Case],
    places: Sequence[_Place],
    judge: Callable[[Iterator[_Case], _Place], Iterable[_Verdict]],
    stop: Callable[[], object] = lambda: None,
) -> Iterator[_Verdict]:
    """What ``judge`` yields on all ``places``, each of which takes the next case when it is free, in a thread of its
    own where there are several. Raises what the first of them raises, when the others have ended what they were at.
    Who stops asking, as Ctrl-C does, calls ``stop``, by which they end at once: a build may take minutes.
    """
    if len(places) == 1:
        yield from judge(iter(cases), places[0])
        return
    shared, found = _Shared(cases), SimpleQueue[_Verdict | _Ended]()

    def work(place: _Place) -> None:
        error = None
        try:
            for verdict in judge(shared, place):
                found.put(verdict)
        except BaseException as raised:
            shared.close()
            error = raised
        found.put(_Ended(error))

    threads = [threading.Thread(target=work, args=(place,), daemon=True) for place in places]
    for thread in threads:
        thread.start()
    try:
        yield from _until_all_ended(found, len(threads))
    except BaseException:
        shared.close()
        stop()
        raise
    finally:
        shared.close()
        for thread in threads:
            thread.join()


def _until_all_ended(found: SimpleQueue[_Verdict | _Ended], running: int) -> Iterator[_Verdict]:
    error: BaseException | None = None
    while running:
        item = found.get()
        if isinstance(item, _Ended):
            running -= 1
            error = error or item.error
        else:
            yield item
    if error is not None:
        raise error


class _Ended:
    """A place has no more to do; ``error`` if it failed."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Shared(Generic[_Case]):
    """One iterator for several threads, which can be closed early."""

    def __init__(self, cases: Iterable[_Case]) -> None:
        self._cases = iter(cases)
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[_Case]:
        return self

    def __next__(self) -> _Case:
        with self._lock:
            return next(self._cases)

    def close(self) -> None:
        with self._lock:
            self._cases = iter(())
