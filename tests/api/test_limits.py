"""How much may be in flight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.limits import InFlight
from app.domain.errors import PayloadTooLarge, ServingError, TooManyRequests


@pytest.fixture
def limits():
    return InFlight(max_requests=4, max_bytes=100, max_body_bytes=60)


def test_requests_are_counted_and_given_back(limits):
    limits.enter("m", 0, 10)
    limits.enter("m", 1, 0)
    assert (limits.requests, limits.nbytes) == (2, 10)
    limits.leave(10)
    limits.leave(0)
    assert (limits.requests, limits.nbytes) == (0, 0)


def test_the_server_takes_so_many_requests(limits):
    for _ in range(4):
        limits.enter("m", 0, 0)
    with pytest.raises(TooManyRequests, match="4 requests are in flight"):
        limits.enter("n", 0, 0)
    limits.leave(0)
    limits.enter("n", 0, 0)


def test_one_model_holds_at_most_half(limits):
    limits.enter("m", 1, 0)
    with pytest.raises(TooManyRequests, match="2 requests for model 'm'"):
        limits.enter("m", 2, 0)
    limits.enter("n", 0, 0)


def test_one_request_is_always_possible():
    InFlight(1, 100, 100).enter("m", 0, 0)


@pytest.mark.parametrize(("nbytes", "fits"), [(60, True), (61, False)])
def test_a_body_has_a_largest_size(limits, nbytes, fits):
    if fits:
        limits.enter("m", 0, nbytes)
    else:
        with pytest.raises(PayloadTooLarge, match="61 bytes or more; the most is 60"):
            limits.enter("m", 0, nbytes)
    assert limits.requests == int(fits)


def test_bytes_in_flight_have_a_limit_and_a_refused_request_takes_none(limits):
    limits.enter("m", 0, 60)
    with pytest.raises(TooManyRequests, match="60 request bytes"):
        limits.enter("m", 1, 41)
    assert (limits.requests, limits.nbytes) == (1, 60)
    limits.enter("m", 1, 40)


def test_a_body_that_grows_is_held_to_the_same_limits(limits):
    limits.enter("m", 0, 0)
    limits.grow(50, 0)
    limits.grow(10, 50)
    with pytest.raises(PayloadTooLarge):
        limits.grow(1, 60)
    limits.enter("m", 1, 0)
    with pytest.raises(TooManyRequests):
        limits.grow(41, 0)
    assert limits.nbytes == 60


def test_a_body_that_never_fits_is_not_told_to_try_again():
    with pytest.raises(PayloadTooLarge, match="the most is 10 bytes"):
        InFlight(4, max_bytes=10, max_body_bytes=60).enter("m", 0, 11)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 70), st.lists(st.integers(0, 40), max_size=3))))
def test_whatever_happens_the_counts_return_to_zero_and_keep_their_limits(requests):
    limits, inside = InFlight(4, 100, 60), []
    for held, nbytes, growth in requests:
        try:
            limits.enter("m", held, nbytes)
        except ServingError:
            continue
        inside.append(nbytes)
        for more in growth:
            try:
                limits.grow(more, inside[-1])
            except ServingError:
                break
            inside[-1] += more
        assert limits.requests == len(inside) <= 4
        assert limits.nbytes == sum(inside) <= 100
        assert all(size <= 60 for size in inside)
        if len(inside) > 2:
            limits.leave(inside.pop(0))
    for size in inside:
        limits.leave(size)
    assert (limits.requests, limits.nbytes) == (0, 0)
