"""The scenarios: which models, what arrives, at which rate. Deadlines and costs in milliseconds, rates per second."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from load_tests.simulate.models import SimulatedModel as Model

Arrival = Literal["steady", "poisson", "gamma4", "interrupted"]


@dataclass(frozen=True)
class Scenario:
    """A mix of models and its traffic. `rate` is nominal: about what the device can bear; loads are multiples of it."""

    name: str
    title: str
    models: tuple[Model, ...]
    arrivals: Arrival | Literal["backlogged", "recorded"]
    """`backlogged`: every model always has full batches queued; `rate` means nothing then."""
    rate: float
    seconds: float = 5.0
    room: int = 0
    """What the weights on the device may fill; 0 where they all fit."""
    scatter: float = 0.0
    """How far true times scatter about the cost, as a lognormal spread."""

    def rates(self, rate: float) -> list[float]:
        """A total rate, by model."""
        total = sum(model.share for model in self.models)
        return [rate * model.share / total for model in self.models]


def _resnet(deadline_ms: float) -> tuple[Model, ...]:
    return (Model("resnet", 5.07, 1.053, deadline_ms),)


_SIZES_TO_8 = (1, 2, 4, 8)

_GPU_MIX = (
    Model("resnet", 1.6, 0.28, 50, share=5),
    Model("bert", 3.0, 1.2, 100, share=2),
    Model("mlp", 0.2, 0.004, 10, share=10),
)

_CPU_MIX = (
    Model("resnet", 6, 30, 400, share=3, sizes=_SIZES_TO_8),
    Model("bert", 10, 80, 1000, share=1, sizes=_SIZES_TO_8),
    Model("mlp", 0.05, 0.004, 100, share=60),
)

_CPU_SMALL = (
    Model("mlp", 0.3, 0.01, 10, share=8),
    Model("trees", 0.8, 0.15, 20, share=4),
    Model("cnn", 1.5, 1.2, 30, share=1),
)


def _spread(place: int, stride: int, least: float, most: float, steps: int = 20) -> float:
    """A quantity of one of many models: the strides spread each over them independently of rank."""
    return least + (most - least) * (place * stride % steps) / (steps - 1)


def _twenty() -> tuple[Model, ...]:
    """Twenty models, popular by Zipf's law."""
    return tuple(
        Model(
            f"m{place:02}",
            _spread(place, 7, 1.2, 5.1),
            _spread(place, 11, 0.25, 1.05),
            _spread(place, 3, 25, 100, steps=4),
            share=(place + 1) ** -1.1,
        )
        for place in range(20)
    )


def _heavy(*, equal: bool) -> tuple[Model, ...]:
    """Twenty models, popular by Zipf's law, whose weights take as long to load as 5 to 50 executions of one row."""
    models = []
    for place in range(20):
        fixed_ms, row_ms = _spread(place, 7, 2, 8), _spread(place, 11, 1, 4)
        load_ms = (fixed_ms + row_ms) * _spread(place, 13, 5, 50)
        deadline_ms = _spread(place, 3, 500, 2000, steps=4)
        nbytes = 100 if equal else round(load_ms)
        models.append(
            Model(f"m{place:02}", fixed_ms, row_ms, deadline_ms, (place + 1) ** -1.1, 1.0, _SIZES_TO_8, load_ms, nbytes)
        )
    return tuple(models)


def _tight(name: str, title: str, models: tuple[Model, ...], part: float) -> Scenario:
    """A device on which a part of all weights has room. Its rate is what it bears in full batches with all of them."""
    total = sum([model.share for model in models])
    seconds = sum([model.share / total * model.seconds(model.sizes[-1]) / model.sizes[-1] for model in models])
    room = int(part * sum([model.nbytes for model in models]))
    return Scenario(name, title, models, "poisson", 1.0 / seconds, 30.0, room)


_ALL = (
    Scenario("S1", "ResNet-50 on a GPU, 25 ms, Poisson", _resnet(25), "poisson", 600, scatter=0.02),
    Scenario("S2", "ResNet-50 on a GPU, 50 ms, Poisson", _resnet(50), "poisson", 700, scatter=0.02),
    Scenario("S3", "ResNet-50 on a GPU, 50 ms, clumped", _resnet(50), "gamma4", 600, scatter=0.02),
    Scenario("M1", "ResNet, BERT and MLP on a GPU, 5:2:10, Poisson", _GPU_MIX, "poisson", 2200, scatter=0.02),
    Scenario("M2", "ResNet, BERT and MLP on a GPU, 5:2:10, clumped", _GPU_MIX, "gamma4", 1800, scatter=0.02),
    Scenario("M3", "twenty models on a GPU, skewed, bursts", _twenty(), "interrupted", 600, scatter=0.02),
    Scenario(
        "C1", "ResNet, BERT and MLP on two cores, 3:1:60, Poisson", _CPU_MIX, "poisson", 250, seconds=50.0, scatter=0.1
    ),
    Scenario("C2", "small models on two cores, 8:4:1, clumped", _CPU_SMALL, "gamma4", 2000, scatter=0.1),
)

#: Open loop, by name: what `table` and `r99` run.
SCENARIOS: Mapping[str, Scenario] = MappingProxyType({each.name: each for each in _ALL})


def _alone(name: str, cost_ms: float, weight: float = 1.0) -> Model:
    return Model(name, cost_ms, 0.0, weight=weight, sizes=(1,))


_SHARES = (
    Scenario("W1", "weights 3:1, always backlogged", (_alone("a", 10, 3), _alone("b", 10)), "backlogged", 0, 200.0),
    Scenario("W2", "costs 10 and 100 ms, equal weights", (_alone("a", 10), _alone("b", 100)), "backlogged", 0, 400.0),
    Scenario("W3", "weights 99:1", (_alone("a", 10, 99), _alone("b", 10)), "backlogged", 0, 200.0),
    Scenario(
        "W4",
        "three models that batch, weights 2:1:1, always backlogged",
        (Model("bert", 3.0, 1.2, weight=2), Model("resnet", 1.6, 0.28), Model("resnet_b", 2.5, 0.5)),
        "backlogged",
        0,
        60.0,
    ),
    Scenario(
        "F1",
        "the same with deadlines, each offered twice what its share bears",
        (
            Model("bert", 3.0, 1.2, 100, share=1.3, weight=2),
            Model("resnet", 1.6, 0.28, 50, share=2.4),
            Model("resnet_b", 2.5, 0.5, 50, share=1.3),
        ),
        "poisson",
        3600,
        15.0,
    ),
    Scenario(
        "F2",
        "equal weights, BERT offers four times its share, the others keep inside theirs",
        (
            Model("bert", 3.0, 1.2, 100, share=4),
            Model("resnet", 1.6, 0.28, 50, share=0.6),
            Model("mlp", 0.2, 0.004, 10, share=3),
        ),
        "poisson",
        2000,
        15.0,
    ),
)

_TIGHT = (
    _tight("R10", "twenty models of one size, room for ten", _heavy(equal=True), 0.5),
    _tight("R10u", "twenty models of unequal size, room for half", _heavy(equal=False), 0.5),
    _tight("R3", "twenty models of one size, room for three", _heavy(equal=True), 0.15),
    _tight("R18", "twenty models of one size, room for eighteen", _heavy(equal=True), 0.9),
)

#: What `residency` runs.
TIGHT: Mapping[str, Scenario] = MappingProxyType({each.name: each for each in _TIGHT})

#: What `shares` runs.
SHARES: Mapping[str, Scenario] = MappingProxyType({each.name: each for each in _SHARES})
