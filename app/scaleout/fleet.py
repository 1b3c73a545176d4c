"""Talks to the workers over HTTP: one of them, or all at once."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import orjson

from app.domain.errors import InvalidRequest
from app.scaleout.workers import Worker

#: Header lines that a question goes with.
Headers = Mapping[bytes, bytes] | None

#: Seconds that a worker has to answer, where nothing else is said.
ASK_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker said; status 0 where it said nothing, and `text` then is why."""

    status: int
    content: bytes = b""
    text: str = ""

    @property
    def ok(self) -> bool:
        """Whether it did what it was asked."""
        return 200 <= self.status < 300

    @property
    def silent(self) -> bool:
        """Whether it took the request and did not answer in time."""
        return self.status == 0 and self.text == "no answer in time"

    def json(self) -> Any:
        """The content, or None where it is no JSON."""
        try:
            return orjson.loads(self.content) if self.content else None
        except orjson.JSONDecodeError:
            return None


class Fleet:
    """All workers. Event loop only; `token` opens every door."""

    def __init__(
        self, workers: Sequence[Worker], token: str, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.workers = tuple(workers)
        self.names = tuple(worker.name for worker in workers)
        self._token = token.strip().encode()  # of a file, it may end with a line break
        self._client = httpx.AsyncClient(transport=transport or httpx.AsyncHTTPTransport(), trust_env=False)

    async def ask(
        self,
        worker: Worker,
        path: str,
        method: str = "GET",
        body: bytes = b"",
        headers: Headers = None,
        seconds: float = ASK_SECONDS,
    ) -> Answer:
        """One request, with our own token unless `headers` say who asks. `path` is as in a request line.

        Raises `InvalidRequest` for one that is none.
        """
        headers = self.authorized({}) if headers is None else headers
        try:
            url = httpx.URL(f"http://{worker.address}{path}")
        except httpx.InvalidURL as error:
            raise InvalidRequest(f"the path cannot be asked for: {error}") from None
        try:
            got = await self._client.request(method, url, content=body, headers=headers, timeout=seconds)
        except httpx.TimeoutException:
            return Answer(0, text="no answer in time")
        except httpx.HTTPError as error:
            return Answer(0, text=f"{type(error).__name__} {error}".strip())
        return Answer(got.status_code, got.content)

    def authorized(self, headers: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """The headers with our own token."""
        return {**headers, b"authorization": b"Bearer " + self._token}

    async def ask_all(
        self,
        path: str,
        method: str = "GET",
        body: bytes = b"",
        headers: Headers = None,
        seconds: float = ASK_SECONDS,
    ) -> dict[str, Answer]:
        """The same of every worker at once, by its name."""
        answers = await asyncio.gather(
            *[self.ask(worker, path, method, body, headers, seconds) for worker in self.workers]
        )
        return dict(zip(self.names, answers, strict=True))

    async def any_ok(self, path: str, seconds: float, names: Collection[str] | None = None) -> bool:
        """Whether any worker, of these names, answers that all is well: the first that does is enough."""
        workers = [each for each in self.workers if names is None or each.name in names]
        asked = [asyncio.ensure_future(self.ask(worker, path, seconds=seconds)) for worker in workers]
        try:
            for answer in asyncio.as_completed(asked):
                if (await answer).ok:
                    return True
            return False
        finally:
            for each in asked:
                each.cancel()

    def worker(self, name: str) -> Worker:
        """The one of that name."""
        return next(worker for worker in self.workers if worker.name == name)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._client.aclose()
