"""Compile children that misbehave: `python -m tests.backends.children`, with the way in `MISBEHAVIOUR`."""

import json
import os
import signal
import sys
from pathlib import Path

from app.backends import compile_child, optimise, recording


def leave_unaligned():
    """Weights stay where ONNX Runtime wrote them."""
    vars(optimise)["align_weights"] = lambda model, weights: None
    compile_child.main()


def answer_once():
    """Goes away between two jobs, as one that was idle for long."""
    line = sys.stdin.readline()
    sys.stdout.write(json.dumps(compile_child.answer(line)) + "\n")


def tell_threads():
    """Refuses the first job, saying how many threads it was given."""
    job = json.loads(sys.stdin.readline())
    sys.stdout.write(json.dumps({"refused": str(job["threads"])}) + "\n")


def hang():
    """Says that it is there, and never answers."""
    Path(os.environ["READY"]).write_text("ready")  # a pipe: this waits for its reader
    signal.pause()


def meet_another_file():
    """Finds another file in the model's place, or in that of its data, than the one it was asked about."""
    answer = compile_child.answer

    def replace_first(line):
        if json.loads(line)["job"] == os.environ["JOB"]:
            Path(os.environ["REPLACEMENT"]).replace(os.environ["REPLACED"])
        return answer(line)

    vars(compile_child)["answer"] = replace_first
    compile_child.main()


def die():
    """Fails at the first job, with last words."""
    sys.stdin.readline()
    sys.exit("no libraries here")


def be_killed():
    """As by the kernel, when memory is short."""
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)


def be_killed_so_often():
    """As often as it is told; then it works."""
    deaths = Path(os.environ["KILLED"])
    count = deaths.stat().st_size if deaths.exists() else 0
    if count < int(os.environ["DEATHS"]):
        deaths.write_bytes(bytes(count + 1))
        be_killed()
    compile_child.main()


def die_recording():
    """Records what crashes."""
    vars(compile_child)["JOBS"] = {**compile_child.JOBS, "try_graphs": lambda job: os.kill(os.getpid(), signal.SIGSEGV)}
    compile_child.main()


def be_killed_recording():
    """As by the kernel, and only so often, when it records."""
    deaths, record = Path(os.environ["KILLED"]), compile_child.try_graphs

    def killed(job):
        count = deaths.stat().st_size if deaths.exists() else 0
        if count < int(os.environ["DEATHS"]):
            deaths.write_bytes(bytes(count + 1))
            os.kill(os.getpid(), signal.SIGKILL)
        return record(job)

    vars(compile_child)["JOBS"] = {**compile_child.JOBS, "try_graphs": killed}
    compile_child.main()


def spoil_recording():
    """What it records cannot be replayed; and it says which process it is, in place of digests."""
    recording.Recording.replay = fail_to_replay  # type: ignore[method-assign]
    vars(compile_child)["JOBS"] = {**compile_child.JOBS, "digest": lambda job: {"digest": str(os.getpid())}}
    compile_child.main()


def spoil_recording_and_crash_in_the_end():
    """What a failed recording has left behind ends the process while it ends, when it has been asked the next thing."""
    recording.Recording.replay = fail_to_replay  # type: ignore[method-assign]
    compile_child.main()
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGSEGV)


def fail_to_replay(self, feeds):
    raise RuntimeError("CUDA failure 906: would leave a dependency")


def quit_at_once():
    """Ends in peace before every answer."""


WAYS = {
    way.__name__: way
    for way in (
        leave_unaligned,
        tell_threads,
        answer_once,
        hang,
        meet_another_file,
        die,
        be_killed,
        be_killed_so_often,
        die_recording,
        be_killed_recording,
        spoil_recording,
        spoil_recording_and_crash_in_the_end,
        quit_at_once,
    )
}

if __name__ == "__main__":
    WAYS[os.environ["MISBEHAVIOUR"]]()
