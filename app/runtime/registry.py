"""Which models there are: name → entry, copy-on-write, so that anyone may read it without a lock."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from app.domain.config import ModelPolicy
from app.domain.errors import ModelNotFound, ModelUnavailable
from app.repository.bundle import Bundle
from app.runtime.accounts import Account


class ModelState(StrEnum):
    """Where a model is in its life; the names are those of the V2 repository index."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


#: Reasons that are no faults: of a model that nobody has loaded yet, and of one that an operator has unloaded.
NOT_LOADED, UNLOADED = "not loaded", "unloaded"
RESTING = (NOT_LOADED, UNLOADED)


@dataclass(slots=True)
class Holders:
    """How many requests refer to a generation, and whether it was replaced. Event loop only."""

    count: int = 0
    retired: bool = False


@dataclass(frozen=True, eq=False)
class Generation:
    """One loaded version of a bundle; requests finish on the generation they began with.

    A reload mints a new `model_id` and goes on with policy and account; a rename keeps the holders too. A changed
    policy makes a new value of the same generation, as does an operator who takes the weights off the device
    (`resident` False), which no request may do.
    """

    model_id: str
    bundle: Bundle
    policy: ModelPolicy = field(default_factory=ModelPolicy)
    account: Account = field(default_factory=Account)
    holders: Holders = field(default_factory=Holders)
    resident: bool = True


@dataclass(frozen=True)
class ModelEntry:
    """What the server knows of one name; `generation` is None while nothing can be served under it."""

    name: str
    state: ModelState
    reason: str = ""
    generation: Generation | None = None


class ModelRegistry:
    """Name → entry. Only the dispatcher thread writes; every write swaps the whole mapping."""

    def __init__(self) -> None:
        self._entries: Mapping[str, ModelEntry] = MappingProxyType({})
        self._told: Mapping[str, ModelEntry] = {}
        self._public: Mapping[str, ModelEntry] = {}
        self.serving: Mapping[str, Generation] = {}
        """What answers clients now, by name: a short way to `resolve_public` for those that are there in full."""

    @property
    def public(self) -> Mapping[str, ModelEntry]:
        """The entries that clients see: without the models that only meta models call, and meta models READY with all
        that they call.
        """
        return self._public

    @property
    def told(self) -> Mapping[str, ModelEntry]:
        """All entries, meta models READY with all that they call."""
        return self._told

    @property
    def entries(self) -> Mapping[str, ModelEntry]:
        """The mapping as it is now; it is never changed, only replaced."""
        return self._entries

    def put(self, entry: ModelEntry) -> None:
        """Set the entry of `entry.name`."""
        self.replace((), (entry,))

    def replace(self, gone: Iterable[str], come: Iterable[ModelEntry]) -> None:
        """Forget names and set entries, all at once: no reader sees a step between."""
        entries = {**self._entries}
        for name in gone:
            entries.pop(name, None)
        entries.update({entry.name: entry for entry in come})
        internal = _internal(entries)
        self._entries = MappingProxyType(entries)
        self._told = {name: _with_calls(entry, entries) for name, entry in entries.items()}
        self._public = {name: entry for name, entry in self._told.items() if name not in internal}
        served = [(name, entry.generation) for name, entry in self._public.items()]
        self.serving = {name: each for name, each in served if each is not None and each.resident}

    def name_of(self, model_id: str) -> str:
        """The name under which a generation serves now. Raises `ModelNotFound`."""
        for name, entry in self._entries.items():
            if entry.generation is not None and entry.generation.model_id == model_id:
                return name
        raise ModelNotFound("the model was unloaded")

    def why_internal(self, name: str) -> str:
        """Why clients cannot ask for a model that is there."""
        served = [
            (caller, each.generation.bundle.spec) for caller, each in sorted(self._entries.items()) if each.generation
        ]
        callers = [repr(caller) for caller, spec in served if name in (spec.meta_models or ())]
        if not callers:
            return "its manifest says expose: false"
        return f"called by {', '.join(callers)}; its manifest may say expose: true"

    def find_public(self, name: str) -> ModelEntry:
        """The entry of a name, for clients: a model that only meta models call is not found. Raises `ModelNotFound`."""
        entry = self._public.get(name)
        if entry is None and name in self._entries:
            raise ModelNotFound(f"model {name!r} is internal: {self.why_internal(name)}")
        if entry is None:
            raise ModelNotFound(f"unknown model {name!r}")
        return entry

    def resolve_public(self, name: str, version: str | None = None) -> Generation:
        """As `resolve`, for clients. Raises what `find_public` does too."""
        return _serving(self.find_public(name), version)

    def resolve(self, name: str, version: str | None = None) -> Generation:
        """The generation that serves `name` now. Raises `ModelNotFound` or `ModelUnavailable`.

        Why a model is unavailable is for status and index only: the reason may tell of files on this machine.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise ModelNotFound(f"unknown model {name!r}")
        return _serving(entry, version)


def _serving(entry: ModelEntry, version: str | None) -> Generation:
    if entry.generation is None and entry.reason in RESTING:
        way = f"POST /v2/repository/models/{entry.name}/load"
        raise ModelUnavailable(f"model {entry.name!r} is not loaded: in explicit mode {way} loads it")
    if entry.generation is None:
        raise ModelUnavailable(f"model {entry.name!r} is {entry.state}: /status says why")
    served = entry.generation.bundle.spec.version
    if version is not None and version != served:
        raise ModelNotFound(f"unknown version {version!r} of model {entry.name!r}: the one served is {served!r}")
    return entry.generation


def _with_calls(entry: ModelEntry, entries: Mapping[str, ModelEntry]) -> ModelEntry:
    """A meta model as READY as what it calls; any other as it is."""
    calls = () if entry.generation is None else entry.generation.bundle.spec.meta_models or ()
    missing = [name for name in calls if name not in entries or entries[name].generation is None]
    if not missing:
        return entry
    if all(name in entries and entries[name].state is ModelState.LOADING for name in missing):
        return replace(entry, state=ModelState.LOADING)
    reason = entry.reason or f"calls {', '.join(missing)}, not loaded: load that too"
    return replace(entry, state=ModelState.UNAVAILABLE, reason=reason)


def _internal(entries: Mapping[str, ModelEntry]) -> frozenset[str]:
    """Those that clients do not ask for: that some meta model calls, unless their manifests say otherwise."""
    specs = {name: entry.generation.bundle.spec for name, entry in entries.items() if entry.generation is not None}
    called = {name for spec in specs.values() for name in spec.meta_models or ()}
    hidden = {name for name in called if name not in specs or not specs[name].expose}
    return frozenset(hidden | {name for name, spec in specs.items() if spec.expose is False})
