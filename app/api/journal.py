"""What is known of requests when they end: remembered, and told in the log or a file where that is wanted."""

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from app.api.exchange import HeaderList
from app.runtime.accounts import DROP_REASONS, STAGES, TIMES
from app.runtime.recent import REMEMBERED, DispatchLog
from app.runtime.recorder import Arrival, Recorder
from app.runtime.sparing import Sparing

logger = logging.getLogger(__name__)

#: Of a path that somebody made up, so many characters are logged.
LONGEST_PATH = 200

#: Hexadecimal digits of a W3C trace id.
_TRACE_ID = 32


class EndedRequest(NamedTuple):
    """Facts of one request, never its data. Seconds; `received_at` is monotonic."""

    received_at: float
    model: str | None
    """The one that answered; None for a name that is no model."""
    request_id: bytes
    code: str | None
    """Of its error; None for an answer."""
    seconds: float
    timeout: float
    """What it allowed; infinite for no deadline."""
    rows: int | None = None
    batch_rows: int | None = None
    batch_size: int | None = None
    nbytes: int = 0
    stages: tuple[float, ...] | None = None
    """In the order of `STAGES`; of a failed request those that it passed."""
    asked: str | None = None
    """The model that was asked, where another one answered."""


#: An answered request while it is remembered, as few objects as will do: its packed `TIMES`, the model, its id, rows,
#: rows and size of its dispatch, bytes, the model that was asked where another one answered.
Answered = tuple[bytes, str, bytes, int | None, int | None, int | None, int, str | None]


class Journal:
    """Event loop only. Without a slow limit and a recorder a successful request is one append."""

    def __init__(
        self,
        clock: Callable[[], float],
        dispatches: DispatchLog,
        slow_seconds: float = inf,
        recorder: Recorder | None = None,
    ) -> None:
        self._epoch = datetime.now(UTC).timestamp() - clock()
        self._dispatches = dispatches
        self._slow_seconds = slow_seconds
        self._recorder = recorder
        self._ended: deque[EndedRequest | Answered] = deque(maxlen=REMEMBERED)
        self._only_remembers = slow_seconds == inf and recorder is None
        self.refusals: Counter[str] = Counter()
        """Inference requests that no model took, by the code of their error: they are in nobody's account."""
        self._sparing = Sparing()

    def answered(self, request: Answered, headers: HeaderList) -> None:
        """Note one answered request; `headers` as for `ended`."""
        self._ended.append(request)
        if not self._only_remembers:
            self._tell_and_record(_unpacked(request), headers)

    def ended(self, request: EndedRequest, headers: HeaderList) -> None:
        """Note one request; `headers` are read only for what is logged."""
        self._ended.append(request)
        self._tell_and_record(request, headers)

    def _tell_and_record(self, request: EndedRequest, headers: HeaderList) -> None:
        if request.code is not None or request.seconds >= self._slow_seconds:
            self._tell(request, headers)
        if self._recorder is not None and request.model is not None:
            timeout = None if request.timeout == inf else request.timeout
            outcome = request.code or "ok"
            self._recorder.add(
                Arrival(
                    self._epoch + request.received_at, request.asked or request.model, request.rows, timeout, outcome
                )
            )

    def barred(self, method: str, path: str, request_id: bytes, code: str, now: float, headers: HeaderList) -> None:
        """Tell of a request to another route than inference that came without the token; `now` as the clock has it."""
        suppressed = self._sparing.suppressed((None, f"barred {code}"), now)
        if suppressed is not None:
            facts = {
                "method": method,
                "path": path[:LONGEST_PATH],
                "code": code,
                "request_id": request_id.decode("latin-1"),
                "trace_id": trace_id(headers),
                "suppressed": suppressed or None,
            }
            _warn("request refused", facts)

    def latest(self, most: int = REMEMBERED) -> Mapping[str, list[dict[str, Any]]]:
        """The latest requests and dispatches, oldest first, as JSON has them; instants in seconds since 1970."""
        requests, dispatches = [], []
        for ended in list(self._ended)[-most:]:
            request = ended if isinstance(ended, EndedRequest) else _unpacked(ended)
            told = {"at": self._epoch + request.received_at, **request._asdict()}
            del told["received_at"]
            told["request_id"] = request.request_id.decode("latin-1")
            told["timeout"] = None if request.timeout == inf else request.timeout
            told["stages"] = None if request.stages is None else dict(zip(STAGES, request.stages, strict=True))
            requests.append(told)
        for dispatch in self._dispatches.latest(most):
            model = dispatch.model_id.rpartition("@")[0]
            told = {"at": self._epoch + dispatch.began_at, "model": model, **dispatch._asdict()}
            del told["began_at"]
            dispatches.append(told)
        return {"requests": requests, "dispatches": dispatches}

    def write_out(self, path: Path) -> None:
        """Keep all of it in a file, for who looks at what is left of the process."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.write_bytes(orjson.dumps(self.latest()))
        except OSError as error:
            logger.error("the latest requests and dispatches could not be kept: %s", error)
        else:
            logger.error("the latest requests and dispatches are in %s", path)

    def _tell(self, request: EndedRequest, headers: HeaderList) -> None:
        suppressed = self._sparing.suppressed((request.model, request.code), request.received_at + request.seconds)
        if suppressed is None:
            return
        facts = {
            "model": request.model,
            "code": request.code,
            "request_id": request.request_id.decode("latin-1"),
            "trace_id": trace_id(headers),
            "ms": _milliseconds(request.seconds),
            **{f"{name}_ms": _milliseconds(s) for name, s in zip(STAGES, request.stages or (), strict=False) if s},
            "rows": request.rows,
            "batch_rows": request.batch_rows,
            "batch_size": request.batch_size,
            "bytes": request.nbytes,
            "suppressed": suppressed or None,
        }
        what = "slow" if request.code is None else "dropped" if request.code in DROP_REASONS else "failed"
        _warn(f"request {what}", facts)


def _unpacked(request: Answered) -> EndedRequest:
    times, model, request_id, rows, batch_rows, batch_size, nbytes, asked = request
    received_at, timeout, seconds, *stages = TIMES.unpack(times)
    return EndedRequest(
        received_at, model, request_id, None, seconds, timeout, rows, batch_rows, batch_size, nbytes, tuple(stages),
        asked,
    )  # fmt: skip


def trace_id(headers: HeaderList) -> str | None:
    """The trace that a W3C `traceparent` names."""
    for name, value in headers:
        if name == b"traceparent":
            parts = value.decode("latin-1").split("-")
            if len(parts) >= 4 and len(parts[1]) == _TRACE_ID and set(parts[1]) <= set("0123456789abcdef"):
                return parts[1]
    return None


def _warn(what: str, facts: Mapping[str, Any]) -> None:
    logger.warning(what, extra={"facts": {name: value for name, value in facts.items() if value is not None}})


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1e3, 3)
