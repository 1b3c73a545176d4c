"""Log settings are changed while the server runs, by who has the admin token."""

import logging

import pytest

from app.api.log_settings import Loudness

pytestmark = pytest.mark.anyio

PATH = "/v2/logging"
DEFAULTS = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


@pytest.fixture(autouse=True)
def as_before():
    """Handlers belong to the whole process."""
    yield
    for handler in logging.getLogger().handlers:
        for each in [each for each in handler.filters if isinstance(each, Loudness)]:
            handler.removeFilter(each)
    logging.getLogger("app").setLevel(logging.NOTSET)


async def test_all_settings_are_told_and_a_change_answers_with_all_of_them(api):
    assert (await api.get(PATH)).json() == DEFAULTS
    changed = {**DEFAULTS, "log_info": False, "log_verbose_level": 2}
    assert (await api.post(PATH, json={"log_info": False, "log_verbose_level": 2})).json() == changed
    assert (await api.get(PATH)).json() == changed
    assert (await api.post(PATH)).json() == changed


async def test_each_level_is_turned_off_by_itself(api, caplog):
    speaker = logging.getLogger("app.some")

    def heard():
        caplog.clear()
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
            speaker.log(level, logging.getLevelName(level))
        return caplog.messages

    logging.getLogger().setLevel(logging.INFO)
    assert heard() == ["INFO", "WARNING", "ERROR", "CRITICAL"]
    await api.post(PATH, json={"log_warning": False})
    assert heard() == ["INFO", "ERROR", "CRITICAL"]
    await api.post(PATH, json={"log_warning": True, "log_error": False, "log_verbose_level": 1})
    assert heard() == ["DEBUG", "INFO", "WARNING"]
    await api.post(PATH, json={"log_error": True, "log_info": False, "log_verbose_level": 0})
    assert heard() == ["WARNING", "ERROR", "CRITICAL"]


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        ({"log_info": 1}, "'log_info'"),
        ({"log_error": None}, "'log_error'"),
        ({"log_verbose_level": True}, "'log_verbose_level'"),
        ({"log_verbose_level": -1}, "'log_verbose_level'"),
        ({"log_verbose_level": 1.5}, "'log_verbose_level'"),
        ({"log_verbose_level": 2**32}, "'log_verbose_level'"),
        ({"log_verbose_level": 1e300}, "'log_verbose_level'"),
        ({"log_file": "/etc/passwd"}, "'log_file'"),
        ({"log_format": "ISO8601"}, "'log_format'"),
        ({"more": 1}, "'more'"),
    ],
)
async def test_what_cannot_be_changed_is_named_and_nothing_is(api, wanted, named):
    answer = await api.post(PATH, json={"log_warning": False, **wanted})
    assert (answer.status_code, named in answer.json()["error"]) == (400, True)
    assert (await api.get(PATH)).json() == DEFAULTS


async def test_reading_takes_the_api_token_and_writing_the_admin_token(make_api):
    async with make_api(api_token="the-api-token").client({"Authorization": "Bearer the-api-token"}) as client:
        assert (await client.get(PATH)).status_code == 200
        for path in (PATH, "http://test//v2/logging", "/v2/logging/", "/v2//logging"):
            assert (await client.post(path, json={})).status_code == 403
