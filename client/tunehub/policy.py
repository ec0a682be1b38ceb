"""What happens when something goes wrong with records: an error, or one warning and a compile that goes on."""

from __future__ import annotations

import threading
import warnings

from tunehub.exceptions import HubError, HubWarning


class Policy:
    """Strict: the first problem is raised. Default: warn once per cause, and remember it for the report."""

    def __init__(self, *, strict: bool) -> None:
        """`strict` decides for good."""
        self.strict = strict
        self.notes: list[str] = []
        self.raised: HubError | None = None
        self._seen: set[str] = set()
        self._held: list[str] | None = None
        self._lock = threading.Lock()

    def problem(self, error: HubError) -> None:
        """Raise `error` in strict mode, warn otherwise."""
        if self.strict:
            self.raised = error
            raise error
        self.warn(str(error), error.cause)

    def warn(self, text: str, cause: str | None = None) -> None:
        """Warn in any mode, once per cause."""
        with self._lock:
            if (cause or text) in self._seen:
                return
            self._seen.add(cause or text)
            self.notes.append(text)
            if self._held is not None:
                self._held.append(text)
                return
        _warn(text)

    @property
    def warnings(self) -> int:
        """How many warnings there were."""
        return len(self._seen)

    def note(self, text: str) -> None:
        """Put a remark into the report, without a warning."""
        self.notes.append(text)

    def hold(self) -> None:
        """Keep warnings back until `release`: what goes wrong in one opening is one warning."""
        self._held = []

    def release(self) -> None:
        """Give the warnings kept back as one."""
        held, self._held = self._held, None
        if held:
            _warn("; ".join(held))


def _warn(text: str) -> None:
    # Warnings made errors by the user (`-W error`) stay what they are: that is asked for.
    warnings.warn(text, HubWarning, stacklevel=4)
