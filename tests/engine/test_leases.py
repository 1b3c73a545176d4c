"""A generation stays as long as a request refers to it."""

import asyncio
from pathlib import Path

import pytest

from app.engine.leases import Leases
from app.repository.bundle import Bundle
from app.repository.hooks import Hooks
from app.runtime.registry import Generation
from tests.builders import spec

pytestmark = pytest.mark.anyio


@pytest.fixture
def freed():
    return []


@pytest.fixture
def leases(freed):
    return Leases(freed.append)


@pytest.fixture
def generation():
    return Generation("m@1", Bundle(Path("m"), spec(), Hooks(), "digest", None))


def test_a_retired_generation_without_requests_is_freed_at_once(leases, freed, generation):
    leases.retire(generation)
    assert freed == [generation]


def test_a_retired_generation_is_freed_when_its_last_request_ends(leases, freed, generation):
    leases.take(generation)
    leases.take(generation)
    leases.retire(generation)
    leases.give_back(generation)
    assert freed == []
    leases.give_back(generation)
    assert freed == [generation]


def test_a_generation_that_is_not_retired_is_never_freed(leases, freed, generation):
    leases.take(generation)
    leases.give_back(generation)
    assert freed == []


def test_requests_in_flight_are_counted_in_all_and_per_generation(leases, generation):
    other = Generation("n@1", generation.bundle)
    leases.take(generation)
    leases.take(generation)
    leases.take(other)
    assert (leases.total, generation.holders.count, other.holders.count) == (3, 2, 1)
    leases.give_back(generation)
    assert (leases.total, generation.holders.count) == (2, 1)


async def test_waiting_for_idle_ends_at_once_when_nothing_is_in_flight(leases):
    await leases.wait_idle()


async def test_everyone_who_waits_for_idle_is_woken_by_the_last_request(leases, generation):
    leases.take(generation)
    leases.take(generation)
    waiters = [asyncio.create_task(leases.wait_idle()) for _ in range(2)]
    await asyncio.sleep(0)
    leases.give_back(generation)
    await asyncio.sleep(0)
    assert not any(waiter.done() for waiter in waiters)
    leases.give_back(generation)
    await asyncio.wait_for(asyncio.gather(*waiters), 30)


async def test_a_request_that_begins_before_the_waiter_wakes_is_waited_for(leases, generation):
    leases.take(generation)
    waiter = asyncio.create_task(leases.wait_idle())
    await asyncio.sleep(0)
    leases.give_back(generation)
    leases.take(generation)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiter.done()
    leases.give_back(generation)
    await asyncio.wait_for(waiter, 30)
