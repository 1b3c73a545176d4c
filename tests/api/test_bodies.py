"""The bodies of the control routes: JSON whatever they are called, and small."""

import pytest

from app.api.bodies import MAX_BYTES

pytestmark = pytest.mark.anyio

INDEX = "/v2/repository/index"


@pytest.mark.parametrize("content_type", [None, "application/json", "application/x-www-form-urlencoded", "text/plain"])
@pytest.mark.parametrize("body", [b"", b"{}", b'{"ready": false}'])
async def test_json_is_read_whatever_the_content_type_says(api, content_type, body):
    """curl calls everything a form, and some clients call it nothing."""
    headers = {} if content_type is None else {"Content-Type": content_type}
    answer = await api.post(INDEX, content=body, headers=headers)
    assert (answer.status_code, answer.json()) == (200, [])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "the body is not JSON"),
        (b"\xff", "the body is not JSON"),
        (b"[]", "must be a JSON object, not a list"),
        (b"3", "must be a JSON object, not a int"),
        (b"null", "must be a JSON object, not a NoneType"),
        (b'{"ready": ' + b"[" * 300 + b"]" * 300 + b"}", "deeper than 100"),
        (b'{"ready": "yes"}', "'ready' must be true or false, got 'yes'"),
        (b'{"ready": 1}', "'ready' must be true or false, got 1"),
    ],
)
async def test_anything_else_is_refused(api, body, message):
    answer = await api.post(INDEX, content=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert message in answer.json()["error"]


@pytest.mark.parametrize(("written", "read"), [("2", 2), ("2.0", 2), ("20e-1", 2), ("0.0", 0), ("-0.0", 0)])
async def test_a_whole_number_may_be_written_as_a_float(api, written, read):
    body = f'{{"log_verbose_level": {written}}}'
    assert (await api.post("/v2/logging", content=body)).json()["log_verbose_level"] == read


@pytest.mark.parametrize("path", [INDEX, "/admin/set_policy"])
async def test_a_large_body_is_not_read_to_its_end(api, path):
    sent = []

    async def pieces():
        for _ in range(100):
            sent.append(MAX_BYTES // 4)
            yield b" " * sent[-1]

    answer = await api.post(path, content=pieces())
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
    assert len(sent) < 10
