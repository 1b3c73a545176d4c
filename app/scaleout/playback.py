"""Tells workers that start anew what the others were told before, and lets them have requests only after that.

Every worker has a log of its own, of what its process was told. What it lacks of the node's is played back, and what is
later once more: see `remembered`.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from app.scaleout.control_app import COMMAND_SECONDS
from app.scaleout.fleet import ASK_SECONDS, Answer, Fleet, Headers
from app.scaleout.joining import statuses_of
from app.scaleout.proxy import ProxyError
from app.scaleout.remembered import Command, CommandLog, Stamp, is_lasting, without_token
from app.scaleout.workers import Worker

logger = logging.getLogger(__name__)

#: Seconds between two looks at a worker that is still starting, or at a proxy that is not there.
_PAUSE = 0.25

#: Seconds that it has to answer such a look.
_PATIENCE = 2.0


class Gate(Protocol):
    """The proxy, which sends a worker requests or does not."""

    async def admit(self, worker: str, *, admitted: bool) -> None:
        """From now on, and after a new start of the proxy. Raises `ProxyError` where it has not heard."""


@dataclass(eq=False, slots=True)
class _Process:
    """What one process of a worker was told; the next begins with nothing."""

    log: CommandLog = field(default_factory=CommandLog)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    playing: bool = False
    played: int = 0
    admitted: bool = False


class Playback:
    """The fleet as the routes of the node see it: commands that last are remembered. Event loop only."""

    def __init__(self, fleet: Fleet, gate: Gate, on_fault: Callable[[], None]) -> None:
        """`on_fault` is called when a worker would be kept from requests for ever, by a fault of ours."""
        self._fleet, self._gate, self._on_fault = fleet, gate, on_fault
        self._log = CommandLog()
        self._numbers = itertools.count(1)
        self._processes = {name: _Process() for name in fleet.names}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def workers(self) -> Sequence[Worker]:
        """Which they are."""
        return self._fleet.workers

    async def ask_all(
        self,
        path: str,
        method: str = "GET",
        body: bytes = b"",
        headers: Headers = None,
        seconds: float = ASK_SECONDS,
    ) -> Mapping[str, Answer]:
        """The same of every worker at once, by its name; commands are remembered where a worker carried them out."""
        if not is_lasting(path, method):
            return await self._fleet.ask_all(path, method, body, headers, seconds)
        command = Command(Stamp(next(self._numbers), "node"), path, without_token(headers), body)
        told = await asyncio.gather(*[self._tell(worker, command, headers, seconds) for worker in self.workers])
        answers = dict(zip(self._fleet.names, told, strict=True))
        if not any(each.ok for each in told):
            return answers
        self._log.merge([command])
        for process in self._processes.values():
            process.news.set()
        return {name: each if each.status else _later(each) for name, each in answers.items()}

    async def any_ok(self, path: str, seconds: float) -> bool:
        """Whether any worker that gets requests answers that all is well: of the others nobody has an answer."""
        return await self._fleet.any_ok(
            path, seconds, [name for name, each in self._processes.items() if each.admitted]
        )

    def started(self, name: str, starts: int) -> None:
        """A worker has started, by now so many times: it knows nothing, and gets no requests before it does."""
        if name in self._tasks:
            self._tasks[name].cancel()
        self._processes[name] = process = _Process()
        self._tasks[name] = asyncio.ensure_future(self._follow(self._fleet.worker(name), process, starts))

    def close(self) -> None:
        """Tell nobody any more."""
        for task in self._tasks.values():
            task.cancel()

    async def _tell(self, worker: Worker, command: Command, headers: Headers, seconds: float) -> Answer:
        """A command that is given now. Its order among those that are played back meanwhile is unknown: then it counts
        as untold."""
        process = self._processes[worker.name]
        alone, played = not process.playing, process.played
        answer = await self._fleet.ask(worker, command.path, "POST", command.body, headers, seconds)
        if answer.status and alone and process.played == played:
            process.log.merge([command])
        return answer

    async def _follow(self, worker: Worker, process: _Process, starts: int) -> None:
        """Until this process of the worker has a successor."""
        try:
            if starts > 1:  # at first the proxy itself starts with all of them held
                await self._admit(worker.name, admitted=False)
            while not await self._caught_up(worker, process):
                await asyncio.sleep(_PAUSE)
            await self._admit(worker.name, admitted=True)
            process.admitted = True
            while True:
                await process.news.wait()
                process.news.clear()
                await self._play(worker, process)
        except Exception:  # a fault of ours, which would keep the worker from requests for ever
            logger.exception("ending: %s cannot be told what the others were told", worker.name)
            self._on_fault()

    async def _caught_up(self, worker: Worker, process: _Process) -> bool:
        """Play back what there is as soon as the worker can carry it out; whether it is ready, and knows all."""
        ready = await self._is_ready(worker)
        if ready or await self._waits_for_operators(worker):
            process.news.clear()
            await self._play(worker, process)
            ready = await self._is_ready(worker)
        return ready and not process.news.is_set()

    async def _is_ready(self, worker: Worker) -> bool:
        return (await self._fleet.ask(worker, "/v2/health/ready", seconds=_PATIENCE)).ok

    async def _waits_for_operators(self, worker: Worker) -> bool:
        """Whether it has loaded what it does by itself, and others have to load what it is not ready without."""
        answer = await self._fleet.ask(worker, "/status", seconds=_PATIENCE)
        return any(
            status["control_mode"] == "explicit" and all(model["state"] != "LOADING" for model in status["models"])
            for status in statuses_of({worker.name: answer}).values()
        )

    async def _play(self, worker: Worker, process: _Process) -> None:
        while missed := process.log.merge(self._log.commands()):
            process.playing, process.played = True, process.played + 1
            for command in missed:
                headers = self._fleet.authorized(command.headers)
                answer = await self._fleet.ask(
                    worker, command.path, "POST", command.body, headers, seconds=COMMAND_SECONDS
                )
                if not answer.ok:
                    said = answer.text or answer.content.decode(errors="replace")
                    logger.warning("%s, which others carried out, fails on %s: %.200s", command.path, worker.name, said)
            process.playing = False

    async def _admit(self, name: str, *, admitted: bool) -> None:
        """As often as it takes until the proxy has heard."""
        warned = False
        while True:
            try:
                await self._gate.admit(name, admitted=admitted)
            except ProxyError as error:
                if not warned:
                    logger.warning("%s is %s later: %s", name, "let in" if admitted else "held back", error)
                warned = True
                await asyncio.sleep(_PAUSE)
            else:
                return


def _later(answer: Answer) -> Answer:
    return replace(answer, text=f"{answer.text}; it is told when it answers")
