"""`inference-server cluster deploy`: the worker on Ray Serve, on a cluster that is there or on one of its own."""

import asyncio
import os
import secrets
import signal
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from pydantic import SecretStr
from rich.table import Table

from app.api import terminal
from app.api.access import make_admin_token
from app.cli import read_token
from app.domain.errors import ServingError
from app.scaleout.proxy_config import BUFFER_BYTES
from app.settings import PREFIX, Settings, SettingsError
from app.startup import admin_token_file

#: Name, type, default, meaning.
_OPTIONS: tuple[tuple[str, type, Any, str], ...] = (
    ("address", str, None, "of a Ray cluster, or auto; by default one is started here, until a signal ends it"),
    ("replicas", int, 1, "number of workers, or the least of them (1)"),
    ("max-replicas", int, None, "scale up to so many, by queue depth"),
    ("queue-depth", float, 8.0, "requests that may queue at each before there are more (8)"),
    ("cpus", float, 1.0, "processors for each (1)"),
    ("name", str, "inference-server", "of the application (inference-server)"),
    ("route-prefix", str, "/", "the path under which it is reached (/)"),
    ("port", int, None, "where Serve listens, on every machine; by default endpoints.port"),
)

#: Bytes for Ray's store of objects, of which a local cluster has next to none: by default it takes a third of memory.
_OBJECT_STORE = 128 * 2**20


def add_options(parser: ArgumentParser) -> None:
    """What can be said about a deploy."""
    for name, kind, default, meaning in _OPTIONS:
        parser.add_argument(f"--{name}", type=kind, default=default, metavar=name.upper(), help=meaning)


def run(arguments: Namespace, settings: Settings) -> None:
    """Deploy; with a cluster of our own, serve until a signal comes.

    Raises `SettingsError` or `ServingError` for what cannot be deployed.
    """
    check(arguments, settings)
    local = arguments.address is None
    environment = serve_environment(settings, os.environ)
    # Serve reads this when it is imported, and a local cluster inherits it.
    os.environ.update(environment | (authentication(os.environ) if local else {}))
    ray, serve = import_module("ray"), import_module("ray.serve")
    own = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE} if local else {}
    try:
        ray.init("local" if local else arguments.address, log_to_driver=False, **own)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ServingError(f"no Ray cluster {'here' if local else f'at {arguments.address}'}: {error}") from error
    try:
        port = settings.endpoints.port if arguments.port is None else arguments.port
        told = replica_settings(
            settings, gpu=has_gpu(settings, ray.cluster_resources(), local=local), cpus=arguments.cpus
        )
        serve.start("EveryNode", {"port": port}, controller_options={"runtime_env": {"env_vars": environment}})
        application = import_module("app.scaleout.ray_serve").application(arguments, told, environment)
        try:
            serve.run(application, name=arguments.name, route_prefix=arguments.route_prefix)
        except RuntimeError as error:
            raise ServingError(f"Ray Serve did not deploy {arguments.name}: {error}") from error
        terminal.console().print(_table(arguments, settings, told, port))
        if local:
            asyncio.run(_until_signal())
            serve.shutdown()
    finally:
        ray.shutdown()


def check(arguments: Namespace, settings: Settings) -> None:
    """Raise `SettingsError` or `ServingError` for what cannot be deployed, before anything starts."""
    devices, certificate = settings.runtime.devices, settings.endpoints.ssl_certfile
    least, most, prefix = arguments.replicas, arguments.max_replicas, arguments.route_prefix
    if len(devices) > 1:
        raise SettingsError(
            f"{PREFIX}RUNTIME_DEVICES={','.join(devices)}: on Ray each worker has one device: unset it, and say "
            f"--replicas {len(devices)}"
        )
    if certificate is not None:
        raise SettingsError(f"{PREFIX}ENDPOINTS_SSL_CERTFILE={certificate}: Ray Serve's proxy has no TLS: unset it")
    if least < 1 or arguments.cpus < 0 or arguments.queue_depth <= 0:
        raise ServingError("--replicas is at least 1, --queue-depth more than 0, --cpus not negative")
    if most is not None and most < least:
        raise ServingError(f"--max-replicas {most} is less than --replicas {least}")
    if not prefix.startswith("/"):
        raise ServingError(f"--route-prefix {prefix}: begins with a slash")
    if find_spec("ray") is None:
        raise ServingError("cluster deploy needs Ray: pip install 'inference-server[ray]'")


def serve_environment(settings: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    """What Ray Serve reads in its environment. What is set already stays."""
    wanted = {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        # The event loop of a worker never computes: a second one between it and the socket only costs.
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        # A proxy that is not ready by then is ended, and the deploy with it: where it is slow, 5 s are too few.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": f"{settings.drain_delay_seconds:g}",
        # What a replica took and did not begin to answer is asked of another, where the proxy still has all of it.
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
        "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": str(BUFFER_BYTES),
    }
    return {name: environment.get(name, value) for name, value in wanted.items()}


def authentication(environment: Mapping[str, str]) -> dict[str, str]:
    """What a cluster of our own asks of its members: Ray listens everywhere, and runs what anybody sends it."""
    found = {} if "RAY_AUTH_MODE" in environment else {"RAY_AUTH_MODE": "token"}
    if environment.get("RAY_AUTH_MODE", "token") == "token" and not {
        "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
    } & environment.keys():  # fmt: skip
        found["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    return found


def has_gpu(settings: Settings, resources: Mapping[str, float], *, local: bool) -> bool:
    """Whether each replica gets a device of the cluster. Raises `SettingsError` where it should and there is none.

    A cluster that is not `local` may grow: what is asked of it by name is taken to come.
    """
    backend, found = settings.runtime.backend, resources.get("GPU", 0.0) >= 1.0
    if backend == "cuda" and local and not found:
        raise SettingsError(f"{PREFIX}RUNTIME_BACKEND=cuda: Ray finds no GPU on this machine")
    return backend == "cuda" or (backend == "auto" and settings.runtime.devices != ("cpu",) and found)


def replica_settings(settings: Settings, *, gpu: bool, cpus: float) -> Settings:
    """What a replica is told: paths that do not depend on where it runs, one device, the admin token of all."""
    runtime, endpoints = settings.runtime, settings.endpoints
    device: dict[str, Any] = {"devices": (), "device_ordinal": 0}  # Ray shows a replica no other
    if gpu:
        device["backend"] = "cuda"
    else:
        device |= {"backend": "cpu", "intra_op_threads": runtime.intra_op_threads or max(1, int(cpus))}
    return settings.model_copy(
        update={
            "model_dirs": tuple([path.absolute() for path in settings.model_dirs]),
            "cache_dir": settings.cache_dir.absolute(),
            "runtime": runtime.model_copy(update=device),
            "endpoints": endpoints.model_copy(update={"admin_token": endpoints.admin_token or _kept_token(settings)}),
        }
    )


def _kept_token(settings: Settings) -> SecretStr:
    """That of the last deploy from here, so that scripts go on working, else a new one."""
    path = admin_token_file(settings)
    try:
        return SecretStr(read_token(path) or make_admin_token(path))
    except OSError as error:
        raise SettingsError(f"{PREFIX}CACHE_DIR={settings.cache_dir}: cannot be written ({error.strerror})") from error


def _table(arguments: Namespace, settings: Settings, told: Settings, port: int) -> Table:
    most = "" if arguments.max_replicas is None else f" to {arguments.max_replicas}"
    token = "as configured" if settings.endpoints.admin_token is not None else str(admin_token_file(settings))
    table = Table(show_header=False)
    table.add_row("application", arguments.name)
    table.add_row("address", f"http://127.0.0.1:{port}{arguments.route_prefix.rstrip('/')}, on every machine")
    table.add_row(
        "replicas", f"{arguments.replicas}{most}, each on {'a GPU' if told.runtime.backend == 'cuda' else 'the CPU'}"
    )
    table.add_row("admin token", token)
    return table


async def _until_signal() -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    await ended.wait()
