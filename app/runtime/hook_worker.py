"""The hook process: executes one bundle's `hooks.py` and runs its hooks, one call at a time, until the server is gone.

It imports no more than numpy and what reads hooks: it stays small, and starts quickly.
"""

import ctypes
import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from app.domain.errors import ServingError
from app.domain.tensors import Array, Tensors
from app.repository.hooks import Hook, HookContext, hooks_of
from app.runtime.hook_channel import Channel

#: The hooks that a bundle may define.
NAMES = ("preprocess", "postprocess", "run")

_PR_SET_PDEATHSIG = 1


class HookError(Exception):
    """A hook raised; the message is the traceback in its own process."""


class Question(NamedTuple):
    """One call. `state` is what the answer to the request's `preprocess` brought, as it came."""

    hook: str
    tensors: dict[str, Array]
    model: str
    parameters: dict[str, Any]
    deadline: float
    state: Array | None


class Answer(NamedTuple):
    """What came of a call: tensors and the pickled state of the request, or what was raised."""

    tensors: Tensors = {}  # noqa: RUF012 (never written)
    state: Array | None = None
    error: Exception | None = None


def serve(channel: Channel) -> None:
    """Load the hooks that the first message brings, say which there are, then answer until nothing more comes.

    A file that cannot be loaded is answered with its `BundleError`.
    """
    directory, source = channel.receive()
    try:
        hooks = hooks_of(directory, source, importable=True)
    except ServingError as error:
        channel.send(error)
        return
    found: dict[str, Hook] = {name: hook for name in NAMES if (hook := getattr(hooks, name)) is not None}
    channel.send(tuple(found))
    while True:
        try:
            question: Question = channel.receive()
        except EOFError:
            return
        reply = answer(found[question.hook], question)
        try:
            channel.send(reply)
        except OSError:  # nobody listens any more
            return
        except Exception as error:
            channel.send(Answer(error=_told(error)))


def answer(hook: Hook, question: Question) -> Answer:
    """Run a hook; never raises."""
    try:
        state = {} if question.state is None else pickle.loads(question.state.data)
        context = HookContext(question.model, question.parameters, question.deadline, state)
        try:
            tensors = hook(question.tensors, context)
        except ValueError as error:
            return Answer(error=ValueError(str(error)))
        if question.hook == "postprocess" or not context.state:
            return Answer(_arrays(tensors))
        return Answer(_arrays(tensors), np.frombuffer(_pickled(context.state), dtype=np.uint8))
    except BaseException as error:  # a hook that exits ends its call, not the calls of others
        if isinstance(error, ServingError) and type(error).__module__ == ServingError.__module__:
            return Answer(error=error)
        return Answer(error=_told(error))


def _told(error: BaseException) -> HookError:
    return HookError("".join(traceback.format_exception(error)).rstrip())


def _arrays(tensors: object) -> Tensors:
    """What a hook returned, as plain arrays: a class of its own would be none in the server."""
    if not isinstance(tensors, Mapping):
        raise TypeError(f"the hook returned a {type(tensors).__name__}, not a dictionary of arrays")
    for name, array in tensors.items():
        if not isinstance(array, np.ndarray | np.generic):
            raise TypeError(f"the hook returned a {type(array).__name__} for tensor {name!r}, not an array")
    return {str(name): np.asarray(array) for name, array in tensors.items()}


def _pickled(state: dict[str, Any]) -> bytes:
    try:
        return pickle.dumps(state, 5)
    except Exception as error:
        raise TypeError(f"context.state cannot be pickled, as isolation: process needs it to be: {error}") from error


def main(serve: Callable[[Channel], None] = serve) -> None:
    """Serve on the two inherited descriptors that the command line names: socket and memory. Does not return."""
    # The server decides when to end, and may have to drain first: a signal to its whole group or control group is not
    # for this process. Handlers, unlike SIG_IGN, are not inherited by programs that a hook may start.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.nice(10)  # where cores are short, the device comes first
    connection, memory = (int(argument) for argument in sys.argv[1:])
    for descriptor in (connection, memory):
        os.set_inheritable(descriptor, False)
    status = 0
    try:
        serve(Channel(socket.socket(fileno=connection), memory))
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    os._exit(status)  # whatever threads the hooks may have left: somebody may be waiting for an answer
