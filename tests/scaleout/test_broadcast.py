"""One fleet of all replicas: what goes to every one, what is remembered, and who said nothing."""

import asyncio

import pytest

from app.scaleout.broadcast import Broadcast, Said, concerns_all
from app.scaleout.fleet import Answer
from app.scaleout.remembered import Command, CommandLog, Stamp
from app.scaleout.workers import Worker


@pytest.mark.parametrize(
    ("path", "method", "everybody"),
    [
        ("/v2/models/m/infer", "POST", False),
        ("/v2/models/m/versions/1/infer", "POST", False),
        ("/v2/models/m", "GET", False),
        ("/v2/models/m/stats", "GET", True),
        ("/v2/models/stats", "GET", True),
        ("/v2/models/stats", "POST", False),  # no such route
        ("/v2/health/ready", "GET", False),
        ("/v2/repository/index", "POST", False),
        ("/v2/repository/models/m/load", "POST", True),
        ("/admin/set_policy", "POST", True),
        ("/admin/status", "GET", True),
        ("/v2/logging", "GET", False),
        ("/v2/logging", "POST", True),
        ("/metrics", "GET", True),
        ("/status", "GET", True),
    ],
)
def test_commands_and_reports_concern_every_replica(path, method, everybody):
    assert concerns_all(path, method) is everybody


def said(name, status=200):
    return Said(Worker(name, name, "cpu", 0), "10.0.0.1", 7, Answer(status))


class Handle:
    """Serve's handle: notes what is broadcast, and answers what it is given."""

    def __init__(self, *told):
        self.told, self.asked = told, []

    def broadcast(self, method, *given):
        self.asked.append((method, *given))
        return self

    async def results_async(self, timeout_s, return_exceptions):
        if self.told == (TimeoutError,):
            raise TimeoutError
        return list(self.told)


@pytest.fixture
def ask():
    def ask(handle, *given, **more):
        remembered = []

        async def remember(commands):
            remembered.extend(commands)

        fleet = Broadcast("a", handle, CommandLog(), remember)
        return asyncio.run(fleet.ask_all(*given, **more)), fleet, remembered

    return ask


def test_a_question_is_put_as_it_is(ask):
    handle = Handle(said("a"), said("b"))
    answers, fleet, remembered = ask(handle, "/status")
    assert handle.asked == [("ask", "/status", "GET", b"", None)]
    assert list(answers) == ["a", "b"]
    assert [each.name for each in fleet.workers] == ["a", "b"]
    assert [(each["name"], each["address"], each["pid"]) for each in fleet.processes()] == [
        ("a", "10.0.0.1", 7), ("b", "10.0.0.1", 7),
    ]  # fmt: skip
    assert remembered == []


@pytest.mark.parametrize(("statuses", "ready"), [((200, 503), True), ((503, 503), False), ((), False)])
def test_one_replica_that_is_ready_is_enough(ask, statuses, ready):
    async def look(fleet):
        return await fleet.any_ok("/v2/health/ready", 2.0)

    told = [said(f"r{number}", status) for number, status in enumerate(statuses)]
    assert asyncio.run(look(ask(Handle(*told), "/status")[1])) is ready


def test_a_command_is_stamped_and_remembered_without_the_token(ask):
    handle = Handle(said("a"), said("b", 503))
    headers = {b"authorization": b"Bearer secret", b"content-type": b"application/json"}
    _, _, remembered = ask(handle, "/admin/set_policy", "POST", b"{}", headers)
    told = Command(Stamp(1, "a"), "/admin/set_policy", {b"content-type": b"application/json"}, b"{}")
    assert handle.asked == [("obey", told)]
    assert remembered == [told]


def test_what_no_replica_did_is_not_remembered(ask):
    assert ask(Handle(said("a", 404), said("b", 404)), "/admin/set_policy", "POST")[2] == []


@pytest.mark.parametrize("path", ["/admin/compact", "/admin/prefetch?now"])
def test_what_is_for_those_that_are_there_is_not_remembered(ask, path):
    handle = Handle(said("a"))
    assert ask(handle, path, "POST", b"{}")[2] == []
    assert handle.asked == [("ask", path, "POST", b"{}", None)]


def test_a_replica_that_dies_over_it_is_told_by_what_it_died_of(ask):
    answers, fleet, _ = ask(Handle(said("a"), RuntimeError("the actor died")), "/status")
    assert answers["replica 0"] == Answer(0, text="the actor died")
    assert [each.name for each in fleet.workers] == ["a"]


def test_where_nobody_answers_in_time_that_is_the_answer(ask):
    answers, fleet, _ = ask(Handle(TimeoutError), "/status")
    assert answers == {"replica 0": Answer(0, text="no answer in time")}
    assert fleet.processes() == []
