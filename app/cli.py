"""The command line: serve, compile, check, pack, status."""

import argparse
import logging
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from math import ceil
from pathlib import Path
from typing import Any, NoReturn

import uvicorn
from rich.live import Live

from app import backends, logs
from app.api import terminal
from app.api.fastpath import FastPathProtocol
from app.api.server import Server, end_process
from app.api.status_client import Status, address, fetch
from app.backends.graph import external_files, read_graph
from app.domain.config import ModelPolicy
from app.domain.errors import BundleError, ServingError
from app.main import create_app
from app.repository import packing
from app.repository.build import Builder
from app.repository.files import MODEL_FILE, is_bundle, of_triton
from app.repository.scan import find_bundles, scan
from app.runtime.loader import Loader
from app.runtime.trial import Compiled, Trial
from app.settings import Settings, SettingsError
from app.startup import admin_token_file, allow_open_files, check_certificate, listen

#: What is for several workers, and is imported only then.
CLUSTER = {"serve": "app.scaleout.node:serve", "command": "app.scaleout.commands:run"}


def serve(_: argparse.Namespace) -> NoReturn:
    """Serve until a signal comes; 0 after a clean drain."""
    settings = Settings.load()
    allow_open_files()
    if len(settings.runtime.devices) > 1:
        _of_cluster("serve")(settings)
    settings = settings.of_one_device()
    check_certificate(settings)
    logs.configure(settings.log_format)
    endpoints, listener = settings.endpoints, listen(settings)
    config = uvicorn.Config(
        create_app(settings),
        host=endpoints.host,
        port=endpoints.port,
        http=FastPathProtocol,  # without a handler in the lifespan state it has limits and patience, and passes all on
        loop="auto",
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        timeout_keep_alive=ceil(endpoints.keep_alive_seconds),
        ssl_certfile=endpoints.ssl_certfile,
        ssl_keyfile=endpoints.ssl_keyfile,
    )
    server = Server(config)
    server.run([listener])
    end_process(0 if server.started else 3)


def _of_cluster(name: str) -> Any:
    module, function = CLUSTER[name].split(":")
    try:
        return getattr(import_module(module), function)
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"several devices need the extra: pip install 'inference-server[cluster]' (there is no {error.name})"
        ) from error


def cluster(arguments: argparse.Namespace) -> list[str]:
    """Show or change which model is on which worker, or deploy on Ray; the rest of the line is read there."""
    faults: list[str] = _of_cluster("command")(arguments.rest, Settings.load())
    return faults


def compile_bundles(arguments: argparse.Namespace) -> list[str]:
    """Fill the compile cache; what went wrong."""
    settings = Settings.load()
    named = bool(arguments.bundles)
    include = ("*",) if named else settings.models_include
    paths, faults, passed_over = find_bundles(arguments.bundles or settings.model_dirs, include)
    terminal.tell("warning", passed_over)
    done: list[Compiled] = []
    with _trial(settings) as trial:
        for path in terminal.progress("compiling", paths):
            try:
                done.append(trial.compile(path))
            except ServingError as error:
                faults.append(f"{path.name}: {error.message}")
    terminal.console().print(terminal.compiled_table(done))
    for found in done:
        terminal.tell(f"warning: {found.spec.name}", found.warnings)
    return faults


def check(arguments: argparse.Namespace) -> list[str]:
    """Try bundles as the server would; what would keep them from being served."""
    settings, faults = Settings.load(), []
    with _trial(settings) as trial:
        bundles = [found for path in arguments.bundles for found in _bundles_in(path.absolute())]
        for path in terminal.progress("checking", bundles):
            try:
                found = trial.compile(path)
                runs = trial.run(found)
            except ServingError as error:
                faults.append(f"{path.name}: {error.message}")
                continue
            terminal.console().print(terminal.check_table(found, runs))
            terminal.tell(f"warning: {path.name}", found.warnings)
            if missing := set(found.spec.meta_models or ()):
                missing -= scan([path.parent, *settings.model_dirs]).bundles.keys()
            faults += [
                f"{path.name}: calls {name!r}, a bundle that lies neither beside it nor in MODEL_DIRS"
                for name in sorted(missing)
            ]
            complaints = [f"{path.name}: {each.complaint}" for each in runs if each.fault]
            if found.bundle.sample is not None:
                faults += complaints
            else:  # perhaps the inputs were wrong that were tried
                terminal.tell("warning", [f"{each}; a sample.npz in the bundle may help" for each in complaints])
    return faults


def pack(arguments: argparse.Namespace) -> list[str]:
    """Write a bundle from an ONNX file, one that can be served, or nothing."""
    settings, file, target = Settings.load(), arguments.model.absolute(), arguments.directory.absolute()
    with packing.staged(target) as staging, _trial(settings) as trial:
        try:
            packing.copy_model(file, external_files(read_graph(file)), staging)
            warnings = _write_what_compiles(trial, staging, f"packed from {file.name}")
        except ServingError as error:
            raise BundleError(error.message.replace(str(staging / MODEL_FILE), str(file))) from error
    terminal.tell(f"warning: {target.name}", warnings)
    terminal.console().print(f"{target}: read its manifest.yaml, then try it: inference-server check {target}")
    return []


def _write_what_compiles(trial: Trial, staging: Path, origin: str) -> list[str]:
    """A manifest with a batch if that can be run, else without; what there is to say of it."""
    packing.write_manifest(staging, origin)
    try:
        [found] = [trial.compile(path) for path in terminal.progress("compiling", [staging])]
    except BundleError as error:
        fault = error.message.removeprefix(f"{staging}/")
        packing.write_manifest(staging, origin, unbatched=fault)
        trial.compile(staging)
        return [f"its requests run alone, since a batch does not run: {fault}"]
    return list(found.warnings)


def status(arguments: argparse.Namespace) -> list[str]:
    """Show the status of a server, once, or every second until Enter or Ctrl-C."""
    settings = Settings.load()
    console = terminal.console()
    if not (arguments.watch and console.is_terminal):
        console.print(terminal.status_table(_status(settings, arguments.url)))
        return []
    with Live(terminal.status_table(_status(settings, arguments.url)), console=console, auto_refresh=False) as live:
        while not select.select([sys.stdin], [], [], 1.0)[0]:
            live.update(terminal.status_table(_status(settings, arguments.url)), refresh=True)
    return []


def _status(settings: Settings, url: str | None) -> Status:
    """What the server at `url` says, by default the one that these settings start.

    The token that such a server made for itself is shown to nobody else.
    """
    endpoints = settings.endpoints
    tokens = [lambda: None if endpoints.api_token is None else endpoints.api_token.get_secret_value()]
    if url is None:
        url = own_url(settings)
        tokens.append(lambda: read_token(admin_token_file(settings)))
    return fetch(f"{address(url)}/status", tokens)


def own_url(settings: Settings) -> str:
    """The address of the server that these settings start."""
    endpoints = settings.endpoints
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(endpoints.host, endpoints.host)
    return f"{'https' if endpoints.ssl_certfile else 'http'}://{f'[{host}]' if ':' in host else host}:{endpoints.port}"


def read_token(file: Path) -> str | None:
    """What a server keeps there, or None."""
    try:
        return file.read_text().strip()
    except OSError:
        return None


def _bundles_in(path: Path) -> list[Path]:
    """The bundles that a directory holds; itself where it holds none, is one, or is to be told how it becomes one."""
    held = {} if is_bundle(path) or (path.is_dir() and of_triton(path)) else scan([path]).bundles
    return [held[name].path for name in sorted(held)] or [path]


@contextmanager
def _trial(settings: Settings) -> Iterator[Trial]:
    quiet = logging.NullHandler()  # what there is to say is said by the commands
    logging.getLogger().addHandler(quiet)
    backend = backends.create(settings.runtime, settings.cache_dir)
    loader = Loader(backend, Builder(settings.cache_dir))
    trial = Trial(backend, loader, lambda name: settings.scheduler.models.get(name, ModelPolicy()))
    try:
        yield trial
    finally:
        trial.close()
        logging.getLogger().removeHandler(quiet)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the console script. Exit status 1 where something went wrong, each told in a line."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    if rest and arguments.command != "cluster":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    arguments.rest = rest
    try:
        faults = arguments.run(arguments)
    except (SettingsError, ServingError) as error:
        sys.exit(f"inference-server: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    terminal.tell("error", faults)
    sys.exit(1 if faults else 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="inference-server",
        description="Serve ONNX models over HTTP.",
        epilog="All commands obey INFERENCE_SERVER_… and the node file, as serve does.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('inference-server')}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("serve", help="serve the bundles in model_dirs").set_defaults(run=serve)
    command = commands.add_parser("compile", help="fill the compile cache ahead of time")
    command.add_argument("bundles", nargs="*", type=Path, help="bundles, or directories of them; by default model_dirs")
    command.set_defaults(run=compile_bundles)
    command = commands.add_parser("check", help="try bundles, and tell what they cost")
    command.add_argument("bundles", nargs="+", type=Path, help="bundles, or directories of them")
    command.set_defaults(run=check)
    command = commands.add_parser("pack", help="write a bundle from an ONNX file")
    command.add_argument("model", type=Path, help="the ONNX file")
    command.add_argument("directory", type=Path, help="the bundle to write; its name is the model's")
    command.set_defaults(run=pack)
    command = commands.add_parser("status", help="show the status of a server")
    command.add_argument("--url", help="by default the server that these settings start")
    command.add_argument("--watch", action="store_true", help="again every second, until Enter or Ctrl-C")
    command.set_defaults(run=status)
    command = commands.add_parser("cluster", add_help=False, help="several workers: who serves what, or serve on Ray")
    command.set_defaults(run=cluster)
    return parser
