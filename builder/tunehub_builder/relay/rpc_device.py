"""A device behind an RPC tracker: found before tuning starts, as TVM would wait for it for ever."""

from __future__ import annotations

import socket
import time
from typing import Any

from tunehub_builder.exceptions import TuningError
from tunehub_builder.relay.tuner import RpcDevice

_CONNECT_S, _REGISTER_S = 5.0, 3.0


def require_device(device: RpcDevice) -> None:
    """Raise TuningError when no tracker listens there, or no device has registered with that key."""
    place = f"{device.host}:{device.port}"
    try:
        socket.create_connection((device.host, device.port), timeout=_CONNECT_S).close()
    except OSError as error:
        remedy = "start one with `python -m tvm.exec.rpc_tracker`, or mend --rpc HOST:PORT"
        raise TuningError(f"no RPC tracker answers at {place} ({error}); {remedy}") from error
    patience = time.monotonic() + _REGISTER_S
    while device.key not in (keys := _keys(device, place)) and time.monotonic() < patience:
        time.sleep(0.2)  # a server that has just been started registers soon
    if device.key not in keys:
        known = ", ".join(sorted(keys)) or "none"
        remedy = f"on the device run `python -m tvm.exec.rpc_server --tracker {place} --key {device.key}`"
        raise TuningError(f"the tracker {place} has no device {device.key!r} (it has: {known}); {remedy}")


def _keys(device: RpcDevice, place: str) -> set[str]:
    from tvm import rpc

    try:
        summary: dict[str, Any] = rpc.connect_tracker(device.host, device.port).summary()
    except Exception as error:  # whatever something that is no tracker answers
        raise TuningError(f"{place} does not answer as an RPC tracker ({error}); mend --rpc HOST:PORT") from error
    return {str(server["key"]).partition(":")[2] for server in summary["server_info"]}  # "server:rasp4b"
