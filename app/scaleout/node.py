"""One machine with several devices: a worker for each, HAProxy in front, and the process that keeps them all alive."""

import asyncio
import logging
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import uvicorn

from app import logs
from app.api.access import Access
from app.backends.threads import usable_cores
from app.scaleout import control_app
from app.scaleout.controller import Controller
from app.scaleout.fleet import Fleet
from app.scaleout.joining import DISCIPLINES, ClusterError
from app.scaleout.liveness import watch
from app.scaleout.playback import Playback
from app.scaleout.proxy import RuntimeSocket, program
from app.scaleout.proxy_config import Plan
from app.scaleout.supervisor import Child
from app.scaleout.workers import Worker, environment, fleet
from app.settings import PREFIX, Settings, SettingsError
from app.startup import admin_token, check_certificate, forget_admin_token, listen, secret

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(settings: Settings) -> NoReturn:
    """Serve until a signal comes; 0 after a clean drain. Raises `SettingsError` for what cannot begin."""
    check(settings)
    logs.configure(settings.log_format)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # not a line for each look at the workers
    haproxy = program(settings.cluster.haproxy)
    with listen(settings) as listener, _folder() as folder:
        listener.setblocking(False)
        code = asyncio.run(_run(settings, listener, folder, haproxy))
    logging.shutdown()
    sys.exit(code)


def check(settings: Settings) -> None:
    """Raise `SettingsError` for settings that contradict each other, and files that they name in vain."""
    if not sys.platform.startswith("linux"):
        raise SettingsError(f"{PREFIX}RUNTIME_DEVICES: several devices are served on Linux only")
    check_certificate(settings)
    if settings.cluster.mode != "lpt_packing":
        return
    if settings.scheduler.discipline not in DISCIPLINES:
        raise SettingsError(
            f"{PREFIX}CLUSTER_MODE=lpt_packing needs {PREFIX}SCHEDULER_DISCIPLINE={' or '.join(DISCIPLINES)}, not "
            f"{settings.scheduler.discipline}: shares would hold back on each worker what was placed there together"
        )
    if settings.model_control_mode == "explicit":
        raise SettingsError(
            f"{PREFIX}CLUSTER_MODE=lpt_packing moves weights by itself: {PREFIX}MODEL_CONTROL_MODE=explicit leaves "
            f"that to operators"
        )


async def _run(settings: Settings, listener: socket.socket, folder: Path, haproxy: str) -> int:
    return await Node(settings, listener, folder, haproxy).run()


class ControlServer(uvicorn.Server):
    """The node's own routes; signals are the node's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Called by uvicorn around serving."""
        yield


class Node:
    """The process that keeps workers and proxy alive. Event loop only."""

    def __init__(self, settings: Settings, listener: socket.socket, folder: Path, haproxy: str) -> None:
        endpoints = settings.endpoints
        self.draining = False
        self._settings = settings
        self._listener = listener
        self._plan = plan = _plan(settings, fleet(settings), listener, folder)
        _write_certificate(settings, plan)
        token = admin_token(settings)
        self._fleet = Fleet(plan.workers, token)
        self._proxy_socket = RuntimeSocket(plan)
        self._playback = Playback(self._fleet, self._proxy_socket, self._fail)
        self._controller = self._make_controller()
        self._access = access = Access(secret(endpoints.api_token), token)
        app = control_app.create(self, self._playback, access, self._controller, settings.cluster.mode)
        self._control = ControlServer(
            uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none", loop="none")
        )
        command = [sys.executable, "-m", "app", "serve"]
        self._workers = {
            worker.name: Child(
                worker.name,
                command,
                environment(settings, worker, token, os.environ),
                after=partial(self._worker_started, worker.name),
            )
            for worker in plan.workers
        }
        self._proxy = Child(
            "proxy",
            [haproxy, "-db", "-f", str(plan.config_file)],
            os.environ,
            pass_fds=[listener.fileno()],
            after=self._proxy_started,
        )
        self._signalled = asyncio.Event()
        self._code = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def processes(self) -> list[dict[str, Any]]:
        """Name, device, address, process id and number of starts of every worker."""
        return [
            {
                "name": worker.name,
                "label": worker.label,
                "device": worker.device,
                "address": worker.address,
                "pid": self._workers[worker.name].pid,
                "starts": self._workers[worker.name].starts,
            }
            for worker in self._plan.workers
        ]

    async def run(self) -> int:
        """Everything, until a signal comes and the last answer is given; the exit status."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        control = _unix_socket(self._plan.control_socket)
        children = [asyncio.ensure_future(each.run()) for each in (*self._workers.values(), self._proxy)]
        serving = asyncio.ensure_future(self._control.serve(sockets=[control]))
        if self._controller is not None:
            self._start(self._control_placement(self._controller))
        host, port = self._listener.getsockname()[:2]
        logger.info("serving on %s:%d with %d workers: %s", host, port, len(self._workers), self._where())
        watching = asyncio.ensure_future(watch(self._fleet, self._workers))
        await self._signalled.wait()
        watching.cancel()  # in a drain there is less and less to answer
        await self._drain(children)
        forget_admin_token(self._settings, self._access)
        self._control.should_exit = True
        await asyncio.wait([serving], timeout=1.0)
        self._playback.close()
        for task in self._tasks:
            task.cancel()
        await self._fleet.close()
        return self._code

    def _where(self) -> str:
        return ", ".join([f"{each.name} {each.address} ({each.device})" for each in self._plan.workers])

    def _make_controller(self) -> Controller | None:
        config = self._settings.cluster
        if config.mode != "lpt_packing":
            return None
        return Controller(self._fleet, self._proxy_socket, config, time.monotonic)

    async def _control_placement(self, controller: Controller) -> None:
        try:
            await controller.run()
        except ClusterError as error:
            logger.error("ending: %s", error)
        except Exception:  # a fault of ours: whoever started the node starts it anew
            logger.exception("ending: models cannot be placed any more")
        self._fail()

    def _fail(self) -> None:
        self._code = 1
        self._signalled.set()

    def _worker_started(self, name: str) -> None:
        self._playback.started(name, self._workers[name].starts)

    def _proxy_started(self) -> None:
        if self._controller is not None:
            self._start(self._controller.tell_again())

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_signal(self, number: int) -> None:
        if self._signalled.is_set():
            logger.warning("second signal: ending at once")
            logging.shutdown()
            os._exit(128 + number)  # the kernel ends the children
        self._signalled.set()

    async def _drain(self, children: Sequence["asyncio.Future[None]"]) -> None:
        """Unready, then no new connections, the last answers, and everybody ends."""
        settings, loop = self._settings, asyncio.get_running_loop()
        limit = loop.time() + settings.shutdown_timeout_seconds
        self.draining = True
        if self._code == 0:
            logger.info("draining: not ready, serving for %g s more", settings.drain_delay_seconds)
            await asyncio.sleep(min(settings.drain_delay_seconds, settings.shutdown_timeout_seconds))
        self._listener.close()
        self._proxy.stop(signal.SIGUSR1)  # it ends with its last connection
        for worker in self._workers.values():
            worker.stop(signal.SIGTERM)
        await asyncio.wait(children, timeout=max(limit - loop.time() - 0.5, 0.5))
        for child in (*self._workers.values(), self._proxy):
            child.stop(signal.SIGKILL)
        await asyncio.wait(children, timeout=2.0)


def _plan(settings: Settings, workers: tuple[Worker, ...], listener: socket.socket, folder: Path) -> Plan:
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Plan(
        workers,
        settings.cluster.mode,
        folder,
        listener.fileno(),
        threads=max(1, min(4, usable_cores() // 4)),
        connections=min(2 * settings.endpoints.max_concurrent_requests, (most_files - 100) // 2),
        keep_alive_seconds=settings.endpoints.keep_alive_seconds,
        hard_stop_seconds=settings.shutdown_timeout_seconds - settings.drain_delay_seconds,
        tls=settings.endpoints.ssl_certfile is not None,
    )


@contextmanager
def _folder() -> Iterator[Path]:
    """Where sockets and the proxy's files live: only for this user, and short enough for the path of a socket."""
    place = tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix="inference-server-", dir=place if len(place) < 60 else "/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unix_socket(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(128)
    return listener


def _write_certificate(settings: Settings, plan: Plan) -> None:
    """Chain and key in one file, as HAProxy wants them."""
    certificate, key = settings.endpoints.ssl_certfile, settings.endpoints.ssl_keyfile
    if certificate is None:
        return
    parts = [Path(each).read_text() for each in (certificate, key) if each is not None]
    plan.certificate.touch(0o600)
    plan.certificate.write_text("\n".join(parts))
