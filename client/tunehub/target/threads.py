"""The size of TVM's thread pool: the physical cores, unless the application has said something else; and where its
threads run.

TVM takes half of the hardware threads on x86, because it assumes hyper-threading: on machines without it, half of the
cores. Its pool reads ``TVM_NUM_THREADS`` when it starts, which is at the first parallel kernel of a thread;
``runtime.config_threadpool`` does not make it larger. Whether it has started cannot be asked without starting it.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from tunehub.target.host import physical_cores, small_pool, usable_threads


def size_pool(environ: MutableMapping[str, str] | None = None) -> str | None:
    """Set ``TVM_NUM_THREADS`` to the physical cores where TVM would take fewer; returns what to tell the user.

    Nothing is done, and None returned, when ``TVM_NUM_THREADS`` or ``OMP_NUM_THREADS`` is set or TVM's own size is
    enough. The variable is one of this process and of those that it starts later.
    """
    env = os.environ if environ is None else environ
    stay_on_given_cores(env)
    if small_pool(env) is None:
        return None
    cores = str(physical_cores())
    env["TVM_NUM_THREADS"] = cores
    return (
        f"TVM_NUM_THREADS was set to {cores}, the physical cores, because TVM alone takes fewer; it has no effect on a "
        "pool that runs already. Set it yourself before compiling to have another size"
    )


def stay_on_given_cores(environ: MutableMapping[str, str] | None = None) -> None:
    """Keep TVM from binding its threads where a process was given some cores only (``taskset``): it would bind them to
    the first cores of the machine, whoever else runs there. Nothing is done when ``TVM_BIND_THREADS`` is set."""
    if usable_threads() < (os.cpu_count() or 1):
        (os.environ if environ is None else environ).setdefault("TVM_BIND_THREADS", "0")
