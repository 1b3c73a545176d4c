"""Processes that tests have started, or caused to be started."""

import os
import select


def wait_ended(pid: int) -> None:
    """Wait until a process is gone, or at least a corpse that nobody has buried yet."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with open(descriptor) as ended:
        assert select.select([ended], [], [], 60)[0], f"process {pid} goes on"
