"""What this process gives back to the system."""

import subprocess
import sys

from app.backends.memory import private_bytes

#: Threads that each take and free what is large, one after the other; then how much the process has grown, in MB.
THREADS_THAT_LOAD = """
import threading
from app.backends.memory import bound_heaps, private_bytes, trim_heap

def load():
    for _ in range(3):
        bytearray(20_000_000)
    loaded.wait()
    goes_on.wait()

bound_heaps()
before = private_bytes()
loaded, goes_on = threading.Barrier(5), threading.Event()
threads = [threading.Thread(target=load) for _ in range(4)]
for thread in threads:
    thread.start()
loaded.wait()
trim_heap()
print((private_bytes() - before) / 1e6)
goes_on.set()
"""


def test_threads_keep_nothing_large_that_they_freed():
    command = [sys.executable, "-c", THREADS_THAT_LOAD]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert float(done.stdout) < 10


def test_memory_that_no_file_backs_is_counted(tmp_path):
    assert private_bytes() > 1_000_000
    assert private_bytes(tmp_path / "absent") == 0
