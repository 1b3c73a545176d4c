"""The configuration of HAProxy, which carries every request: who gets it, and what follows when a worker dies. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.scaleout.routes import POOL, backend_of, set_names
from app.scaleout.workers import Worker

#: A request is sent again to another worker where its head and body fit into this: bodies of 64 kB always do.
BUFFER_BYTES = 98_304

#: Times that a request is sent again. A request that kills its worker takes so many more with it.
RETRIES = 2

CONTROL = "control"

#: Answered by the node, for all workers together.
_NODE_PATHS = "/metrics /status /v2/health/live /v2/health/ready"
_NODE_PREFIXES = "/admin /v2/repository/models/ /v2/systemsharedmemory /v2/cudasharedmemory"

_BALANCE = {"round_robin": "roundrobin", "least_outstanding": "leastconn", "lpt_packing": "leastconn"}

#: The backend of the model that the path names.
_CHOOSE = f"http-request set-var(txn.backend) path,field(4,/),url_dec,map_str({{file}},{POOL})"

#: What the proxy itself answers, as all of ours: status → code, message.
_ERRORS = {
    400: ("invalid_request", "no HTTP request"),
    408: ("request_timeout", "the request did not come in time"),
    500: ("internal", "internal error of the proxy"),
    502: ("bad_gateway", "the worker gave no answer"),
    503: ("no_worker", "no worker is ready"),
    504: ("deadline_exceeded", "the worker gave no answer in time"),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What the configuration is made of. `folder` holds the sockets, the map of models and the certificate."""

    workers: Sequence[Worker]
    mode: Literal["round_robin", "least_outstanding", "lpt_packing"]
    folder: Path
    listen_fd: int
    threads: int = 1
    connections: int = 8192
    keep_alive_seconds: float = 75
    hard_stop_seconds: float = 25
    tls: bool = False

    @property
    def socket(self) -> Path:
        """Where the proxy takes commands."""
        return self.folder / "proxy.sock"

    @property
    def control_socket(self) -> Path:
        """Where the node's own routes are."""
        return self.folder / "control.sock"

    @property
    def config_file(self) -> Path:
        """What the proxy reads at its start."""
        return self.folder / "haproxy.cfg"

    @property
    def map_file(self) -> Path:
        """Model → backend."""
        return self.folder / "models.map"

    @property
    def certificate(self) -> Path:
        """Chain and key."""
        return self.folder / "tls.pem"


def configuration(plan: Plan, held: Collection[str] = ()) -> str:
    """The whole text. The workers that are `held` get no requests before the proxy is told otherwise."""
    packing = plan.mode == "lpt_packing"
    sections = [_global(plan), _defaults(plan), _frontend(plan), _pool(plan, held), _control(plan)]
    if packing:
        sections += [_preferring(plan, worker) for worker in plan.workers]
        sections += [_held_ready(plan, name, "leastconn") for name in set_names("set")]
        for name in set_names("fill"):
            sections += [_held_ready(plan, name, "first"), _held_ready(plan, f"{name}_more", "leastconn")]
    return "\n".join(sections)


def _section(head: str, *lines: str) -> str:
    return "\n    ".join([head, *lines]) + "\n"


def _global(plan: Plan) -> str:
    return _section(
        "global",
        f"stats socket {plan.socket} mode 600 level admin",
        f"nbthread {plan.threads}",
        f"maxconn {plan.connections}",
        f"hard-stop-after {max(1, round(plan.hard_stop_seconds))}s",
        f"tune.bufsize {BUFFER_BYTES}",
        "ssl-default-bind-options ssl-min-ver TLSv1.2",
    )


def _defaults(plan: Plan) -> str:
    errors = [
        f'http-error status {status} content-type application/json string \'{{"error":"{message}","code":"{code}"}}\''
        for status, (code, message) in _ERRORS.items()
    ]
    return _section(
        "defaults",
        "mode http",
        "timeout connect 2s",
        "timeout client 5m",
        "timeout server 1h",  # deadlines are the workers'
        "timeout http-request 60s",
        f"timeout http-keep-alive {max(1, round(plan.keep_alive_seconds))}s",
        "timeout check 2s",
        "option abortonclose",  # a client that goes away is forgotten by its worker too
        "option http-keep-alive",
        "http-reuse always",
        *errors,
    )


def _frontend(plan: Plan) -> str:
    tls = f" ssl crt {plan.certificate} alpn h2,http/1.1" if plan.tls else ""
    packing = plan.mode == "lpt_packing"
    return _section(
        "frontend public",
        f"bind fd@{plan.listen_fd}{tls}",
        *([_CHOOSE.format(file=plan.map_file)] if packing else ()),
        "acl infers path_end /infer",
        f"acl of_node path {_NODE_PATHS}",
        f"acl of_node path_beg {_NODE_PREFIXES}",
        "acl of_node path_end /stats",
        "acl of_all path /v2/logging",
        f"use_backend {CONTROL} if !infers of_node",
        f"use_backend {CONTROL} if of_all METH_POST",
        *(_packed() if packing else ()),
        f"default_backend {POOL}",
    )


def _packed() -> list[str]:
    """To the backend of the model; where all of its workers are full, or gone, to others."""
    chosen = "var(txn.backend)"
    full = [
        f"use_backend {name}_more if {{ {chosen} -m str {name} }} {{ be_conn_free({name}) eq 0 }} "
        f"{{ nbsrv({name}) gt 0 }}"
        for name in set_names("fill")
    ]
    return [*full, f"use_backend %[{chosen}] if {{ {chosen},nbsrv gt 0 }}"]


def _pool(plan: Plan, held: Collection[str]) -> str:
    checks = "check inter 500ms fastinter 250ms downinter 250ms fall 2 rise 1"
    servers = [
        f"server {each.name} {each.address} {checks}{' disabled' if each.name in held else ''}" for each in plan.workers
    ]
    return _section(
        f"backend {POOL}",
        f"balance {_BALANCE[plan.mode]}",
        *_retries(),
        "option httpchk GET /v2/health/ready",
        "http-check expect status 200",
        *servers,
    )


def _control(plan: Plan) -> str:
    """Commands are never sent twice: only where nobody listened yet."""
    return _section(
        f"backend {CONTROL}",
        "retries 3",
        "retry-on conn-failure",
        f"server node unix@{plan.control_socket}",
    )


def _preferring(plan: Plan, worker: Worker) -> str:
    """One worker while it is there. A request that it lost goes to another."""
    servers = [f"server {each.name} {each.address} track {POOL}/{each.name}" for each in plan.workers]
    return _section(
        f"backend {backend_of(worker.name)}",
        "balance leastconn",
        *_retries(),
        f"use-server {worker.name} if TRUE",
        *servers,
    )


def _held_ready(plan: Plan, name: str, balance: str) -> str:
    """A set of workers that is told later who belongs to it."""
    servers = [f"server {each.name} {each.address} track {POOL}/{each.name} disabled" for each in plan.workers]
    return _section(f"backend {name}", f"balance {balance}", *_retries(), *servers)


def _retries() -> list[str]:
    return [
        "option http-buffer-request",  # what is not wholly there when it is passed on cannot be sent again
        "option redispatch 1",
        f"retries {RETRIES}",
        # 503 too: a model that one worker cannot serve just now, another may. And 404: one has not seen it yet.
        "retry-on conn-failure empty-response response-timeout 404 503",
    ]
