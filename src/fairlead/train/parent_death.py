"""The parent-death signal: what the kernel sends a process when the process that started it has ended. Linux.

It is tied to the *thread* that started the process, is not inherited by what that process starts, and is forgotten when
a setuid program is run. So it is the first line only: a guardian above, and a record, see to the rest.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

#: From linux/prctl.h.
_PR_SET_PDEATHSIG = 1

#: Bound here and not in the child: after a fork the loader's lock may be held by a thread that is not there any more.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def prctl(option: int, value: int) -> None:
    if _LIBC is None:
        raise OSError("this system has no prctl")
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def die_with_parent(parent: int, number: signal.Signals) -> None:
    """Be sent a signal when our parent, which is this process, ends."""
    prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it has ended before
        os.kill(os.getpid(), number)


def killed_with_us(number: signal.Signals = signal.SIGKILL) -> Callable[[], None] | None:
    """For `preexec_fn` of a subprocess: it is sent this when this process ends. None where that cannot be done."""
    if _LIBC is None:
        return None
    parent = os.getpid()
    return lambda: die_with_parent(parent, number)
