"""How much may be in flight: requests, requests of one model, bytes."""

from app.domain.errors import PayloadTooLarge, TooManyRequests


class InFlight:
    """The counts that admission checks. Event loop only."""

    def __init__(self, max_requests: int, max_bytes: int, max_body_bytes: int) -> None:
        self._max_requests = max_requests
        self._max_per_model = max(max_requests // 2, 1)
        self._max_bytes = max_bytes
        # A body that never fits must not be told to try again.
        self.max_body_bytes = min(max_body_bytes, max_bytes)
        self.requests = 0
        self.nbytes = 0

    def enter(self, model: str, held: int, nbytes: int) -> None:
        """Take a place for one request with a body of `nbytes`, for a model that holds `held` places.

        Raises `TooManyRequests` or `PayloadTooLarge`.
        """
        if self.requests >= self._max_requests:
            raise TooManyRequests(f"{self._max_requests} requests are in flight, as many as this server takes")
        if held >= self._max_per_model:
            raise TooManyRequests(f"{self._max_per_model} requests for model {model!r} are in flight: one model's most")
        if nbytes > self.max_body_bytes or self.nbytes + nbytes > self._max_bytes:
            self.grow(nbytes, 0)  # it says what is wrong
        else:
            self.nbytes += nbytes
        self.requests += 1

    def grow(self, nbytes: int, already: int) -> None:
        """Count `nbytes` more of a body that has `already` so many. Raises `TooManyRequests` or `PayloadTooLarge`."""
        if already + nbytes > self.max_body_bytes:
            raise PayloadTooLarge(
                f"the body has {already + nbytes} bytes or more; the most is {self.max_body_bytes} bytes"
            )
        if self.nbytes + nbytes > self._max_bytes:
            raise TooManyRequests(f"{self.nbytes} request bytes are in flight; the most is {self._max_bytes}")
        self.nbytes += nbytes

    def hold(self, nbytes: int) -> None:
        """Count bytes that belong to no place; negative when they are gone."""
        self.nbytes += nbytes

    def leave(self, nbytes: int) -> None:
        """Give a place back."""
        self.requests -= 1
        self.nbytes -= nbytes
