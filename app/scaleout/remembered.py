"""Commands that went to every worker, here or on Ray, kept for those that come later. Pure.

Each command bears a stamp, and whoever knows the same commands carries them out in the order of their stamps. So copies
of the log may be brought together in any order and as often as one likes, and all end alike.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

#: Done once by those that are there, and nothing that a later one would have to do too.
_MOMENTARY = ("/admin/compact", "/admin/prefetch")

#: Last segments that are opposites: of what they are said last counts.
_OPPOSITES = ("load", "unload", "register", "unregister")


def is_lasting(path: str, method: str) -> bool:
    """Whether what is asked of all workers there is a command for those too that start later."""
    return method == "POST" and path.partition("?")[0] not in _MOMENTARY


def without_token(headers: Mapping[bytes, bytes] | None) -> dict[bytes, bytes]:
    """Those that a command keeps. Whoever plays it back has a token of his own."""
    return {name: value for name, value in (headers or {}).items() if name != b"authorization"}


class Stamp(NamedTuple):
    """When a command was given: after all that its giver knew, which is what counts; `giver` orders those at once."""

    number: int
    giver: str


@dataclass(frozen=True, slots=True)
class Command:
    """A POST that every worker has to carry out. `headers` hold no token."""

    stamp: Stamp
    path: str
    headers: Mapping[bytes, bytes]
    body: bytes

    @property
    def subject(self) -> tuple[str, ...]:
        """What it decides: a later command of the same subject leaves nothing of this one."""
        path = self.path.partition("?")[0].rstrip("/")
        start, _, last = path.rpartition("/")
        if last in _OPPOSITES:
            return (start,)
        try:
            body = json.loads(self.body)
        except ValueError:
            return (path,)
        if not isinstance(body, dict):
            return (path,)
        return (path, str(body.get("model")), *sorted(body))


class CommandLog:
    """The commands that one worker has carried out, or that somebody keeps for all."""

    def __init__(self) -> None:
        self._latest: dict[tuple[str, ...], Command] = {}

    def commands(self) -> list[Command]:
        """All that still decide something, oldest first."""
        return sorted(self._latest.values(), key=lambda command: command.stamp)

    def next_stamp(self, giver: str) -> Stamp:
        """For a command that is given now."""
        return Stamp(max([each.stamp.number for each in self._latest.values()], default=0) + 1, giver)

    def merge(self, commands: Iterable[Command]) -> list[Command]:
        """Take in what is new; what has to be carried out now, in order: the oldest of it and all that are later.

        Later ones once more, since they may decide part of the same: of a policy, one some fields, another others.
        """
        new = [each for each in commands if self._takes(each)]
        if not new:
            return []
        oldest = min(each.stamp for each in new)
        return [each for each in self.commands() if each.stamp >= oldest]

    def _takes(self, command: Command) -> bool:
        known = self._latest.get(command.subject)
        if known is not None and known.stamp >= command.stamp:
            return False
        self._latest[command.subject] = command
        return True


class Memory:
    """A copy of the log outside of the replicas: what outlives them all. One for each deploy of an application."""

    def __init__(self, deploy: str) -> None:
        self._deploy = deploy
        self._log = CommandLog()

    async def merge(self, deploy: str, commands: list[Command]) -> list[Command]:
        """Take these in; all that are known. Replicas of another deploy tell and learn nothing."""
        if deploy != self._deploy:
            return []
        self._log.merge(commands)
        return self._log.commands()
