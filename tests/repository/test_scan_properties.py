"""What holds for every pair of looks at the model directories."""

from collections.abc import Iterable
from pathlib import Path

from hypothesis import event, given
from hypothesis import strategies as st

from app.repository.scan import Added, Change, Changed, Found, Removed, Renamed, diff

# Few names and signatures, so that renames, chains and copies are common.
looks = st.dictionaries(st.sampled_from("abcd"), st.builds(Found, st.just(Path("/models")), st.sampled_from("1234")))


def _apply(state: dict[str, str], changes: Iterable[Change], new: dict[str, Found]) -> dict[str, str]:
    """Signatures by name after the changes, carried out as their kinds say."""
    after = dict(state)
    moves = []
    for change in changes:
        match change:
            case Removed(name):
                del after[name]
            case Renamed(name, to):
                moves.append((to, state[name]))
                after.pop(name)
            case Changed(name):
                assert name in after
                after[name] = new[name].signature
            case Added(name):
                assert name not in after | dict(moves)
                after[name] = new[name].signature
    for to, signature in moves:
        assert to not in after
        after[to] = signature
    return after


def _signatures(look: dict[str, Found]) -> dict[str, str]:
    return {name: found.signature for name, found in look.items()}


@given(looks, looks)
def test_changes_turn_the_old_look_into_the_new(old, new):
    changes = diff(old, new)
    for change in changes:
        event(type(change).__name__)
    assert _apply(_signatures(old), changes, new) == _signatures(new)


@given(looks)
def test_equal_looks_have_no_changes(look):
    assert diff(look, dict(reversed(look.items()))) == ()


@given(looks, looks)
def test_nothing_is_loaded_anew_whose_files_were_there(old, new):
    loaded = [new[change.name].signature for change in diff(old, new) if isinstance(change, Added | Changed)]
    before = [found.signature for found in old.values()]
    for signature in set(loaded):
        copies = [found.signature for found in new.values()].count(signature)
        assert loaded.count(signature) == copies - min(copies, before.count(signature))


@given(looks, looks)
def test_every_name_changes_once(old, new):
    changes = diff(old, new)
    left = [change.name for change in changes if isinstance(change, Removed | Renamed | Changed)]
    came = [
        change.to if isinstance(change, Renamed) else change.name
        for change in changes
        if not isinstance(change, Removed)
    ]
    assert len(set(left)) == len(left)
    assert len(set(came)) == len(came)
