"""Where the time of one request went, as a header of its answer."""

from app.engine.request import Timings

#: Without hooks and loads: numbers take a while to write.
_PLAIN_TIMING = (
    b"decode;dur=%.3f, preprocess;dur=0.000, queue;dur=%.3f, load;dur=0.000, compute;dur=%.3f, "
    b"postprocess;dur=0.000, encode;dur=%.3f"
)


def server_timing(timings: Timings) -> bytes:
    """The value of the `Server-Timing` header: milliseconds per stage."""
    if not (timings.preprocess or timings.load or timings.postprocess):
        return _PLAIN_TIMING % (timings.decode * 1e3, timings.queue * 1e3, timings.compute * 1e3, timings.encode * 1e3)
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
