"""The commands that wait for the dispatcher thread, and which of them is next."""

from collections import deque
from collections.abc import Callable

Command = Callable[[], None]


class CommandQueue:
    """Commands in their order, those that execute a model apart. Under the dispatcher's lock."""

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()
        self._executions: deque[Command] = deque()
        self._executed = False

    def __bool__(self) -> bool:
        return bool(self._commands or self._executions)

    def put(self, command: Command, *, executes: bool = False) -> None:
        """Add one that changes something or, with `executes`, one that holds the device for an execution."""
        (self._executions if executes else self._commands).append(command)

    def take(self) -> tuple[Command, ...]:
        """What comes before the next dispatch: all commands, else one execution.

        Nothing right after an execution: whoever's requests are due then waits for one of them, and not for another.
        """
        if self._commands:
            commands = tuple(self._commands)
            self._commands.clear()
            return commands
        self._executed = bool(self._executions) and not self._executed
        return (self._executions.popleft(),) if self._executed else ()

    def take_all(self) -> tuple[Command, ...]:
        """Everything, at the end."""
        taken = (*self._commands, *self._executions)
        self._commands.clear()
        self._executions.clear()
        return taken
