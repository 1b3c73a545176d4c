"""What can go wrong for one request, without HTTP in it: `api/errors.py` maps the classes to status codes."""

from typing import ClassVar


class ServingError(Exception):
    """A request, or an admin command, that cannot be served; `reason` is stable and machine-readable.

    `reason` may be narrowed per instance (`InvalidRequest("…", reason="empty_batch")`); the class decides the status.
    """

    reason: ClassVar[str] = "internal"

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = reason if reason is not None else type(self).reason


class InvalidRequest(ServingError):
    """The client sent something that no retry can make right."""

    reason = "invalid_request"


class ShapeNotCompiled(ServingError):
    """No compiled program takes tensors of this shape."""

    reason = "shape_not_compiled"


class ModelNotFound(ServingError):
    """No model, or no version, of that name."""

    reason = "model_not_found"


class RegionNotFound(ServingError):
    """No shared memory region of that name."""

    reason = "region_not_found"


class ModelUnavailable(ServingError):
    """The model is known and cannot serve now: loading, unloading, failed."""

    reason = "model_unavailable"


class QueueFull(ServingError):
    """The model's queue holds `max_queue_depth` pieces; other models are unaffected."""

    reason = "queue_full"


class TooManyRequests(ServingError):
    """The process holds as many requests, or request bytes, as it may."""

    reason = "too_many_requests"


class DeadlineExceeded(ServingError):
    """The request's deadline passed before its answer was ready."""

    reason = "deadline_exceeded"


class DeadlineInfeasible(ServingError):
    """No order of execution could meet the deadline: refused early."""

    reason = "deadline_infeasible"


class Cancelled(ServingError):
    """The caller went away; nobody reads this answer. In logs and metrics only."""

    reason = "cancelled"


class HookFailed(ServingError):
    """The bundle's own code raised, or returned what its manifest does not allow."""

    reason = "hook_failed"


class ExecutionFailed(ServingError):
    """The backend could not run the batch."""

    reason = "execution_failed"


class OutOfMemory(ServingError):
    """No memory: on the device for weights or activations, or here for a request or its answer."""

    reason = "out_of_memory"


class PayloadTooLarge(ServingError):
    """The body is larger than the configured limit."""

    reason = "payload_too_large"


class UnsupportedEncoding(ServingError):
    """The body is in a content encoding that the server does not decode."""

    reason = "unsupported_encoding"


class Unauthorized(ServingError):
    """No credentials where some are needed."""

    reason = "unauthorized"


class Forbidden(ServingError):
    """Credentials that do not open this door."""

    reason = "forbidden"


class Unsupported(ServingError):
    """A legal request that this configuration does not offer."""

    reason = "unsupported"


class ShuttingDown(ServingError):
    """The server drains: it takes no new requests."""

    reason = "shutdown"


class BundleError(ServingError):
    """A bundle that cannot be served; the message names file, key and remedy. Never seen by an inference client."""

    reason = "bundle_invalid"
