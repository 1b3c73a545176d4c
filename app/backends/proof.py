"""Proving a form: every (variant, size) is run in the compile child, against a plain session of the same graph.

A form that kills the process kills the child, and the server never maps it.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from app.backends.compare import difference, magnitude, numbers
from app.backends.entry import StoredEntry, StoredRun
from app.backends.execution import Run, bind, open_run
from app.backends.probes import probes
from app.backends.sessions import SessionConfig, create_session, session_key, session_options
from app.domain.errors import BundleError
from app.domain.model import ModelSpec, Variant
from app.domain.tensors import Tensors

#: A run that is shorter gains nothing from a thread that first has to wake up, and pays for waking it.
QUICK_SECONDS = 100e-6

#: Runs per case: the second may take other memory than the first.
_RUNS = 2

#: Runs of a case that may be quick: one of them will not be disturbed.
_QUICK_RUNS = 3

#: Rows to try a free batch with: one row and several take different kernels.
FREE_ROWS = (1, 3)

#: Largest difference, relative to the output's range. The same kernels on the same values: this is no rounding budget.
_TOLERANCE = {"FP16": 2e-2, "BF16": 2e-2}
_TOLERANCE_OTHERWISE = 1e-4


class NotProvedError(Exception):
    """A form that differs from the plain session."""


class UnprovableError(Exception):
    """A model that no probe could run: no form of it can be proved."""


Case = tuple[Variant, int, int, Tensors, Tensors]
"""Variant, compiled size (0: free), rows, inputs, expected outputs."""


class Reference:
    """What the plain session answers, computed once and compared with every form."""

    def __init__(
        self, model: bytes, folder: Path, spec: ModelSpec, sample: Tensors | None, config: SessionConfig
    ) -> None:
        options = session_options(config)
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
        self._spec = spec
        self._run = bind(spec, create_session(model, options, config))
        self._sample = sample
        self.failures: dict[tuple[str, int], str] = {}
        self.cases = list(self._collect())

    def check_provable(self) -> None:
        """Raise `UnprovableError` for a variant that no probe runs."""
        proved = {case[0].key for case in self.cases}
        if missing := [variant.key for variant in self._spec.variants if variant.key not in proved]:
            why = next(failure for (key, _), failure in self.failures.items() if key == missing[0])
            remedy = "a sample.npz beside the model would help"
            raise UnprovableError(f"no probe runs variant {missing[0]!r} ({remedy}): {why}")

    def _collect(self) -> Iterator[Case]:
        """The cases that can be compared. Raises `BundleError` for a size that cannot run where others can."""
        for variant in self._spec.variants:
            sizes = self._spec.sizes(variant.key)
            cases = [self._case(variant, size, size) for size in sizes]
            failed = [size for size, case in zip(sizes, cases, strict=True) if case is None]
            if failed and len(failed) < len(cases):
                raise BundleError(
                    f"variant {variant.key!r} cannot run at batch size {failed[0]} "
                    f"({self.failures[variant.key, failed[0]]}); set batching.compiled_batch_sizes to those that it can"
                )
            cases += [self._case(variant, 0, rows) for rows in FREE_ROWS]
            yield from (case for case in cases if case is not None)

    def _case(self, variant: Variant, size: int, rows: int) -> Case | None:
        for inputs in probes(self._spec, variant, rows, self._sample):
            try:
                return variant, size, rows, inputs, self._run(inputs)
            except Exception as error:  # a probe that the model does not take says nothing about the form
                self.failures.setdefault((variant.key, rows), " ".join(str(error).split()))
        return None


def prove(
    path: Path, entry: StoredEntry, spec: ModelSpec, reference: Reference, config: SessionConfig
) -> tuple[StoredRun, ...]:
    """Run every case; returns what the runs of each (variant, size) took.

    Raises `NotProvedError` saying where the form differs; a form may also end this process.
    """
    measured = []
    opened: object = None
    run: Run | None = None
    for variant, size, rows, inputs, expected in reference.cases:
        key = session_key(entry, config, variant.key, size)
        if run is None or key != opened:
            run, opened = open_run(path, entry, spec, config, variant.key, size), key
        seconds: list[float] = []
        while len(seconds) < _RUNS or (len(seconds) < _QUICK_RUNS and min(seconds) < 10 * QUICK_SECONDS):
            started = time.perf_counter()
            outputs = run(inputs)
            seconds.append(time.perf_counter() - started)
            compare(spec, expected, outputs, f"variant {variant.key!r}, size {size or 'free'}, {rows} rows")
        if size or (rows == 1 and not spec.sizes(variant.key)):
            quick = bool(size) and min(seconds) < QUICK_SECONDS and not _free_axes(spec, variant)
            measured.append(StoredRun(variant.key, size or rows, min(seconds), quick))
    return tuple(measured)


def _free_axes(spec: ModelSpec, variant: Variant) -> bool:
    """Whether real inputs may be larger than the probes were."""
    return any(
        extent == -1 and axis != tensor.batch_axis and (tensor.name, axis) not in variant.dims
        for tensor in spec.inputs
        for axis, extent in enumerate(tensor.shape)
    )


def compare(spec: ModelSpec, expected: Tensors, actual: Tensors, place: str) -> None:
    """Raise `NotProvedError` where the answers of one model to the same inputs differ, saying at which `place`."""
    for tensor in spec.outputs:
        left, right = (numbers(tensor, tensors[tensor.name]) for tensors in (expected, actual))
        if left.shape != right.shape or left.dtype != right.dtype:
            raise NotProvedError(f"output {tensor.name!r} has another shape or type ({place})")
        if left.dtype.kind != "f":
            if not np.array_equal(left, right):
                raise NotProvedError(f"output {tensor.name!r} differs ({place})")
            continue
        apart = difference(left, right) / max(magnitude(left), 1e-30)
        if apart > _TOLERANCE.get(tensor.datatype, _TOLERANCE_OTHERWISE):
            raise NotProvedError(f"output {tensor.name!r} differs by {apart:.2g} of its range ({place})")
