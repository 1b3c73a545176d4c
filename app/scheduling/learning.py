"""What the scheduler learns: costs per compiled size, recent use of the device, the time that follows a dispatch."""

from collections import deque
from collections.abc import Iterable, Mapping
from math import inf
from typing import ClassVar

#: A sample counts as at most this multiple of the estimate, so that one hiccup does not spoil it.
OUTLIER = 1.5

#: The mean deviation of costs: what it starts from, how far one dispatch moves it, and the most that one says.
FIRST_DEVIATION, DEVIATION_ALPHA, MOST_DEVIATION = 0.03, 0.05, 0.5

#: Halflives after which the ledger moves its origin: far below where 2.0 ** n overflows.
MOST_HALFLIVES = 500.0


class CostCurve:
    """The learned cost, in seconds, of each compiled size of one variant, and when each was last measured."""

    __slots__ = ("_least", "latest", "measured_at", "seconds")

    def __init__(self) -> None:
        self.seconds: dict[int, float] = {}
        self.measured_at: dict[int, float] = {}
        self.latest = -inf
        """When any size was last measured."""
        self._least: dict[int, float] = {}

    def observe(self, size: int, seconds: float, now: float, alpha: float) -> None:
        """Learn from one measurement; the first is taken as it is."""
        old = self.seconds.get(size)
        if old is None:
            self.seconds[size] = seconds
        else:
            self.seconds[size] = alpha * min(seconds, OUTLIER * old) + (1.0 - alpha) * old
        self.measured_at[size] = self.latest = now
        self._least.clear()

    def least(self, rows: int) -> float:
        """The cheapest known size that holds `rows`; 0 while none is known."""
        least = self._least.get(rows)
        if least is None:
            known = [cost for size, cost in self.seconds.items() if size >= rows]
            least = self._least[rows] = min(known, default=0.0)
        return least

    def inherit(self, other: "CostCurve") -> None:
        """Take over what `other` knows and this one does not."""
        self.seconds = {**other.seconds, **self.seconds}
        self.measured_at = {**other.measured_at, **self.measured_at}
        self.latest = max(other.latest, self.latest)
        self._least.clear()

    def stalest(self, sizes: Iterable[int]) -> int:
        """The one of `sizes` (at least one) that was measured the longest ago, or never."""
        return min(sizes, key=lambda size: self.measured_at.get(size, -inf))


class CostBook:
    """Learned costs per (model, variant, size), and learned weight loads per model; all in seconds."""

    def __init__(self, alpha: float) -> None:
        self._alpha = alpha
        self._curves: dict[str, dict[str, CostCurve]] = {}
        self._loads: dict[str, CostCurve] = {}
        self.deviation = FIRST_DEVIATION
        """By which part of the estimate dispatches differ from it, on average over all models."""

    def curve(self, model: str, variant: str) -> CostCurve:
        """The costs of one variant, which may know none yet."""
        curves = self._curves.get(model)
        if curves is None:
            curves = self._curves[model] = {}
        curve = curves.get(variant)
        if curve is None:
            curve = curves[variant] = CostCurve()
        return curve

    def estimate(self, model: str, variant: str, size: int) -> float | None:
        """The learned seconds of one dispatch; None while unseeded."""
        return self.curve(model, variant).seconds.get(size)

    def observe(self, model: str, variant: str, size: int, seconds: float, now: float) -> None:
        """Learn from one successful dispatch, weight load excluded."""
        curve = self.curve(model, variant)
        learned = curve.seconds.get(size)
        if learned:
            self.deviation += DEVIATION_ALPHA * (min(abs(seconds / learned - 1.0), MOST_DEVIATION) - self.deviation)
        curve.observe(size, seconds, now, self._alpha)

    def estimate_load(self, model: str) -> float:
        """The learned seconds of bringing the model's weights to the device; 0 while unseeded."""
        load = self._loads.get(model)
        return load.seconds[0] if load is not None else 0.0

    def observe_load(self, model: str, seconds: float, now: float) -> None:
        """Learn from one weight load."""
        self._loads.setdefault(model, CostCurve()).observe(0, seconds, now, self._alpha)

    def curves(self, model: str) -> Iterable[CostCurve]:
        """What is known of each variant of one model."""
        return self._curves.get(model, {}).values()

    def costs(self, model: str) -> Mapping[tuple[str, int], float]:
        """A copy of all that is known of one model, by (variant, size)."""
        curves = self._curves.get(model, {})
        return {(variant, size): cost for variant, curve in curves.items() for size, cost in curve.seconds.items()}

    def carry_over(self, old: str, new: str) -> None:
        """Let `new` start from what is known of `old`, where it has no measurement of its own."""
        for variant, curve in self._curves.get(old, {}).items():
            self.curve(new, variant).inherit(curve)
        if old in self._loads:
            self._loads.setdefault(new, self._loads[old])

    def forget(self, model: str) -> None:
        """Drop everything about one model."""
        self._curves.pop(model, None)
        self._loads.pop(model, None)


class UsageLedger:
    """Recent device time per account, as exponentially decaying averages, in seconds.

    All averages decay alike, so only the unit decays: amounts are kept in units of the origin, and an instant's
    scale converts. A charge touches one entry, and ratios of entries need no power at all.

    Two columns: what was *charged*, and the *standing* that `fair` compares, which may be raised above it.
    """

    def __init__(self, halflife: float) -> None:
        self._halflife = halflife
        self._origin: float | None = None
        self._charged: dict[str, float] = {}
        self._standing: dict[str, float] = {}

    def charge(self, account: str, seconds: float, now: float) -> None:
        """Add device time that was just used."""
        if self._halflives(now) > MOST_HALFLIVES:
            self._move_origin(now)
        amount = seconds * self._scale(now)
        self._charged[account] = self._charged.get(account, 0.0) + amount
        self._standing[account] = self._standing.get(account, 0.0) + amount

    def recent(self, account: str, now: float) -> float:
        """The charged seconds, decayed to `now`."""
        return self._charged.get(account, 0.0) * float(2.0 ** -self._halflives(now))

    def all_recent(self, now: float) -> dict[str, float]:
        """The same of every account that was ever charged."""
        scale = float(2.0 ** -self._halflives(now))
        return {account: amount * scale for account, amount in self._charged.items()}

    def standing(self, account: str) -> float:
        """What `fair` compares, in a unit that is the same for all accounts until the next charge."""
        return self._standing.get(account, 0.0)

    def standings(self, accounts: Iterable[str]) -> list[float]:
        """The standing of each."""
        get = self._standing.get
        return [get(account, 0.0) for account in accounts]

    def raise_standing(self, account: str, amount: float, less_seconds: float, now: float) -> None:
        """Raise a standing to `amount` (in the unit of `standing`) less `less_seconds`; never lower it."""
        floor = amount - less_seconds * self._scale(now)
        if floor > self._standing.get(account, 0.0):
            self._standing[account] = floor

    def forget(self, account: str) -> None:
        """Drop one account."""
        self._charged.pop(account, None)
        self._standing.pop(account, None)

    def _halflives(self, now: float) -> float:
        return 0.0 if self._origin is None else (now - self._origin) / self._halflife

    def _scale(self, now: float) -> float:
        if self._origin is None:
            self._origin = now
        # Bounded for readers: after so long a pause all that is compared has decayed to nothing anyway.
        return float(2.0 ** min(self._halflives(now), MOST_HALFLIVES))

    def _move_origin(self, now: float) -> None:
        factor = 2.0 ** -self._halflives(now)
        self._charged = {account: amount * factor for account, amount in self._charged.items()}
        self._standing = {account: amount * factor for account, amount in self._standing.items()}
        self._origin = now


class LearnedReserve:
    """The time that follows the queue, from slice to reply: the 95th percentile of the latest samples, in seconds."""

    WINDOW: ClassVar = 128
    LEAST_SAMPLES: ClassVar = 20
    REFRESH: ClassVar = 16

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=self.WINDOW)
        self._fresh = 0
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Learn from one answered request; `seconds` stays 0 until there are enough samples to mean anything."""
        self._samples.append(seconds)
        self._fresh += 1
        if len(self._samples) >= self.LEAST_SAMPLES and (self._fresh >= self.REFRESH or self.seconds == 0.0):
            ordered = sorted(self._samples)
            self.seconds = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
            self._fresh = 0
