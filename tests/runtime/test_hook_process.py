"""Hooks in processes of their own: real processes, told from each other by their ids."""

import concurrent.futures
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from textwrap import dedent
from time import monotonic
from types import MappingProxyType

import numpy as np
import pytest

from app.domain.errors import BundleError, DeadlineExceeded, HookFailed, ModelNotFound, TooManyRequests
from app.repository.hooks import HookContext, load_hooks
from app.runtime.hook_process import HookWorkers, isolate
from app.runtime.hook_worker import HookError
from tests.processes import wait_ended

ROOT = Path(__file__).parents[2]

#: Says who it is, and waits until it is told to go on: two named pipes in the bundle's directory.
MEET = """
    import os
    from pathlib import Path
    import numpy as np

    HERE = Path(__file__).parent

    def preprocess(inputs):
        os.write(os.open(HERE / "said", os.O_WRONLY), os.getpid().to_bytes(4))
        os.read(os.open(HERE / "told", os.O_RDONLY), 1)
        return {"pid": np.array(os.getpid())}

    def postprocess(outputs):
        return {"pid": np.array(os.getpid())}
    """


def bytes_of(*elements):
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array


def end(pid):
    os.kill(pid, signal.SIGKILL)
    wait_ended(pid)


def pid_of(hooks):
    """The process that is called next."""
    return int(hooks.postprocess({}, HookContext("m"))["pid"])


@pytest.fixture
def bundle_dir(tmp_path):
    (tmp_path / "m").mkdir()
    return tmp_path / "m"


@pytest.fixture
def write(bundle_dir):
    return lambda source: (bundle_dir / "hooks.py").write_text(dedent(source))


@pytest.fixture
def start(bundle_dir, write):
    """The hooks of the given source, in processes that end with the test."""
    started = []

    def start_hooks(source, processes=1):
        write(source)
        started.append(isolate(bundle_dir, processes))
        return started[-1]

    yield start_hooks
    for hooks in started:
        hooks.close()


@pytest.fixture
def callers():
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        yield pool


class Meeting:
    """Hooks whose `preprocess` waits in the middle, called from other threads."""

    def __init__(self, bundle_dir, hooks, callers):
        self.hooks = hooks
        self._callers = callers
        self._said, self._told = (self._pipe(bundle_dir / name) for name in ("said", "told"))

    @staticmethod
    def _pipe(path):
        """Both ends, so that nobody waits for the other to open it, and nothing is lost between two openings."""
        os.mkfifo(path)
        return os.fdopen(os.open(path, os.O_RDWR), "r+b", buffering=0)

    def call(self):
        """A call that will wait in the middle; the future of the process that answered."""
        return self._callers.submit(lambda: int(self.hooks.preprocess({}, HookContext("m"))["pid"]))

    def entered(self):
        """Wait until a call is in the middle; its process."""
        return int.from_bytes(self._said.read(4))

    def go_on(self):
        """Let one call go on."""
        self._told.write(b"!")

    def end(self):
        """Nobody meets any more."""
        self._said.close()
        self._told.close()


@pytest.fixture
def meet(bundle_dir, start, callers):
    meetings = []

    def meet_in(processes=1):
        meetings.append(Meeting(bundle_dir, start(MEET, processes), callers))
        return meetings[-1]

    yield meet_in
    for meeting in meetings:
        meeting.end()


# tensors and context

TENSORS = {
    "bytes": bytes_of(b"", b"\x00\xff", b"x" * 100_000, "é".encode()),
    "no bytes": bytes_of(),
    "floats": np.arange(12, dtype=np.float32).reshape(3, 4),
    "scalar": np.array(3.5),
    "booleans": np.array([[True], [False]]),
    "large": np.random.default_rng(0).standard_normal((1, 3, 400, 400), dtype=np.float32),
    "no rows": np.zeros((0, 4), dtype=np.int64),
    "no columns": np.zeros((4, 0), dtype=np.int64),
    "every second": np.arange(200_000, dtype=np.float64)[::2],
    "transposed": np.arange(60_000, dtype=np.int32).reshape(200, 300).T,
    "reversed": np.arange(10, dtype=np.uint8)[::-1],
    "bfloat16": np.array([[0x3F80, 0x7FC0]], dtype=np.uint16),
    "half": np.array([1.5, np.nan, np.inf], dtype=np.float16),
}

CHANGE = """
    import numpy as np

    def preprocess(inputs):
        doubled = {name: np.concatenate([x, x]) for name, x in inputs.items() if x.ndim}
        return doubled | {f"same {name}": x for name, x in inputs.items()} | {"row": np.float32(2)}
    """


@pytest.mark.parametrize("names", [[name] for name in TENSORS] + [list(TENSORS), []], ids="+".join)
def test_values_are_those_of_hooks_in_a_thread(start, bundle_dir, names):
    inputs = {name: TENSORS[name] for name in names}
    found = start(CHANGE).preprocess(inputs, HookContext("m"))
    in_thread = load_hooks(bundle_dir).preprocess
    assert in_thread is not None
    expected = in_thread(inputs, HookContext("m"))
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)


def test_arrays_of_a_class_of_the_hooks_arrive_as_plain_ones(start):
    hooks = start(
        """
        import numpy as np

        class Own(np.ndarray):
            pass

        def preprocess(inputs):
            return {"x": np.arange(3).view(Own)}
        """
    )
    x = hooks.preprocess({}, HookContext("m"))["x"]
    assert type(x) is np.ndarray
    assert x.tolist() == [0, 1, 2]


def test_a_hook_may_keep_what_it_was_given(start):
    hooks = start(
        """
        kept = []

        def preprocess(inputs):
            kept.append(inputs["x"])
            return {str(number): x for number, x in enumerate(kept)}
        """
    )
    *_, kept = [hooks.preprocess({"x": np.full(100_000, number)}, HookContext("m")) for number in range(3)]
    assert [set(array.tolist()) for array in kept.values()] == [{0}, {1}, {2}]


def test_only_the_hooks_that_are_defined_are_there(start):
    hooks = start("def postprocess(outputs): return outputs")
    assert (hooks.preprocess, hooks.run) == (None, None)
    assert hooks.postprocess is not None


def test_the_context_arrives(start):
    hooks = start(
        """
        import numpy as np

        def preprocess(inputs, context):
            return {"told": np.array(repr((context.model, context.parameters, context.deadline)).encode())}
        """
    )
    context = HookContext("new name", MappingProxyType({"top": 5, "ids": ["a"]}), 7.5e9)
    told = hooks.preprocess({}, context)["told"].item()
    assert told.decode() == "('new name', {'top': 5, 'ids': ['a']}, 7500000000.0)"


STATE = """
    import os
    from dataclasses import dataclass
    import numpy as np

    @dataclass
    class Plan:
        rows: np.ndarray

    def preprocess(inputs, context):
        if inputs:
            context.state["plan"] = Plan(inputs["x"])
        return {"pid": np.array(os.getpid())}

    def postprocess(outputs, context):
        return {"pid": np.array(os.getpid()), **{name: plan.rows for name, plan in context.state.items()}}
    """


@pytest.mark.parametrize("size", [3, 300_000])
def test_state_is_kept_with_its_request(start, size):
    hooks = start(STATE, processes=2)
    contexts = [HookContext("m") for _ in range(4)]
    pids = {int(hooks.preprocess({"x": np.full(size, n)}, each)["pid"]) for n, each in enumerate(contexts)}
    for number, context in enumerate(contexts):
        answer = hooks.postprocess({}, context)
        pids.add(int(answer["pid"]))
        assert np.array_equal(answer["plan"], np.full(size, number))
    assert len(pids) == 2


def test_a_request_without_state_finds_none(start):
    hooks = start(STATE)
    context = HookContext("m")
    hooks.preprocess({"x": np.zeros(3)}, HookContext("m"))
    hooks.preprocess({}, context)
    assert list(hooks.postprocess({}, context)) == ["pid"]


def test_state_that_cannot_be_pickled_fails_its_call(start):
    hooks = start("def preprocess(inputs, context): context.state['it'] = lambda: 1; return inputs")
    with pytest.raises(HookError, match=r"context\.state cannot be pickled, as isolation: process needs it to be"):
        hooks.preprocess({}, HookContext("m"))


# errors

FAIL = """
    import json
    import os
    import sys
    import numpy as np
    from app.domain.errors import TooManyRequests

    class Trouble(Exception):
        pass

    def text(): raise ValueError("an image is empty")
    def nothing(): raise ValueError
    def undecodable(): b"\\xff".decode()
    def unparsable(): json.loads("{")
    def refused(): raise TooManyRequests("later", reason="quota")
    def trouble(): raise Trouble("all sorts")
    def leave(): sys.exit(3)
    def interrupt(): raise KeyboardInterrupt
    def none(): return None
    def items(): return {"x": [1, 2]}
    def function(): return {"x": np.array([lambda: 1], dtype=object)}
    def own_class(): return {"x": np.array([Trouble("inside")], dtype=object)}
    def die(): os._exit(3)
    def kill(): os.kill(os.getpid(), 9)
    def go_silent(): os.closerange(3, 100); sys.stdin.read(); import signal; signal.pause()

    def preprocess(inputs, context):
        return globals()[context.parameters["how"]]()

    def postprocess(outputs):
        return {"pid": np.array(os.getpid())}
    """


@pytest.fixture
def fail(start):
    """Hooks that fail in the given way, and then answer from the process they had, or from another."""
    hooks = start(FAIL)

    def fail_so(how, kind, *, same=True):
        before = pid_of(hooks)
        with pytest.raises(kind) as caught:
            hooks.preprocess({}, HookContext("m", {"how": how}))
        assert caught.type is kind
        assert (pid_of(hooks) == before) is same
        return caught.value

    return fail_so


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("text", "an image is empty"),
        ("nothing", ""),
        ("undecodable", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        ("unparsable", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    ],
)
def test_a_value_error_keeps_its_message(fail, how, said):
    assert str(fail(how, ValueError)) == said


def test_an_error_of_the_server_keeps_class_and_reason(fail):
    error = fail("refused", TooManyRequests)
    assert (error.message, error.code) == ("later", "quota")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("trouble", "Trouble: all sorts"),
        ("leave", "SystemExit: 3"),
        ("interrupt", "KeyboardInterrupt"),
        ("none", "TypeError: the hook returned a NoneType, not a dictionary of arrays"),
        ("items", "TypeError: the hook returned a list for tensor 'x', not an array"),
        ("function", "Can't pickle"),
    ],
)
def test_any_other_exception_brings_its_traceback(fail, how, said):
    text = str(fail(how, HookError))
    assert text.startswith("Traceback")
    assert said in text.splitlines()[-1]


def test_the_traceback_shows_the_line_of_the_hook(fail, bundle_dir):
    assert f'File "{bundle_dir / "hooks.py"}", line ' in str(fail("trouble", HookError))


def test_what_only_the_hook_knows_cannot_be_returned(fail):
    assert "bundle hooks" in str(fail("own_class", ModuleNotFoundError))


@pytest.mark.parametrize(
    ("how", "fate"),
    [
        ("die", "ended with status 3"),
        ("kill", "died of signal 9 (Killed)"),
        ("go_silent", "died of signal 9 (Killed)"),
    ],
)
def test_a_process_that_dies_fails_its_call_and_the_next_has_another(fail, how, fate):
    error = fail(how, HookFailed, same=False)
    assert error.message == f"preprocess of model 'm' failed: its process {fate}"


# the life of a process


def test_the_call_in_a_killed_process_fails_and_the_next_works(meet, caplog):
    meeting = meet()
    call = meeting.call()
    pid = meeting.entered()
    with caplog.at_level(logging.ERROR):
        os.kill(pid, signal.SIGKILL)
        error = call.exception(30)
    assert isinstance(error, HookFailed)
    assert "died of signal 9 (Killed)" in error.message
    assert pid_of(meeting.hooks) != pid
    assert [record.message.partition(": ")[2] for record in caplog.records if record.levelno == logging.ERROR] == [
        f"hook process {pid} died of signal 9 (Killed)"
    ]


def test_a_process_killed_between_calls_fails_none(start):
    hooks = start(MEET)
    pid = pid_of(hooks)
    end(pid)
    assert pid_of(hooks) != pid


def test_its_own_children_do_not_hold_up_the_failure_of_a_process(start, bundle_dir):
    hooks = start(
        """
        import os
        from pathlib import Path

        def preprocess(inputs):
            if os.fork():
                os._exit(1)
            (Path(__file__).parent / "held").read_bytes()  # a named pipe, with the sockets open
            os._exit(0)
        """
    )
    os.mkfifo(bundle_dir / "held")
    with pytest.raises(HookFailed, match="ended with status 1"):
        hooks.preprocess({}, HookContext("m"))
    (bundle_dir / "held").write_bytes(b"")


def test_another_process_runs_what_was_loaded_and_not_what_the_file_is_by_then(start, bundle_dir):
    hooks = start(MEET)
    pid = pid_of(hooks)
    (bundle_dir / "hooks.py").write_text("def preprocess(inputs): return inputs")
    end(pid)
    assert pid_of(hooks) != pid


def test_a_process_that_cannot_be_started_again_fails_its_calls_until_it_can(start, bundle_dir):
    (bundle_dir / "words.txt").write_text("cat dog")
    hooks = start(MEET + "\n    WORDS = (HERE / 'words.txt').read_text()")
    end(pid_of(hooks))
    (bundle_dir / "words.txt").rename(bundle_dir / "away.txt")
    for _ in range(2):
        with pytest.raises(HookFailed, match=r"^postprocess of model 'm' failed: its process cannot be started$"):
            pid_of(hooks)
    (bundle_dir / "away.txt").rename(bundle_dir / "words.txt")
    assert pid_of(hooks)


def test_as_many_calls_run_at_once_as_there_are_processes(meet):
    meeting = meet(processes=2)
    calls = [meeting.call() for _ in range(2)]
    entered = {meeting.entered(), meeting.entered()}
    assert len(entered) == 2
    for _ in calls:
        meeting.go_on()
    assert {call.result(30) for call in calls} == entered


def test_callers_wait_for_one_process_in_turn_and_get_their_own_answers(start, callers):
    hooks = start(CHANGE)

    def ask(number):
        return hooks.preprocess({"x": np.full(number * 1000, number)}, HookContext("m"))["same x"]

    for number, answer in enumerate(callers.map(ask, range(100))):
        assert np.array_equal(answer, np.full(number * 1000, number))


def test_a_call_under_way_is_answered_when_its_hooks_are_closed(meet):
    meeting = meet()
    call = meeting.call()
    pid = meeting.entered()
    meeting.hooks.close()
    meeting.go_on()
    assert call.result(30) == pid
    wait_ended(pid)


def test_a_call_that_waits_for_a_process_is_refused_when_its_hooks_are_closed(meet):
    meeting = meet()
    calls = [meeting.call(), meeting.call()]
    pid = meeting.entered()
    meeting.hooks.close()
    meeting.go_on()
    assert {type(call.exception(30)) for call in calls} == {type(None), ModelNotFound}
    with pytest.raises(ModelNotFound, match=r"^model 'm' was unloaded$"):
        pid_of(meeting.hooks)
    wait_ended(pid)


def test_hooks_that_are_closed_while_another_process_starts_leave_none(start, bundle_dir, callers):
    os.mkfifo(bundle_dir / "begun")
    (bundle_dir / "first").touch()
    hooks = start(
        """
        import os
        from pathlib import Path
        HERE = Path(__file__).parent

        if not (HERE / "first").exists():
            (HERE / "begun").write_text(str(os.getpid()))
            (HERE / "begun").read_text()

        def preprocess(inputs):
            os._exit(0)
        """
    )
    with pytest.raises(HookFailed):
        hooks.preprocess({}, HookContext("m"))
    (bundle_dir / "first").unlink()
    call = callers.submit(hooks.preprocess, {}, HookContext("m"))
    pid = int((bundle_dir / "begun").read_text())
    hooks.close()
    (bundle_dir / "begun").write_text("")
    assert isinstance(call.exception(30), ModelNotFound)
    wait_ended(pid)


def test_closed_workers_leave_nothing_behind(bundle_dir):
    def held():
        for thread in threading.enumerate():
            if thread.name == "hook_process":
                thread.join(30)
        gc.collect()
        return set(os.listdir("/proc/self/fd"))  # its memory has no name: nothing else could stay

    before = held()
    thread = "import threading\nthreading.Thread(target=threading.Event().wait).start()\n"  # it never ends
    workers = HookWorkers(bundle_dir, f"{thread}{dedent(CHANGE)}".encode(), 2)
    running = list(workers._workers)
    for _ in range(2):
        workers.call("preprocess", {"x": np.zeros(10**6)}, HookContext("m"))
    workers.close()
    workers.close()
    assert [worker._process.wait(30) for worker in running] == [0, 0]
    running.clear()
    del workers
    assert held() == before


def test_signals_to_a_whole_group_are_not_for_the_process(start):
    hooks = start(MEET)
    pid = pid_of(hooks)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
        assert pid_of(hooks) == pid
    assert os.getpgid(pid) != os.getpgid(0)
    assert os.getsid(pid) == os.getsid(0)


@pytest.mark.parametrize("computes", [True, False])
def test_a_process_ends_with_a_server_that_is_killed(write, bundle_dir, computes):
    write(
        """
        import os

        def preprocess(inputs):
            os.write(1, f"{os.getpid()}\\n".encode())
            while inputs["x"]:
                pass
            return inputs
        """
    )
    code = f"""
        import time
        from pathlib import Path
        import numpy as np
        from app.repository.hooks import HookContext
        from app.runtime.hook_process import isolate

        hooks = isolate(Path({str(bundle_dir)!r}), 1)
        hooks.preprocess({{"x": np.array({computes})}}, HookContext("m"))
        input()
        """
    server = subprocess.Popen(
        [sys.executable, "-c", dedent(code)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        server.kill()
    wait_ended(pid)


def test_what_hooks_print_does_not_disturb_the_answers(start, capfd):
    hooks = start(
        """
        import os, subprocess, sys

        print("at import", flush=True)

        def preprocess(inputs):
            print("print", flush=True)
            print("error", file=sys.stderr)
            os.write(1, b"write\\n")
            subprocess.run(["echo", "child"])
            assert sys.stdin.read() == ""
            return inputs
        """
    )
    assert hooks.preprocess({"x": np.arange(3)}, HookContext("m"))["x"].tolist() == [0, 1, 2]
    assert capfd.readouterr() == ("at import\nprint\nwrite\nchild\n", "error\n")


def test_the_process_holds_no_more_than_it_needs(start):
    hooks = start(
        """
        import sys
        import numpy as np

        def preprocess(inputs):
            return {"modules": np.array(sorted(sys.modules), dtype=object)}
        """
    )
    modules = {name.split(".")[0] for name in hooks.preprocess({}, HookContext("m"))["modules"]}
    assert not modules & {"onnxruntime", "onnx", "uvicorn", "fastapi", "pydantic", "yaml", "asyncio"}
    assert "numpy" in modules


# loads that fail


@pytest.mark.parametrize(
    "source",
    ["import no_such_module", "def f(): 1 / 0\nf()", "preprocess = 3", "def preprocess(): pass"],
)
def test_hooks_that_cannot_be_loaded_say_what_they_say_in_a_thread(write, bundle_dir, source):
    write(source)
    with pytest.raises(BundleError) as expected:
        load_hooks(bundle_dir)
    with pytest.raises(BundleError) as caught:
        isolate(bundle_dir, 2)
    assert caught.value.message == expected.value.message


def test_a_process_that_dies_while_it_loads_is_a_fault_of_the_bundle(write, bundle_dir):
    write("import os; os._exit(4)")
    with pytest.raises(BundleError, match=r"hooks\.py: import failed: the process ended with status 4$"):
        isolate(bundle_dir, 1)


def test_one_process_that_cannot_load_ends_the_others(write, bundle_dir):
    write(f"{NOTED}\nos.mkdir(Path(__file__).parent / 'once')")
    with pytest.raises(BundleError, match="FileExistsError") as caught:
        isolate(bundle_dir, 3)
    for pid in noted(bundle_dir):
        wait_ended(pid)
    assert caught.value.__traceback__ is not None  # what it refers to was not let go


def test_isolation_without_hooks_is_refused(bundle_dir):
    with pytest.raises(BundleError, match=r"manifest\.yaml: hooks\.isolation: process, but there is no hooks\.py: add"):
        isolate(bundle_dir, 1)


# bundles

ISOLATED = "hooks: {isolation: process}\n"

NOTED = """
from pathlib import Path
import os
import numpy as np

with (Path(__file__).parent / "pids").open("a") as pids:
    pids.write(f"{os.getpid()}\\n")

def preprocess(inputs):
    return {"x": inputs["x"] + 1}

def postprocess(outputs):
    return {"y": outputs["y"] * np.float32(2)} if outputs else {"pid": np.array(os.getpid())}
"""


def noted(bundle_dir):
    """Every process that has executed the bundle's hooks."""
    return [int(line) for line in (bundle_dir / "pids").read_text().split()]


@pytest.mark.anyio
async def test_a_bundle_is_served_with_isolated_hooks(stage):
    generation = stage.load(hooks=NOTED, manifest="hooks: {isolation: process, processes: 2}\n")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    result = await stage.infer({"x": x})
    assert np.array_equal(result.outputs["y"], (x + 1) * 2)
    assert len(set(noted(generation.bundle.path)) - {os.getpid()}) == 2


@pytest.mark.anyio
async def test_the_traceback_of_an_isolated_hook_is_logged_and_not_told(stage, caplog):
    stage.load(hooks="def preprocess(inputs):\n    return 1 / 0\n", manifest=ISOLATED)
    with caplog.at_level(logging.ERROR), pytest.raises(HookFailed, match=r"^preprocess of model 'm' failed$"):
        await stage.infer({"x": np.zeros((1, 3), dtype=np.float32)})
    assert "return 1 / 0" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_an_unload_ends_the_process(stage):
    generation = stage.load(hooks=NOTED, manifest=ISOLATED)
    pid = pid_of(generation.bundle.hooks)
    stage.control.unload_model("m").result(30)
    wait_ended(pid)


def test_a_reload_ends_the_process_of_the_old_generation(stage):
    old = pid_of(stage.load(hooks=NOTED, manifest=ISOLATED).bundle.hooks)
    new = stage.load(hooks=NOTED + "\n", manifest=ISOLATED)
    wait_ended(old)
    assert pid_of(new.bundle.hooks) != old


def test_the_end_of_the_server_ends_the_processes(stage):
    pid = pid_of(stage.load(hooks=NOTED, manifest=ISOLATED).bundle.hooks)
    stage.control.stop().result(30)
    wait_ended(pid)


@pytest.mark.parametrize("step", ["on_compile", "on_prepare", "manifest", "overtaken"])
def test_a_load_that_fails_leaves_no_process(stage, step):
    stage.load(hooks=NOTED, manifest=ISOLATED)
    serving = noted(stage.root / "m")
    manifest = ISOLATED

    def fail(*_):
        raise RuntimeError("no room")

    if step == "manifest":
        manifest += "client_outputs: [{name: z, dtype: FP32, shape: n}]\nlabels: {q: [a]}\n"
    elif step != "overtaken":
        setattr(stage.backend, step, fail)
    if step == "overtaken":
        hold = stage.hold_compile()
        load = stage.control.load_model("m", stage.root / "m")
        hold.wait_entered()
        stage.control.unload_model("m").result(30)
        hold.open()
        assert load.exception(30) is not None
    else:
        with pytest.raises((RuntimeError, BundleError)):
            stage.load(hooks=NOTED, manifest=manifest)
        assert pid_of(stage.registry.resolve("m").bundle.hooks) in serving
    for pid in set(noted(stage.root / "m")) - set(serving):
        wait_ended(pid)


HANGS = """
import threading

def preprocess(inputs):
    if inputs["x"][0] == 13:
        threading.Event().wait()
    return dict(inputs)
"""


def test_a_call_that_outlives_its_deadline_gives_its_place_to_the_next(start):
    hooks = start(HANGS)
    with pytest.raises(DeadlineExceeded):
        hooks.preprocess({"x": np.full(3, 13)}, HookContext("m", deadline=monotonic() + 0.05))
    answer = hooks.preprocess({"x": np.arange(3)}, HookContext("m"))
    np.testing.assert_array_equal(answer["x"], np.arange(3))


def test_a_call_that_waits_for_a_place_waits_no_longer_than_its_deadline(meet, callers):
    meeting = meet()
    holding = meeting.call()
    meeting.entered()
    waiting = [
        callers.submit(meeting.hooks.preprocess, {}, HookContext("m", deadline=monotonic() + 0.05)) for _ in range(2)
    ]
    for call in waiting:
        with pytest.raises(DeadlineExceeded):
            call.result(30)
    assert not holding.done()
    meeting.go_on()
    assert holding.result(30)
