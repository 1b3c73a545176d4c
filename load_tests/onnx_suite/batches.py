"""The same graphs with their first axis opened: what a server merges has to be answered as if it had come alone."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local

import numpy as np
import onnx

from load_tests.onnx_suite.asking import Answer, Asker
from load_tests.onnx_suite.cases import Case, Tensors, rows_of, single_rows
from load_tests.onnx_suite.judging import Outcome, Verdict, apart
from load_tests.onnx_suite.plain import Plain, RefusedError

#: Behind the name of the graph that it was made from.
SUFFIX = ".opened"

#: Rows of a case that are sent one by one, at once.
MOST_ROWS = 4

#: Kernels for several rows round otherwise than those for one: relative, and as a part of the output's range.
_RELATIVE, _OF_RANGE = 1e-3, 1e-5

#: As the server has it for graphs that quantise by what the batch holds.
_APPROXIMATE = 0.05


def open_graph(case: Case, target: Path) -> bool:
    """Write the graph with a free first axis; False where its tensors do not share one, or not of several rows."""
    if not rows_of(case):
        return False
    model = onnx.load(case.model_file)
    for value in [*model.graph.input, *model.graph.output]:
        if value.name in case.inputs or value.name in case.expected:
            value.type.tensor_type.shape.dim[0].dim_param = "rows"
    del model.graph.value_info[:]  # they tell the old extent
    onnx.save(model, target)
    return True


class Rows:
    """Sends the rows of a case as requests of their own, all at once."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._own = local()
        self._askers: list[Asker] = []
        self._senders = ThreadPoolExecutor(MOST_ROWS)

    def judge(self, case: Case, model_file: Path, state: str, verdict: str) -> tuple[Outcome, int]:
        """The outcome, and the most rows that shared an execution. `verdict` is the server's on its batches."""
        name = case.name + SUFFIX
        rows = list(single_rows(case.inputs, min(rows_of(case), MOST_ROWS)))
        try:
            plain = Plain(model_file)
            wanted = [plain.run(row) for row in rows]
        except RefusedError as error:  # such a graph needs all its rows
            return Outcome(name, Verdict.REFUSED, "ONNX Runtime does not run one row of it", str(error)), 0
        if state != "READY":
            return Outcome(name, Verdict.FAILED, "not served, though ONNX Runtime runs it", state), 0
        if any(apart(answer, plain.run(row)) for answer, row in zip(wanted, rows, strict=True)):
            return Outcome(name, Verdict.REFUSED, "it is random: ONNX Runtime never answers the same"), 0
        answers = list(self._senders.map(lambda row: self._ask(name, row), rows))
        merged = max(int(answer.parameters.get("batch_rows", 0)) for answer in answers)
        for answer, right in zip(answers, wanted, strict=True):
            fault = answer.text if answer.status != 200 else _fault(right, answer.outputs, verdict)
            if fault:
                how = f"wrong among {merged} rows ({verdict or 'alone'})"
                return Outcome(name, Verdict.FAILED, how, f"status {answer.status}: {fault}"), merged
        return Outcome(name, Verdict.PASSED), merged

    def close(self) -> None:
        """End the senders and their connections."""
        self._senders.shutdown()
        for asker in self._askers:
            asker.close()

    def _ask(self, name: str, row: Tensors) -> Answer:
        if not hasattr(self._own, "asker"):
            self._own.asker = Asker(self._address)
            self._askers.append(self._own.asker)
        asker: Asker = self._own.asker
        return asker.infer(name, row, binary=True)


def _fault(wanted: Tensors, given: Tensors, verdict: str) -> str:
    relative = _APPROXIMATE if verdict == "approximate" else _OF_RANGE
    for name, array in wanted.items():
        if name not in given:
            return f"output {name!r} is missing"
        numbers = array.astype(np.float64) if not array.dtype.hasobject else np.zeros(1)
        finite = np.abs(numbers[np.isfinite(numbers)])
        fault = apart({name: array}, {name: given[name]}, _RELATIVE, relative * float(finite.max(initial=0.0)))
        if fault:
            return fault
    return ""
