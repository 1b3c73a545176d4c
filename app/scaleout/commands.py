"""`inference-server cluster …`: shows where models are, and says where they should be; deploys on Ray."""

import json
import urllib.error
import urllib.request
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from app.api import terminal
from app.api.status_client import address, fetch
from app.cli import own_url, read_token
from app.domain.errors import InvalidRequest, ModelUnavailable, ServingError
from app.scaleout import deploy
from app.scaleout.tables import cluster_tables
from app.settings import Settings
from app.startup import admin_token_file

#: Seconds: a repack loads weights.
_PATIENCE = 600.0

#: Command → path of the route.
_PATHS = {
    "repack": "/admin/cluster/repack",
    "set-replicas": "/admin/cluster/set_replicas",
    "set-policy": "/admin/cluster/set_policy",
}


def run(argv: Sequence[str], settings: Settings) -> list[str]:
    """Carry out one command; nothing that went wrong. Raises `ServingError` or `SettingsError` instead."""
    arguments = _parser().parse_args(argv)
    if arguments.what == "deploy":
        deploy.run(arguments, settings)
    else:
        _ask(arguments, settings)
    return []


def _ask(arguments: Namespace, settings: Settings) -> None:
    """One command of the node that the arguments name."""
    api, admin = settings.endpoints.api_token, settings.endpoints.admin_token
    api_token = None if api is None else api.get_secret_value()
    admin_token = read_token(admin_token_file(settings)) if admin is None else admin.get_secret_value()
    url = address(arguments.url or own_url(settings))
    if arguments.what != "status":
        path = _PATHS[arguments.what]
        told = _post(f"{url}{path}", _body(arguments), admin_token)
        if arguments.what == "set-policy":
            terminal.console().print(", ".join([f"{name} = {value}" for name, value in told["policy"].items()]))
    status = fetch(f"{url}/status", [lambda: api_token, lambda: admin_token])
    if "workers" not in status:
        raise ServingError(f"{url} is one worker, no cluster: several need runtime.devices, or cluster deploy")
    terminal.console().print(cluster_tables(status))


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="inference-server cluster", description="Several workers: who serves what.")
    parser.add_argument("--url", help="by default the server that these settings start")
    commands = parser.add_subparsers(dest="what", required=True)
    for name, arguments, meaning in (
        ("status", None, "show workers and models"),
        ("repack", None, "place all models anew"),
        ("set-replicas", "MODEL N", "how many workers a model has: a number, or all"),
        ("set-policy", "KEY=VALUE", "how models are placed"),
    ):
        command = commands.add_parser(name, help=meaning)
        command.add_argument("--url", default=SUPPRESS, help=SUPPRESS)  # it may stand behind the command as well
        command.add_argument("arguments", nargs="*", metavar=arguments)
    deploy.add_options(commands.add_parser("deploy", help="serve on Ray Serve, or change what serves there"))
    return parser


def _body(arguments: Namespace) -> Mapping[str, Any]:
    given = arguments.arguments
    if arguments.what == "set-replicas":
        if len(given) != 2:
            raise InvalidRequest("cluster set-replicas MODEL N: a number, or all")
        model, count = given
        return {"model": model, "replicas": int(count) if count.isdigit() else count}
    if arguments.what == "set-policy":
        return dict([_pair(each) for each in given])
    if given:
        raise InvalidRequest(f"cluster {arguments.what} takes no arguments, got {' '.join(given)}")
    return {}


def _pair(text: str) -> tuple[str, Any]:
    """`hysteresis=0.2` as a name and a value."""
    name, separator, value = text.partition("=")
    if not separator:
        raise InvalidRequest(f"{text!r}: write KEY=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _post(url: str, body: Mapping[str, Any], token: str | None) -> Mapping[str, Any]:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {(token or '').strip()}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=_PATIENCE) as answer:
            told: Mapping[str, Any] = json.load(answer)
            return told
    except urllib.error.HTTPError as error:
        with error:
            raise ServingError(f"{url} answers {error.code}: {_message(error.read())}") from error
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"no server answers at {url}: {error}") from error


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace")[:200]
