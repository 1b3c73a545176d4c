"""The verdict on one model: passed, refused for a reason that holds, or failed."""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from load_tests.onnx_suite.asking import Answer, Asker
from load_tests.onnx_suite.cases import Array, Case, Tensors
from load_tests.onnx_suite.plain import Plain, RefusedError

#: The tolerances of the runner that comes with the tests.
RELATIVE, ABSOLUTE = 1e-3, 1e-7


class Verdict(StrEnum):
    """How a model fared. What is refused is refused with the right reason."""

    PASSED = "passed"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    """`reason` groups models in the table; `detail` is what the server, ONNX Runtime or the comparison said."""

    name: str
    verdict: Verdict
    reason: str = ""
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        """The outcome as JSON values."""
        return asdict(self)


def judge(case: Case, state: str, reason: str, asker: Asker) -> Outcome:
    """Ask a model that is in this state, for this reason, by JSON and by binary tensors."""
    if state != "READY":
        return _judge_refusal(case, reason)
    if case.unsendable:
        return _failed(case, "served, though its types cannot be sent", ", ".join(case.unsendable))
    for binary in (False, True):
        way = "binary" if binary else "JSON"
        answer = asker.infer(case.name, case.inputs, binary=binary)
        fault = answer.text if answer.status != 200 else apart(case.expected, answer.outputs)
        if fault:
            return _excused(case, answer) or _failed(case, f"wrong by {way}", f"status {answer.status}: {fault}")
    return Outcome(case.name, Verdict.PASSED)


def apart(expected: Tensors, actual: Tensors, relative: float = RELATIVE, absolute: float = ABSOLUTE) -> str:
    """Where outputs differ from what they should be; empty where they do not."""
    if expected.keys() != actual.keys():
        return f"outputs {list(actual)} instead of {list(expected)}"
    for name, wanted in expected.items():
        given = actual[name]
        if given.shape != wanted.shape or given.dtype != wanted.dtype:
            return f"output {name!r} is {given.dtype}{list(given.shape)} instead of {wanted.dtype}{list(wanted.shape)}"
        try:
            if wanted.dtype.hasobject:
                np.testing.assert_array_equal(given, wanted)
            else:
                np.testing.assert_allclose(_wide(given), _wide(wanted), relative, absolute)
        except AssertionError as error:
            return f"output {name!r}: {' '.join(str(error).split())}"
    return ""


def _judge_refusal(case: Case, reason: str) -> Outcome:
    if case.unsendable:
        named = next((kind for kind in sorted(case.unsendable) if kind in reason), "")
        if named:
            return Outcome(case.name, Verdict.REFUSED, f"the protocol has no {named}", reason)
        return _failed(case, "refused without naming its type", reason)
    try:
        Plain(case.model_file)
    except RefusedError as error:
        return Outcome(case.name, Verdict.REFUSED, "ONNX Runtime cannot load it", f"{reason} | plain: {error}")
    return _failed(case, "refused, though ONNX Runtime loads it", reason)


def _excused(case: Case, answer: Answer) -> Outcome | None:
    """A refusal, where plain ONNX Runtime does no better; None where it does."""
    plain = Plain(case.model_file)
    try:
        first = plain.run(case.inputs)
    except RefusedError as error:
        if answer.status == 500 and json.loads(answer.text)["code"] == "execution_failed":
            return Outcome(case.name, Verdict.REFUSED, "ONNX Runtime cannot run it", f"{answer.text} | plain: {error}")
        return None
    if answer.status != 200 or not (differs := apart(case.expected, first)):
        return None
    if apart(first, plain.run(case.inputs)):
        return Outcome(case.name, Verdict.REFUSED, "it is random: ONNX Runtime never answers the same", differs)
    if not apart(first, answer.outputs):
        return Outcome(case.name, Verdict.REFUSED, "ONNX Runtime computes otherwise", differs)
    return None


def _failed(case: Case, reason: str, detail: str) -> Outcome:
    return Outcome(case.name, Verdict.FAILED, reason, detail)


def _wide(array: Array) -> Array:
    """What numpy can compare: BF16 and FP16 as FP32."""
    return array.astype(np.float32) if array.dtype.itemsize == 2 and array.dtype.kind not in "iu" else array
