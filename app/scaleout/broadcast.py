"""All replicas on Ray Serve as one fleet, each asked through Serve's handle; what concerns them all, and what lasts."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from app.api.access import Door, door_of
from app.scaleout.fleet import ASK_SECONDS, Answer, Headers
from app.scaleout.remembered import Command, CommandLog, is_lasting, without_token
from app.scaleout.workers import Worker

#: Tells the memory.
Remember = Callable[[list[Command]], Awaitable[None]]


def concerns_all(path: str, method: str) -> bool:
    """Whether every replica has to do, or to tell, what is asked there."""
    return (
        door_of(path, method) is Door.ADMIN
        or path in ("/metrics", "/status")
        or (path.endswith("/stats") and method == "GET")
    )


class Said(NamedTuple):
    """What one replica answered, and which one it was."""

    worker: Worker
    address: str
    pid: int
    answer: Answer


class Broadcast:
    """All replicas as one fleet. `workers` are those that answered last. Event loop only."""

    draining = False  # a replica that drains is asked by nobody: HAProxy turns to others

    def __init__(self, name: str, handle: Any, log: CommandLog, remember: Remember) -> None:
        self.workers: Sequence[Worker] = ()
        self._name, self._handle, self._log, self._remember = name, handle, log, remember
        self._said: Sequence[Said] = ()

    async def ask_all(
        self,
        path: str,
        method: str = "GET",
        body: bytes = b"",
        headers: Headers = None,
        seconds: float = ASK_SECONDS,
    ) -> dict[str, Answer]:
        """The same of every replica at once, by its name; commands are remembered where a replica carried them out."""
        command = Command(self._log.next_stamp(self._name), path, without_token(headers), body)
        lasting = is_lasting(path, method)
        given = (command,) if lasting else (path, method, body, headers)
        asked = self._handle.broadcast("obey" if lasting else "ask", *given)
        try:
            told = await asked.results_async(timeout_s=seconds, return_exceptions=True)
        except TimeoutError as error:
            told = [error]
        self._said = [each for each in told if isinstance(each, Said)]
        self.workers = [each.worker for each in self._said]
        answers = {each.worker.name: each.answer for each in self._said}
        for number, fault in enumerate([each for each in told if not isinstance(each, Said)]):
            answers[f"replica {number}"] = Answer(0, text=str(fault) or "no answer in time")
        if lasting and any(each.ok for each in answers.values()):
            await self._remember([command])
        return answers

    async def any_ok(self, path: str, seconds: float) -> bool:
        """Whether any replica answers that all is well."""
        return any(each.ok for each in (await self.ask_all(path, seconds=seconds)).values())

    def processes(self) -> list[dict[str, Any]]:
        """Name, device, address and process id of the replicas that answered last."""
        return [
            {"name": each.worker.name, "label": each.worker.label, "device": each.worker.device,
             "address": each.address, "pid": each.pid, "starts": 1}
            for each in self._said
        ]  # fmt: skip
