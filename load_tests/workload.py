"""What is asked of a server, as YAML or the command line tells it: models, requests in what mixture, and when.

name: mixed
models: {mlp: mlp 64 128 10, tabular: example}   # what an own server serves; see `fleet.py`
calls:
  - {model: mlp, weight: 3, deadline_ms: 50}
  - {model: tabular, rows: 4}
arrivals: {kind: poisson, rate: 500}
seconds: 10
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from load_tests import arrivals as patterns

Positive = Annotated[float, Field(gt=0)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Arrivals(_Frozen):
    """When requests come: `closed` keeps `connections` busy; every other kind is open loop, `rate` a second on average.

    `cv` is that of `gamma`; `ramp` goes from `begin` to `end` times the rate; `surge` is `factor` times the rate for a
    fifth of the time, from its part `at` on. In open loop there are at most `connections` requests on their way.
    """

    kind: Literal["closed", "steady", "poisson", "gamma", "bursts", "ramp", "surge"] = "closed"
    connections: Annotated[int, Field(ge=1)] | None = None
    rate: Positive | None = None
    cv: Positive = 4.0
    begin: Annotated[float, Field(ge=0)] = 0.1
    end: Annotated[float, Field(ge=0)] = 1.9
    factor: Positive = 4.0
    at: Annotated[float, Field(ge=0, le=1)] = 0.5

    @model_validator(mode="after")
    def _complete(self) -> "Arrivals":
        if (self.kind == "closed") != (self.rate is None):
            raise ValueError("an open loop needs a rate, and a closed one has none")
        return self

    @property
    def most(self) -> int:
        """Most requests on their way at once."""
        return self.connections or (32 if self.kind == "closed" else 512)

    def times(self, seconds: float, rng: np.random.Generator) -> NDArray[np.float64] | None:
        """The instants of an open loop; None for a closed one."""
        if self.rate is None:
            return None
        options: dict[str, dict[str, float]] = {
            "gamma": {"cv": self.cv},
            "ramp": {"begin": self.begin, "end": self.end},
            "surge": {"factor": self.factor, "at": self.at},
        }
        make = getattr(patterns, self.kind)
        times: NDArray[np.float64] = make(self.rate, seconds, rng, **options.get(self.kind, {}))
        return times


class Call(_Frozen):
    """One kind of request. `extents` are those behind the rows, by input, where variable ones are not to be 8.

    `inputs` is an npz file with the tensors instead: for hooks that do not take random ones.
    """

    model: str
    rows: Annotated[int, Field(ge=1)] = 1
    weight: Positive = 1.0
    deadline_ms: Positive | None = None
    extents: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    inputs: Path | None = None


class Workload(_Frozen):
    """A scenario: with the same `seed` it asks the same at the same instants. `settings` are the own server's."""

    name: str = "custom"
    description: str = ""
    models: dict[str, str] = Field(default_factory=dict)
    calls: tuple[Call, ...] = ()
    arrivals: Arrivals = Arrivals()
    seconds: Positive = 10.0
    warmup_seconds: Annotated[float, Field(ge=0)] = 2.0
    settings: dict[str, Any] = Field(default_factory=dict)
    seed: int = 1

    def mixture(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Which call each of so many requests is, by weight."""
        weights = np.array([call.weight for call in self.calls])
        return rng.choice(len(self.calls), count, p=weights / weights.sum())


def read(path: Path) -> Workload:
    """A scenario from a YAML file. Raises `ValueError` that names file and key."""
    try:
        return Workload.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: {error}") from error
    except ValidationError as error:
        raise ValueError(f"{path}: {_first(error)}") from error


def changed(workload: Workload, changes: Mapping[str, Any]) -> Workload:
    """The same with other values of some fields. Raises `ValueError` that names the field."""
    try:
        return Workload.model_validate({**workload.model_dump(exclude_unset=True), **changes})
    except ValidationError as error:
        raise ValueError(_first(error)) from error


def _first(error: ValidationError) -> str:
    complaint = error.errors()[0]
    where = ".".join(map(str, complaint["loc"]))
    return f"{where}: {complaint['msg']}" if where else complaint["msg"]
