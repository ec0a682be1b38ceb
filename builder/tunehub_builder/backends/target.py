"""Which target a name means, with whichever TVM is installed."""

from __future__ import annotations

from tunehub_builder.tuning.target import TuningTarget, generation


def find_target(name: str, *, remote: bool = False) -> TuningTarget:
    """The target called ``name``: ``host``, ``llvm-`` and LLVM's name of a CPU, or a GPU of this machine.

    With TVM <= 0.19 also TVM's own text of any target, such as ``cuda -model=titanx``; ``remote``: another machine
    measures. Raises NoSuchTargetError, or UnsuitableTargetError for a device that this machine is or has not.
    """
    if generation() == "relay":
        from tunehub_builder.backends.relay.target import find_relay_target

        return find_relay_target(name, remote=remote)
    from tunehub_builder.backends.relax.target import find_relax_target

    return find_relax_target(name)
