"""Every error has a stable code of its own."""

import re

import pytest

from app.domain.errors import InvalidRequest, ServingError


def every(error=ServingError):
    return [error, *(each for child in error.__subclasses__() for each in every(child))]


def test_codes_are_stable_words_and_each_class_has_its_own():
    codes = [error.reason for error in every()]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in codes)


@pytest.mark.parametrize("error", every())
def test_an_error_carries_message_and_code(error):
    assert (error("what").message, str(error("what")), error("what").code) == ("what", "what", error.reason)


def test_a_code_may_be_narrower_than_its_class():
    assert InvalidRequest("no rows", reason="empty_batch").code == "empty_batch"
    assert InvalidRequest.reason == "invalid_request"
