"""Whether Linux lets this process use the tiles of AMX: a sandbox may refuse what ``/proc/cpuinfo`` lists."""

from __future__ import annotations

import ctypes
import errno
import sys
from functools import cache

# Linux, Documentation/arch/x86/xstate.rst
_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18
# A filter of system calls answers with the first three; no room on an alternate signal stack is the last. Others say
# that the CPU or the kernel has no AMX, which /proc/cpuinfo says, too.
_REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOSPC)


@cache
def refuses_amx() -> bool:
    """Whether Linux refuses AMX to this process; asking is what grants it, for all of the process' life.

    Only of x86-64: the number of the system call is another elsewhere.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = map(ctypes.c_long, (_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA))
    return libc.syscall(*arguments) != 0 and ctypes.get_errno() in _REFUSALS
