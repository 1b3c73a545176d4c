"""What HAProxy is told at its start."""

import asyncio
import re
import socket
import subprocess
from contextlib import asynccontextmanager

import pytest

from app.scaleout.proxy import _COMMAND_BYTES, ProxyError, RuntimeSocket, _portions, program
from app.scaleout.proxy_config import BUFFER_BYTES, Plan, configuration
from app.scaleout.routes import Group, Routes, set_names
from app.scaleout.workers import Worker

WORKERS = [Worker(f"w{number}", f"w{number}", "cpu", 9000 + number) for number in range(3)]

MODES = ("round_robin", "least_outstanding", "lpt_packing")


def plan(folder, mode="round_robin", fd=3, **options):
    return Plan(WORKERS, mode, folder, fd, **options)


def backends(text):
    """Backend → its lines."""
    parts = re.findall(r"^backend (\S+)\n((?:    .*\n)+)", text, re.MULTILINE)
    return {name: [line.strip() for line in lines.splitlines()] for name, lines in parts}


@pytest.mark.parametrize(("mode", "balance"), [("round_robin", "roundrobin"), ("least_outstanding", "leastconn")])
def test_a_mode_is_a_way_to_balance_the_pool(tmp_path, mode, balance):
    found = backends(configuration(plan(tmp_path, mode)))
    assert found.keys() == {"pool", "control"}
    assert f"balance {balance}" in found["pool"]
    assert len([line for line in found["pool"] if line.startswith("server") and " check " in line]) == 3


def test_a_body_of_64_kb_fits_into_what_is_sent_again(tmp_path):
    text = configuration(plan(tmp_path))
    assert BUFFER_BYTES >= 64 * 1024 + 16 * 1024
    assert f"tune.bufsize {BUFFER_BYTES}" in text
    pool = backends(text)["pool"]
    assert {"option http-buffer-request", "option redispatch 1", "retries 2"} <= set(pool)


def test_who_is_held_back_is_told_apart(tmp_path):
    servers = [line for line in backends(configuration(plan(tmp_path), {"w1"}))["pool"] if line.startswith("server")]
    assert [line.endswith(" disabled") for line in servers] == [False, True, False]


def test_fill_005_each_worker_has_a_backend_that_fails_over_to_all_others(tmp_path):
    found = backends(configuration(plan(tmp_path, "lpt_packing")))
    on = found["on_w1"]
    assert "use-server w1 if TRUE" in on
    assert len([line for line in on if line.startswith("server")]) == 3
    assert not [line for line in on if "disabled" in line]


def test_fill_016_a_set_fills_its_first_server_and_overflows_to_the_least_loaded(tmp_path):
    text = configuration(plan(tmp_path, "lpt_packing"))
    found = backends(text)
    assert "balance first" in found["fill_0"]
    assert "balance leastconn" in found["fill_0_more"]
    assert "be_conn_free(fill_0) eq 0" in text
    assert all("disabled" in line for line in found["set_0"] if line.startswith("server"))


def test_commands_are_not_sent_twice(tmp_path):
    assert "retry-on conn-failure" in backends(configuration(plan(tmp_path)))["control"]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_proxy_that_is_not_there_is_an_error_of_its_own(tmp_path):
    with pytest.raises(ProxyError, match="does not answer"):
        await RuntimeSocket(plan(tmp_path)).tell(Routes({"a": "on_w0"}))


@pytest.mark.clients
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_haproxy_learns_all_of_a_large_map_and_none_of_an_empty_one(tmp_path):
    """Of a command that is longer than its buffer it would lose a part."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = plan(tmp_path, "lpt_packing", listener.fileno())
        proxied = RuntimeSocket(made)
        async with haproxy(made, proxied):
            models = {f"a-model-of-a-long-name-{number:06}": f"on_w{number % 3}" for number in range(6000)}
            groups = {name: Group(("w0", "w2"), 8) for name in set_names("fill")}
            for told in (models, {}):
                await proxied.tell(Routes(told, groups))
                lines = [
                    each.split(" ", 1)[1] for each in (await proxied.ask(f"show map {made.map_file}")).splitlines()
                ]
                assert dict(each.split(" ") for each in lines) == told


@asynccontextmanager
async def haproxy(made, proxied):
    """A real one, which answers."""
    command = [program(None), "-db", "-f", str(made.config_file)]
    with subprocess.Popen(command, pass_fds=[made.listen_fd], stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(1200):
                try:
                    await proxied.ask("show info")
                    break
                except ProxyError:
                    await asyncio.sleep(0.05)
            yield
        finally:
            process.kill()


async def states(proxied, backend):
    """Worker → whether the proxy holds it back."""
    rows = [each.split(",") for each in (await proxied.ask("show stat")).splitlines()]
    return {row[1]: row[17].startswith("MAINT") for row in rows if row[0] == backend and row[1] != "BACKEND"}


@pytest.mark.clients
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("backend", ["pool", "on_w0"])
async def test_who_is_held_back_is_so_in_every_backend_and_after_a_new_start(tmp_path, backend):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = plan(tmp_path, "lpt_packing", listener.fileno())
        proxied = RuntimeSocket(made)
        async with haproxy(made, proxied):
            assert await states(proxied, backend) == {"w0": True, "w1": True, "w2": True}
            for worker in ("w0", "w1"):
                await proxied.admit(worker, admitted=True)
            await proxied.admit("w0", admitted=False)
            assert await states(proxied, backend) == {"w0": True, "w1": False, "w2": True}
        with pytest.raises(ProxyError, match="does not answer"):
            await proxied.admit("w2", admitted=True)
        async with haproxy(made, proxied):
            assert await states(proxied, backend) == {"w0": True, "w1": False, "w2": False}


def test_no_command_is_longer_than_the_proxy_reads_and_none_is_lost():
    texts = [f"{number:0{1 + number % 99}}" for number in range(5000)]
    portions = list(_portions(texts))
    assert [each for portion in portions for each in portion] == texts
    assert len(portions) > 2
    assert all(len(";".join(portion)) <= _COMMAND_BYTES for portion in portions)
    assert list(_portions([])) == []


@pytest.mark.clients
@pytest.mark.parametrize("mode", MODES)
def test_haproxy_takes_the_configuration(tmp_path, mode):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = plan(tmp_path, mode, listener.fileno())
        RuntimeSocket(made)  # writes its files
        done = subprocess.run(
            [program(None), "-c", "-f", str(made.config_file)],
            pass_fds=[listener.fileno()],
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
