"""The headers that an inference request is read by."""

from math import inf

import pytest

from app.api.headers import parse_timeout, read_headers
from app.domain.errors import InvalidRequest, UnsupportedEncoding

TIMEOUTS = [b"x-request-timeout-ms", b"x-envoy-expected-rq-timeout-ms"]


def test_without_headers_nothing_is_known():
    found = read_headers([])
    assert (found.authorization, found.header_length, found.request_id, found.timeout) == (None, None, None, inf)


def test_others_are_not_read():
    assert read_headers([(b"timeout", b"soon"), (b"content-type", b"x"), (b"te", b"gzip")]).timeout == inf


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"0", inf),
        (b"1", 0.001),
        (b"1500", 1.5),
        (b" 250 ", 0.25),
        (b"0" * 30 + b"250", 0.25),
        (b"3200000000000", 3.2e9),
        (b"3200000000001", inf),
        (b"9" * 19, inf),
        (b"9" * 400, inf),
    ],
)
@pytest.mark.parametrize("name", TIMEOUTS)
def test_a_timeout_is_in_milliseconds_and_saturates(name, value, seconds):
    assert read_headers([(name, value)]).timeout == seconds


@pytest.mark.parametrize(
    "value",
    [b"-1", b"+1", b"1.5", b"1.0", b"1e3", b"0x10", b"true", b"soon", b"", b" ", b"1 2", b"1,2", b"\xb2", b"inf"],
)
@pytest.mark.parametrize("name", TIMEOUTS)
def test_a_timeout_that_is_no_whole_number_is_refused_by_name_and_value(name, value):
    with pytest.raises(InvalidRequest) as caught:
        parse_timeout(name, value)
    assert name.decode() in caught.value.message
    assert repr(value.decode("latin-1")) in caught.value.message


def test_the_tightest_timeout_wins():
    for pair in ([b"500", b"2000"], [b"2000", b"500"], [b"500", b"0"], [b"0", b"500"]):
        assert read_headers(list(zip(TIMEOUTS, pair, strict=True))).timeout == 0.5
    assert read_headers([(TIMEOUTS[0], b"500"), (TIMEOUTS[0], b"100")]).timeout == 0.1


@pytest.mark.parametrize("value", [b"", b"identity", b" Identity "])
def test_no_encoding_is_identity(value):
    assert read_headers([(b"content-encoding", value)]).timeout == inf


@pytest.mark.parametrize(
    "values", [[b"br"], [b"gzip, identity"], [b"identity", b"zstd"], [b"\xff"], [b"gzip", b"gzip"]]
)
def test_an_encoding_that_is_not_decoded_is_refused(values):
    with pytest.raises(UnsupportedEncoding):
        read_headers([(b"content-encoding", value) for value in values])


@pytest.mark.parametrize("value", [b"gzip", b" GZip ", b"x-gzip", b"deflate"])
def test_the_coding_of_the_body_is_passed_on(value):
    found = read_headers([(b"content-encoding", b"identity"), (b"content-encoding", value)])
    assert found.content_encoding == value.decode().strip().lower()


def test_the_coding_of_the_answer_is_chosen_from_all_that_is_accepted():
    assert read_headers([]).coding is None
    assert read_headers([(b"accept-encoding", b"br"), (b"accept-encoding", b"deflate")]).coding == "deflate"


def test_the_json_length_is_passed_on_and_must_be_given_once():
    name = b"inference-header-content-length"
    assert read_headers([(name, b"12")]).header_length == "12"
    with pytest.raises(InvalidRequest, match="twice"):
        read_headers([(name, b"12"), (name, b"12")])


def test_a_request_id_is_kept_short():
    assert read_headers([(b"x-request-id", b"mine")]).request_id == b"mine"
    assert read_headers([(b"x-request-id", b"x" * 1000)]).request_id == b"x" * 256


def test_the_authorization_is_passed_on():
    assert read_headers([(b"authorization", b"Bearer x")]).authorization == b"Bearer x"
