"""Who may call what."""

import os
import stat
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.access import Access, Door, door_of, make_admin_token
from app.domain.errors import Forbidden, Unauthorized

DOORS = {
    Door.OPEN: ["/v2/health/live", "/v2/health/ready", "/metrics", "/v2/health/live/", "//metrics",
        "/console", "/console/", "//console", "/console/1/app.js", "/console/x/y/z"],
    Door.API: [
        "/", "", "/v2", "/v2/", "/v2/models", "/v2/models/m", "/v2/models/m/ready", "/v2/models/m/infer",
        "/v2/models/m/versions/1/infer", "/v2/models/load", "/v2/models/m/load", "/v2/repository/index",
        "/v2/repository/x/index", "/status", "/docs", "/openapi.json", "/nowhere", "/administrator", "/adm",
        "/v2/health", "/v2/health/live/x", "/metrics/x", "/v2/repository", "/v2/repository/modelsx",
        "/v2/models/admin", "/x/admin/status", "/x/console", "/consoles", "/Console", "/Admin/status", "/METRICS",
        "/V2/health/live",
    ],
    Door.ADMIN: [
        "/admin", "/admin/", "/admin/status", "//admin/status", "/admin//status", "/admin/status/", "/admin/set_policy",
        "/admin/anything/else", "/v2/repository/models/m/load", "/v2/repository/models/m/unload",
        "/v2/repository/models/m/load/", "//v2//repository//models//m//load", "/v2/repository/models/m",
        "/v2/repository/models", "/v2/repository/x/models/m/load", "/v2/repository/x/models/m/unload",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("path", "door"), [(path, door) for door, paths in DOORS.items() for path in paths])
def test_a_path_has_one_door(path, door):
    assert door_of(path) is door


@pytest.mark.parametrize(
    ("raw", "door"),
    [
        ("/%61dmin/status", Door.ADMIN),
        ("/admin%2Fstatus", Door.ADMIN),
        ("/%2Fadmin/status", Door.ADMIN),
        ("/v2/repository/models/a%2Fb/load", Door.ADMIN),
        ("/v2/repository/%6dodels/m/load", Door.ADMIN),
        ("/v2/health%2Flive", Door.OPEN),
        ("/%2561dmin/status", Door.API),  # decoded once, as the router does
    ],
)
def test_percent_encoding_opens_no_other_door(raw, door):
    assert door_of(unquote(raw)) is door


@given(st.sampled_from([path for paths in DOORS.values() for path in paths]), st.integers(1, 3), st.integers(0, 2))
def test_more_slashes_open_no_other_door(path, factor, trailing):
    assert door_of(path.replace("/", "/" * factor) + "/" * trailing) is door_of(path)


# tokens


@pytest.fixture
def both():
    return Access("the-api-token", "the-admin-token")


@pytest.mark.parametrize(
    ("door", "given", "outcome"),
    [
        (Door.OPEN, None, None),
        (Door.OPEN, b"nonsense", None),
        (Door.API, None, Unauthorized),
        (Door.API, b"", Unauthorized),
        (Door.API, b"Bearer", Unauthorized),
        (Door.API, b"Bearer ", Unauthorized),
        (Door.API, b"Bearer  \t", Unauthorized),
        (Door.API, b"Basic the-api-token", Unauthorized),
        (Door.API, b"the-api-token", Unauthorized),
        (Door.API, b"Bearer the-api-toke", Forbidden),
        (Door.API, b"Bearer the-api-token2", Forbidden),
        (Door.API, b"Bearer THE-API-TOKEN", Forbidden),
        (Door.API, b"Bearer \xff", Forbidden),
        (Door.API, b"Bearer the-api-token", None),
        (Door.API, b"bearer  the-api-token ", None),
        (Door.API, b"Bearer the-admin-token", None),
        (Door.ADMIN, None, Unauthorized),
        (Door.ADMIN, b"Bearer the-api-token", Forbidden),
        (Door.ADMIN, b"Bearer the-admin-token", None),
    ],
)
def test_a_door_opens_to_its_token(both, door, given, outcome):
    if outcome is None:
        both.check(door, given)
    else:
        with pytest.raises(outcome) as caught:
            both.check(door, given)
        assert "the-a" not in caught.value.message


def test_without_an_api_token_only_the_admin_door_asks():
    access = Access(None, "the-admin-token")
    access.check(Door.API, None)
    access.check(Door.API, b"Bearer whatever")
    assert access.api_is_open
    with pytest.raises(Unauthorized, match="admin token"):
        access.check(Door.ADMIN, None)


def test_a_token_that_was_read_from_a_file_may_end_with_a_line_break():
    access = Access("the-api-token\n", "the-admin-token\n")
    access.check(Door.API, b"Bearer the-api-token")
    access.check(Door.ADMIN, b"Bearer the-admin-token")


@pytest.mark.parametrize("given", [b"Bearer ", b"Bearer  ", b"Bearer"])
def test_an_empty_admin_token_opens_nothing(given):
    with pytest.raises(Unauthorized):
        Access(None, "").check(Door.ADMIN, given)


def test_the_made_token_is_the_owners_alone_and_new_every_time(tmp_path):
    path = tmp_path / "deep" / "token"
    tokens = {make_admin_token(path) for _ in range(3)}
    assert len(tokens) == 3
    assert path.read_text() in tokens
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert all(len(token) >= 32 for token in tokens)


def test_the_made_token_is_not_written_through_a_link(tmp_path):
    path, target = tmp_path / "token", tmp_path / "target"
    target.write_text("before")
    os.symlink(target, path)
    make_admin_token(path)
    assert target.read_text() == "before"
