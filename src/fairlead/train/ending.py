"""How a worker ends: told to stop, with its state saved; or because it left, and others train on.

Who is told to stop does so between two steps. If that does not come in time, since the script evaluates or waits for
data, another thread does it, with the state as of the last step.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from fairlead.train.agent import PREEMPTED


class Ending:
    """Of one worker."""

    def __init__(self, save: Callable[[], None], wake: Callable[[], None]) -> None:
        """`save` is called while nobody changes the state; `wake` lets whoever waits look at `stopping`."""
        self.stopping = False
        #: There is a state that could be lost.
        self.has_state = False
        #: Held while the state changes.
        self.quiet = threading.Lock()
        self._save, self._wake = save, wake
        #: The code with which it has decided to exit.
        self._code: int | None = None

    def stop(self, grace_s: float) -> None:
        """Save and exit between two steps; or, if that does not come in time, from another thread. By any thread."""
        if not self.has_state:
            _at_once(PREEMPTED)  # it would wait for others, who will not come
        if not self.stopping:
            self.stopping = True
            threading.Thread(target=self._last_resort, args=(grace_s,), name="fairlead-stop", daemon=True).start()

    def _last_resort(self, grace_s: float) -> None:
        self._wake()
        time.sleep(0.5 * grace_s)
        with self.quiet:
            try:
                if self._code is None:  # or else it has saved, but its script does not end
                    self._save()
            finally:
                os._exit(PREEMPTED)

    def preempted(self) -> NoReturn:
        """It has saved."""
        self._code = PREEMPTED
        sys.exit(PREEMPTED)

    def leave(self) -> NoReturn:
        self._code = 0
        _yield_processors()
        sys.exit(0)

    def vanish(self) -> None:
        """Who has left or stopped ends at once, after what its script cleans up: to take torch apart takes a second of
        a processor that those who train could use, and aborts if a thread is still connecting to somebody."""
        if self._code is not None:
            _at_once(self._code)


class ErrorExit:
    """At exit: ends a script that raised with code 1 before the interpreter is taken apart.

    A thread of torch may be about to call back into Python, and would abort the process then. Its agent would take the
    SIGABRT for a kill from outside and replace the worker, again and again, where the error is the script's own.
    """

    def __init__(self) -> None:
        #: Set for workers of an agent; a script alone may end as it likes.
        self.armed = False

    def __call__(self) -> None:
        if self.armed and getattr(sys, "last_value", None) is not None:
            logging.shutdown()  # the only handler of those registered before that holds what a user wrote
            _at_once(1)


#: Registered when this is imported, and so called after what the script itself registers.
ERROR_EXIT = ErrorExit()
atexit.register(ERROR_EXIT)


def _yield_processors() -> None:
    """To those who train. All threads, since whichever ends last gives the memory back, which takes the longest."""
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))


def _at_once(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
