"""Names models that there are, and lets inference requests get further than to the name of their first tensor.

Loaded by schemathesis in the client's own environment.
"""

from itertools import cycle
from typing import Any

import schemathesis

#: Model → its one input, and data that fit three elements of it.
TENSORS: dict[str, tuple[str, list[Any]]] = {
    "floats": ("FP32", [0.5, -1, "NaN"]),
    "half": ("FP16", [0, 1.5, 2]),
    "text": ("BYTES", ["", "a", "\u00e9"]),
}

MODELS = cycle([*TENSORS, "several", *TENSORS, "absent"])

VERSIONS = cycle(["1", "1", "1", "2"])

FLAWS = cycle(["none", "shape", "data", "more inputs"])


@schemathesis.hook
def map_case(context: schemathesis.HookContext, case: schemathesis.Case) -> schemathesis.Case:
    """Put in what the document cannot know; cases that are meant to be refused stay as they are."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return case
    for name, values in (("model", MODELS), ("version", VERSIONS)):
        if name in case.path_parameters:
            case.path_parameters[name] = next(values)
    if case.path == "/admin/set_policy" and isinstance(case.body, dict) and "model" in case.body:
        case.body["model"] = "several"  # which nothing here asks for rows: they could be told to wait for years
        if isinstance(case.body.get("default_timeout_ms"), int | float):
            case.body["default_timeout_ms"] = 60_000.0  # a shorter one is answered 504, and that is no fault of ours
    if case.path.endswith("/infer") and isinstance(case.body, dict):
        case.body = fitting(case.body, case.path_parameters["model"], next(FLAWS))
    return case


def fitting(body: dict[str, Any], model: str, flaw: str) -> dict[str, Any]:
    """The request with the tensor that its model takes, or with that and one flaw of its own."""
    inputs = body.get("inputs") or [{}]
    if model not in TENSORS:
        return body
    datatype, data = TENSORS[model]
    first = {**inputs[0], "name": datatype, "datatype": datatype}
    first |= {name: value for name, value in (("shape", [1, 3]), ("data", data)) if name != flaw}
    return {**body, "inputs": [first, *inputs[1:]] if flaw == "more inputs" else [first]}
