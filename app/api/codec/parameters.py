"""The `parameters` objects of a request: what the protocol reserves is checked and consumed, the rest is passed on."""

from typing import Any, NamedTuple

from app.api.codec.depth import check_depth
from app.api.codec.ranges import SharedRange, read_range
from app.api.codec.wording import show
from app.domain.errors import InvalidRequest
from app.domain.model import ModelSpec

#: Budgets above this many microseconds (292 000 years) are as good as none and are cut to it.
LONGEST_TIMEOUT_US = 2**63 - 1

#: Datatypes whose values `classification` can rank and print.
CLASSIFIABLE = frozenset({"UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP32", "FP64"})


class OutputRequest(NamedTuple):
    """One wanted output: `binary` as the request says for it, `classification` top classes (0: the tensor itself).

    `shared` is where it goes instead of into the answer.
    """

    name: str
    binary: bool = False
    classification: int = 0
    shared: SharedRange | None = None


class RequestParameters(NamedTuple):
    """Request parameters: `rest` is everything that the codec does not consume; `timeout_us` is None for no limit."""

    rest: dict[str, Any]
    binary_default: bool
    timeout_us: int | None


def read_parameters(owner: dict[str, Any], where: str) -> dict[str, Any]:
    """The `parameters` member of a JSON object, every value a string, number or boolean; the caller may consume it."""
    parameters = owner.get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidRequest(f"'parameters' of {where} must be an object, got {show(parameters)}")
    for key, value in parameters.items():
        if not isinstance(value, str | int | float):
            raise InvalidRequest(
                f"parameter {show(key)} of {where} must be a string, a number or a boolean, got {show(value)}"
            )
    return parameters


def request_parameters(document: dict[str, Any]) -> RequestParameters:
    """Check and consume `timeout`, `priority`, `sequence_*` and `binary_data_output`.

    `priority` is checked and has no effect, as in a server without priority levels; 0 and "" mean no sequence.
    """
    rest = read_parameters(document, "the request")
    for key in rest:
        if key == "headers" or key.startswith("triton_"):
            raise InvalidRequest(f"parameter {show(key)} is reserved: clients may not set 'headers' or 'triton_…'")
        if "shared_memory" in key:
            raise InvalidRequest(f"parameter {show(key)} belongs to an input or an output, not to the request")
    if (identifier := rest.pop("sequence_id", 0)) not in (0, "") or isinstance(identifier, bool | float):
        raise InvalidRequest(f"parameter 'sequence_id' is {show(identifier)}: models here keep no sequence state")
    for key in ("sequence_start", "sequence_end"):
        if read_flag(rest, key, "the request", default=False):
            raise InvalidRequest(f"parameter {key!r} is true: models here keep no sequence state")
    read_count(rest, "priority", "the request")
    timeout = rest.get("timeout")
    if isinstance(timeout, float) and timeout >= 2.0**64:
        rest["timeout"] = LONGEST_TIMEOUT_US  # an integer beyond 64 bits reaches us as a float
    microseconds = read_count(rest, "timeout", "the request")
    binary_default = read_flag(rest, "binary_data_output", "the request", default=False)
    return RequestParameters(rest, binary_default, min(microseconds, LONGEST_TIMEOUT_US) or None)


def read_outputs(document: dict[str, Any], spec: ModelSpec, binary_default: bool) -> tuple[OutputRequest, ...] | None:
    """The `outputs` member; None, for all outputs, where it is absent or empty."""
    items = document.get("outputs", [])
    if not isinstance(items, list):
        raise InvalidRequest(f"'outputs' must be an array, got {show(items)}")
    wanted: dict[str, OutputRequest] = {}
    for index, item in enumerate(items):
        output = _read_output(item, f"output {index}", spec, binary_default)
        if output.name in wanted:
            raise InvalidRequest(f"output {output.name!r} is asked for twice")
        wanted[output.name] = output
    return tuple(wanted.values()) or None


def read_name(item: object, where: str) -> tuple[dict[str, Any], str]:
    """An element of `inputs` or `outputs` as the object that it must be, and its name."""
    if not isinstance(item, dict):
        raise InvalidRequest(f"{where} must be an object, got {show(item)}")
    name = item.get("name")
    if not isinstance(name, str):
        raise InvalidRequest(f"'name' of {where} must be a string, got {show(name)}")
    return item, name


def read_count(parameters: dict[str, Any], key: str, where: str) -> int:
    """Consume a non-negative whole number; 0 where it is absent."""
    value = parameters.pop(key, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidRequest(f"parameter {key!r} of {where} must be a non-negative whole number, got {show(value)}")
    return value


def read_flag(parameters: dict[str, Any], key: str, where: str, *, default: bool) -> bool:
    """Consume a boolean."""
    value = parameters.pop(key, default)
    if not isinstance(value, bool):
        raise InvalidRequest(f"parameter {key!r} of {where} must be true or false, got {show(value)}")
    return value


def _read_output(item: object, where: str, spec: ModelSpec, binary_default: bool) -> OutputRequest:
    item, name = read_name(item, where)
    check_depth(item, ("name", "parameters"), 3)
    declared = spec.client_outputs_by_name.get(name)
    if declared is None:
        known = [output.name for output in spec.client_outputs]
        raise InvalidRequest(f"unexpected output {show(name)} for model {spec.name!r}: it gives {known}")
    where = f"output {name!r}"
    parameters = read_parameters(item, where)
    shared = read_range(parameters, where)
    binary = read_flag(parameters, "binary_data", where, default=binary_default and shared is None)
    classes = read_count(parameters, "classification", where)
    if shared is not None and (binary or classes):
        which = "binary_data" if binary else "classification"
        raise InvalidRequest(f"{where} has both 'shared_memory_region' and {which!r}: it goes to one place, as it is")
    if classes and declared.datatype not in CLASSIFIABLE:
        raise InvalidRequest(f"classification is not available for output {name!r}: {declared.datatype} has no ranking")
    return OutputRequest(name, binary, classes, shared)
