"""Where the time of one request went, as a header of its answer."""

from app.engine.request import Timings

#: So many microseconds as milliseconds: numbers take a while to write.
_WRITTEN: tuple[bytes, ...] = tuple([b"%.3f" % (microseconds / 1e3) for microseconds in range(4096)])
_MOST = float(len(_WRITTEN))


def server_timing(timings: Timings) -> bytes:
    """The value of the `Server-Timing` header: milliseconds per stage."""
    if not (timings.preprocess or timings.load or timings.postprocess):
        decode, queue = timings.decode * 1e6 + 0.5, timings.queue * 1e6 + 0.5
        compute, encode = timings.compute * 1e6 + 0.5, timings.encode * 1e6 + 0.5
        if 0.0 <= decode < _MOST and 0.0 <= queue < _MOST and 0.0 <= compute < _MOST and 0.0 <= encode < _MOST:
            return b"".join(
                [
                    b"decode;dur=", _WRITTEN[int(decode)],
                    b", preprocess;dur=0.000, queue;dur=", _WRITTEN[int(queue)],
                    b", load;dur=0.000, compute;dur=", _WRITTEN[int(compute)],
                    b", postprocess;dur=0.000, encode;dur=", _WRITTEN[int(encode)],
                ]
            )  # fmt: skip
    return (
        b"decode;dur=%.3f, preprocess;dur=%.3f, queue;dur=%.3f, load;dur=%.3f, compute;dur=%.3f, "
        b"postprocess;dur=%.3f, encode;dur=%.3f"
    ) % (
        timings.decode * 1e3,
        timings.preprocess * 1e3,
        timings.queue * 1e3,
        timings.load * 1e3,
        timings.compute * 1e3,
        timings.postprocess * 1e3,
        timings.encode * 1e3,
    )
