"""Ready workloads, by name."""

from collections.abc import Mapping
from types import MappingProxyType

from load_tests.workload import Arrivals, Call, Workload

_ALL = (
    Workload(
        name="digits",
        description="a digits-sized MLP, one row a request, closed loop at 32 connections",
        models={"digits": "mlp 64 128 10"},
        calls=(Call(model="digits"),),
        arrivals=Arrivals(connections=32),
    ),
    Workload(
        name="poisson",
        description="the same at 1000 requests a second that come independently, 100 ms allowed",
        models={"digits": "mlp 64 128 10"},
        calls=(Call(model="digits", deadline_ms=100),),
        arrivals=Arrivals(kind="poisson", rate=1000),
    ),
    Workload(
        name="clumps",
        description="the same number in clumps: gaps of a gamma distribution, cv 4",
        models={"digits": "mlp 64 128 10"},
        calls=(Call(model="digits", deadline_ms=100),),
        arrivals=Arrivals(kind="gamma", rate=1000, cv=4),
    ),
    Workload(
        name="ramp",
        description="from a tenth of the rate to almost twice of it, on a model of 4 ms up to 8 rows",
        models={"work": "treadmill 4 8"},
        calls=(Call(model="work", deadline_ms=100),),
        arrivals=Arrivals(kind="ramp", rate=1000),
        seconds=20,
    ),
    Workload(
        name="surge",
        description="steady, then four times as much for a fifth of the time, on a model of 4 ms up to 8 rows",
        models={"work": "treadmill 4 8"},
        calls=(Call(model="work", deadline_ms=100),),
        arrivals=Arrivals(kind="surge", rate=800),
        seconds=20,
    ),
    Workload(
        name="mixed",
        description="three models, several row counts and deadlines, closed loop at 32 connections",
        models={"digits": "mlp 64 128 10", "tabular": "example", "work": "treadmill 2 8"},
        calls=(
            Call(model="digits", weight=4, deadline_ms=50),
            Call(model="digits", rows=8),
            Call(model="tabular", weight=2, rows=4, deadline_ms=200),
            Call(model="work", deadline_ms=100),
        ),
        arrivals=Arrivals(connections=32),
    ),
    Workload(
        name="cnn",
        description="a CNN of ResNet-50's shape, closed loop at 32 connections",
        models={"resnet50": "resnet50"},
        calls=(Call(model="resnet50"),),
        arrivals=Arrivals(connections=32),
        seconds=20,
    ),
)

WORKLOADS: Mapping[str, Workload] = MappingProxyType({each.name: each for each in _ALL})
