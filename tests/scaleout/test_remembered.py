"""What replicas are told, however late, doubled or disordered it reaches them: all end alike."""

import asyncio
import json

from hypothesis import given
from hypothesis import strategies as st

from app.scaleout.remembered import Command, CommandLog, Memory, Stamp


def command(number, path="/admin/set_policy", body=b"{}", giver="a"):
    return Command(Stamp(number, giver), path, {}, body)


def policy(number, giver="a", **fields):
    return command(number, body=json.dumps({"model": "m", **fields}).encode(), giver=giver)


def test_what_a_later_command_decides_whole_is_forgotten():
    log = CommandLog()
    log.merge([policy(1, weight=1), policy(2, max_batch_size=2), policy(3, weight=3)])
    assert [each.stamp.number for each in log.commands()] == [2, 3]


def test_commands_about_other_models_or_fields_stay():
    log = CommandLog()
    other = command(3, body=b'{"model": "n", "weight": 1}')
    log.merge([policy(1, weight=1), policy(2, weight=1, value=2), other])
    assert len(log.commands()) == 3


def test_of_opposites_the_last_counts():
    log = CommandLog()
    models = "/v2/repository/models/"
    log.merge(
        [command(1, f"{models}m/load"), command(2, f"{models}m/unload"), command(3, f"{models}n/load", b"no JSON")]
    )
    assert [each.path for each in log.commands()] == [f"{models}m/unload", f"{models}n/load"]


def test_what_is_known_is_not_carried_out_again():
    log = CommandLog()
    known = policy(1, weight=1)
    assert log.merge([known]) == [known]
    assert log.merge([known, policy(1, giver="", weight=1)]) == []


def test_what_comes_late_is_followed_by_all_that_was_given_after_it():
    log = CommandLog()
    late, known, latest = policy(1, weight=1, value=2), policy(2, weight=2), policy(3, value=3)
    log.merge([latest, known])
    assert log.merge([late]) == [late, known, latest]


def test_a_stamp_is_after_everything_known():
    log = CommandLog()
    assert log.next_stamp("b") == (1, "b")
    log.merge([policy(7)])
    assert log.next_stamp("b") == (8, "b")


FIELDS = st.dictionaries(st.sampled_from(["weight", "value"]), st.integers(1, 3), min_size=1)


@given(
    st.lists(FIELDS, max_size=6)
    .map(lambda all_fields: [policy(n, **each) for n, each in enumerate(all_fields)])
    .flatmap(
        lambda given: (
            st.tuples(*[st.lists(st.sampled_from(given), max_size=8) for _ in range(3)])
            if given
            else st.just(([],) * 3)
        )
    )
)
def test_replicas_that_carry_out_what_merge_says_end_alike(batches):
    def end(*orders):
        log = CommandLog()
        state: dict[str, int] = {}
        for batch in orders:
            for each in log.merge(batch):
                state |= json.loads(each.body)
        return state

    everything = sorted({each.stamp: each for batch in batches for each in batch}.values(), key=lambda each: each.stamp)
    expected: dict[str, int] = {}
    for each in everything:
        expected |= json.loads(each.body)
    assert end(*batches) == end(*reversed(batches)) == expected


def test_the_memory_gives_what_it_was_told_but_not_to_another_deploy():
    memory = Memory("one")
    told = policy(1, weight=1)
    assert asyncio.run(memory.merge("one", [told])) == [told]
    assert asyncio.run(memory.merge("one", [])) == [told]
    assert asyncio.run(memory.merge("two", [policy(2, weight=2)])) == []
    assert asyncio.run(memory.merge("one", [])) == [told]
