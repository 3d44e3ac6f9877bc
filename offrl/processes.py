"""What signals ask of processes, and what those that work for another one have in common."""

import ctypes
import os
import signal
import sys

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A terminal and a scheduler send them to every process: what comes of them the parent decides.
FOR_THE_PARENT = (*STOPS, signal.SIGUSR1)
PR_SET_PDEATHSIG = 1  # of Linux' <sys/prctl.h>


class Interrupted(KeyboardInterrupt):
    """A signal stops what the program does."""

    def __init__(self, number: int):
        super().__init__(f"({signal.Signals(number).name})")
        self.signal = number


def end_with(parent: int) -> None:
    """Have the system end this process with its parent, even if it hangs.
    Elsewhere than on Linux it ends when it next turns to its parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it had ended before
            sys.exit()


def exit_status(code: int) -> str:
    """What a process ended with, in words."""
    return f"killed by signal {-code}" if code < 0 else f"exit status {code}"
