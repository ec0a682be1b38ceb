"""A remote board behind TVM's RPC tracker: who is there, and how a built candidate is timed on it.

Every candidate gets a session of its own. The tracker hands the boards with one key out one by one, so that no two
candidates share a board, whoever asks. The board links the candidate with its own compiler and times it with its own
clock (``python/tvm/s_tir/meta_schedule/runner/rpc_runner.py`` does the same).
"""

from __future__ import annotations

import socket
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunehub.comparison.random_arrays import random_array
from tunehub.target.nvidia import Gpu
from tunehub_builder.exceptions import TuningError
from tunehub_builder.tuning.runner.archive import LIBRARY, Archive
from tunehub_builder.tuning.runner.messages import MeasureOptions

if TYPE_CHECKING:
    from tunehub.target.types import TargetLike
    from tunehub.tir.types import Device, DeviceTensor

_CONNECT_S, _REGISTER_S = 5.0, 3.0
_POLL_S = 0.05
_FILL = "tvm.contrib.random.random_fill_for_measure"


@dataclass(frozen=True, kw_only=True, slots=True)
class Board:
    """Where an RPC tracker listens, and the key under which one or more alike boards registered there."""

    host: str
    port: int
    key: str

    @property
    def place(self) -> str:
        """``host:port`` of the tracker."""
        return f"{self.host}:{self.port}"


def board_at(tracker: str | None, key: str | None) -> Board | None:
    """The board of ``--rpc`` (HOST:PORT) and ``--rpc-key``. Raises TuningError when only one of them is given."""
    if tracker is None and key is None:
        return None
    if tracker is None or key is None:
        raise TuningError("a device behind an RPC tracker needs both --rpc HOST:PORT and --rpc-key KEY")
    host, _, port = tracker.rpartition(":")
    return Board(host=host, port=int(port), key=key)


def require_boards(board: Board) -> int:
    """How many boards have registered with the key.

    Raises TuningError when no tracker listens there, or no board comes within some seconds: TVM waits for ever.
    """
    patience = time.monotonic() + _REGISTER_S
    while board.key not in (keys := registered(board)):
        if time.monotonic() > patience:
            raise _missing(board, keys)
        time.sleep(0.2)  # a server that has just been started registers soon
    return keys.count(board.key)


def registered(board: Board) -> list[str]:
    """The key of each server that the tracker knows. Raises TuningError when no tracker answers."""
    from tvm import rpc

    try:
        socket.create_connection((board.host, board.port), timeout=_CONNECT_S).close()
        return _keys(rpc.connect_tracker(board.host, board.port).summary())
    except Exception as error:  # also whatever something that is no tracker answers
        remedy = "start one with `python -m tvm.exec.rpc_tracker`, or mend --rpc HOST:PORT"
        raise TuningError(f"no RPC tracker answers at {board.place} ({error}); {remedy}") from error


def _keys(summary: dict[str, Any]) -> list[str]:
    return [str(server["key"]).partition(":")[2] for server in summary["server_info"]]  # "server:rasp4b"


def _missing(board: Board, keys: list[str]) -> TuningError:
    known = ", ".join(sorted(set(keys))) or "none"
    remedy = f"on the device run `python -m tvm.exec.rpc_server --tracker {board.place} --key {board.key}`"
    return TuningError(f"the tracker {board.place} has no device {board.key!r} (it has: {known}); {remedy}")


class Visit:
    """A session on one of the boards with a key, and a candidate that is there."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.session: Any = None

    def begin(self, limit_s: float) -> None:
        """Wait until a board is free and take it; the board ends a session that takes longer than ``limit_s``.

        Raises TuningError when there is none any more.
        """
        from tvm import rpc

        tracker = rpc.connect_tracker(self._board.host, self._board.port)
        patience = time.monotonic() + _REGISTER_S
        while not (summary := tracker.summary())["queue_info"].get(self._board.key, {}).get("free", 0):
            if self._board.key in _keys(summary):
                patience = time.monotonic() + _REGISTER_S
            elif time.monotonic() > patience:
                raise _missing(self._board, _keys(summary))
            time.sleep(_POLL_S)
        self.session = tracker.request(self._board.key, session_timeout=limit_s)

    def measure(
        self, target: TargetLike, archive: Archive, best_s: float | None, options: MeasureOptions
    ) -> tuple[float, ...]:
        """Seconds of a run, as ``runner.worker.TraceSession.measure``, without a look at what else runs there."""
        import tvm

        with tempfile.TemporaryDirectory(prefix="tunehub-") as folder:
            path = Path(folder) / LIBRARY
            path.write_bytes(archive.library)
            self.session.upload(str(path))
        library = self.session.load_module(LIBRARY)
        kind = str(tvm.target.Target(target).kind.name)
        device = self.session.device("cpu" if kind == "llvm" else kind)
        arguments = [self._argument(shape, dtype, device) for shape, dtype in archive.shapes]

        def samples(runs: int, repeats: int) -> tuple[float, ...]:
            timer = library.time_evaluator("main", device, number=runs, repeat=repeats)
            return tuple(float(seconds) for seconds in timer(*arguments).results)

        first = samples(1, 2)
        if best_s is not None and min(first) > options.cutoff * best_s:
            return first
        return samples(max(1, int(options.min_repeat_s / max(min(first), 1e-7))), options.repeats)

    def threads(self) -> int:
        """Threads of TVM's pool on the board."""
        return int(self.session.get_function("runtime.NumThreads")())

    def gpu(self) -> Gpu:
        """The board's GPU. Raises TuningError when its TVM has none."""
        device = self.session.device("cuda")
        if not device.exist:
            raise TuningError(f"the device {self._board.key!r} at {self._board.place} has no GPU that its TVM can use")
        return Gpu(name=str(device.device_name), arch=f"sm_{str(device.compute_version).replace('.', '')}")

    def answers(self) -> bool:
        """Whether the board is still there. A candidate that crashes ends the session, too."""
        try:
            self.threads()
        except Exception:  # whatever TVM makes of a closed connection
            return False
        return True

    def end(self) -> None:
        """Give the board back."""
        self.session = None

    def _argument(self, shape: tuple[int, ...], dtype: str, device: Device) -> DeviceTensor:
        """Random numbers, made on the board where they are floating: a megabyte takes long on some networks."""
        import numpy as np
        import tvm

        if not dtype.startswith("float"):
            return tvm.runtime.tensor(random_array(np.random.default_rng(0), shape, dtype, True), device)
        tensor = tvm.runtime.empty(shape, dtype, device)
        self.session.get_function(_FILL)(tensor)
        return tensor
