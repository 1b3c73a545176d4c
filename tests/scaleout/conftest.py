"""A real cluster: a node with two workers on the CPU and HAProxy, and clients that never stop asking."""

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from app.scaleout.proxy import program
from app.settings import SettingsError
from tests.e2e.conftest import running


@dataclass
class Cluster:
    """The node's process, and what can be asked of it."""

    server: object
    url: str
    token: str

    def get(self, path):
        return httpx.get(f"{self.url}{path}", trust_env=False, timeout=30)

    def command(self, path, body=None):
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.post(f"{self.url}{path}", json=body or {}, headers=headers, trust_env=False, timeout=120)

    def workers(self):
        return self.get("/status").json()["workers"]

    def homes(self):
        """Model → its workers, once models are placed."""
        placement = self.get("/status").json()["placement"]
        return {name: model["workers"] for name, model in placement["models"].items()}

    def answered(self, model="tabular"):
        """Worker → answers that it gave."""
        return {
            worker["name"]: each["serving"]["ok"]
            for worker in self.workers()
            if worker["status"] is not None
            for each in worker["status"]["models"]
            if each["name"] == model and each["serving"] is not None
        }

    def wait(self, found, what, seconds=60):
        """Ask until there is something to find; it."""
        pause = threading.Event()
        for _ in range(int(seconds / 0.1)):
            try:
                if result := found():
                    return result
            except (httpx.TransportError, KeyError, TypeError):  # it is not there yet
                pass
            pause.wait(0.1)
        raise AssertionError(f"{what}: not in {seconds} s")


@dataclass
class Load:
    """Clients that ask and ask, and note what was not 200."""

    url: str
    path: str
    body: bytes
    answers: int = 0
    failures: list[str] = field(default_factory=list)

    def __post_init__(self):
        self._ended = threading.Event()

    def ask(self):
        with httpx.Client(base_url=self.url, trust_env=False, timeout=60) as client:
            while not self._ended.is_set():
                try:
                    answer = client.post(self.path, content=self.body)
                    if answer.status_code != 200:
                        self.failures.append(f"{answer.status_code} {answer.text:.200}")
                except httpx.TransportError as error:
                    self.failures.append(repr(error))
                self.answers += 1  # a few may be lost among threads: nothing counts on the exact number

    def end(self):
        self._ended.set()

    def wait_for_more(self, count=50):
        """Until so many more were answered."""
        pause, until = threading.Event(), self.answers + count
        for _ in range(6000):
            if self.answers >= until:
                return
            pause.wait(0.01)
        raise AssertionError("the clients get no answers")


@contextmanager
def load(url, path, body, clients=4):
    made = Load(url, path, body)
    threads = [threading.Thread(target=made.ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        made.end()
        for thread in threads:
            thread.join(60)


@contextmanager
def clustered(cache_dir, **settings):
    """A node with two workers, all of them ready."""
    try:
        program(None)
    except SettingsError as error:
        pytest.fail(str(error))
    token = "the admin token"
    given = {
        "MODELS_INCLUDE": "tabular,filetype", "RUNTIME_DEVICES": "cpu:2", "CLUSTER_BASE_PORT": 0,
        "ENDPOINTS_ADMIN_TOKEN": token, **settings,
    }  # fmt: skip
    with running(cache_dir, until="serving on", **given) as server:
        cluster = Cluster(server, server.url, token)

        unseen = {"Server pool/w0 is UP", "Server pool/w1 is UP"}
        while unseen:
            line = server.read_until("is UP")
            unseen = {each for each in unseen if each not in line}
        if given.get("CLUSTER_MODE") == "lpt_packing":
            cluster.wait(cluster.homes, "models are placed")
        yield cluster


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory):
    """One compile cache for all clusters."""
    return tmp_path_factory.mktemp("cluster-cache")
