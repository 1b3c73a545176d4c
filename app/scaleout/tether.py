"""`python -m app.scaleout.tether PARENT COMMAND …`: becomes the command, and dies with the process that started it.

The kernel keeps the promise also where the parent is killed. Linux only.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def tethered(command: Sequence[str]) -> list[str]:
    """A command line that runs this one as a child of the calling process."""
    return [sys.executable, "-m", "app.scaleout.tether", str(os.getpid()), *command]


def main(argv: Sequence[str]) -> None:
    """Replace this process, unless the parent has died already."""
    parent, *command = argv
    libc = ctypes.CDLL(None, use_errno=True)
    # The thread that started it is what the kernel watches: the parent has one, of its event loop.
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != int(parent):
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
