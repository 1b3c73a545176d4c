"""The keys of `manifest.yaml`, and what is said when one of them is wrong."""

from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from app.domain.errors import BundleError
from app.domain.tensors import NUMPY_DTYPES, TensorSpec

BATCH_LETTERS = "nb"


def _off(given: object) -> object:
    """YAML 1.1 reads a bare `off` as false."""
    return "off" if given is False else given


def _number(given: object) -> object:
    """YAML 1.1 reads `1e-3`, a number without a dot, as text."""
    try:
        return float(given) if isinstance(given, str) else given
    except ValueError:
        return given


Size = Annotated[int, Field(ge=1)]
Tolerance = Annotated[float, BeforeValidator(_number), Field(ge=0, allow_inf_nan=False)]
Text = Annotated[str, StringConstraints(min_length=1)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class TensorKeys(_Section):
    """One tensor: `shape` is row-major, one letter an axis; `dims` gives the extents of all but the batch letter."""

    name: Text
    dtype: str
    shape: str
    dims: dict[str, int] = Field(default_factory=dict)

    @field_validator("dtype")
    @classmethod
    def _known(cls, dtype: str) -> str:
        if dtype not in NUMPY_DTYPES:
            raise ValueError(f"unknown dtype {dtype!r}: write one of {', '.join(NUMPY_DTYPES)}")
        return dtype

    @field_validator("shape")
    @classmethod
    def _letters(cls, shape: str) -> str:
        if any(letter not in ascii_lowercase for letter in shape):
            raise ValueError(f"{shape!r} must be letters a-z, one an axis, as in 'nchw' ('' for a scalar)")
        if repeated := _repeated(shape):
            raise ValueError(f"{shape!r} uses the letter {repeated!r} twice: give every axis its own")
        if all(letter in shape for letter in BATCH_LETTERS):
            raise ValueError(f"{shape!r} has two batch axes, n and b: rename the one that is not the batch")
        return shape

    @model_validator(mode="after")
    def _every_extent_once(self) -> Self:
        for letter, extent in self.dims.items():
            if letter not in self.shape or len(letter) != 1:
                raise ValueError(f"dims has {letter!r}, which is no letter of shape {self.shape!r}: remove it")
            if letter in BATCH_LETTERS:
                raise ValueError(
                    f"dims gives the batch axis {letter!r} an extent: remove it (or, if that axis is not a batch, use "
                    f"another letter)"
                )
            if extent != -1 and extent < 1:
                raise ValueError(f"dims gives {letter!r} the extent {extent}: write 1 or more, or -1 for variable")
        if missing := [letter for letter in self.shape if letter not in BATCH_LETTERS and letter not in self.dims]:
            raise ValueError(f"dims lacks {', '.join(missing)}: give each an extent, -1 for variable")
        return self

    def spec(self) -> TensorSpec:
        """The tensor as the rest of the server knows it."""
        batch_axis = next((axis for axis, letter in enumerate(self.shape) if letter in BATCH_LETTERS), None)
        return TensorSpec(self.name, self.dtype, tuple(self.dims.get(letter, -1) for letter in self.shape), batch_axis)


_NO_SOURCE = "path is missing: name the file in the package that the model is made from, or remove package"


class FileKeys(_Section):
    """Where the model file is: `path` in the bundle, or `path` in the installed distribution `package`.

    With `build`, a Python file in the bundle, that is what the model is made from.
    """

    path: Text | None = None
    package: Text | None = None
    build: Text | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.path is None and (self.package is not None or self.build is None):
            raise ValueError("path is missing: name the model file" if self.build is None else _NO_SOURCE)
        for key, path in (("path", self.path), ("build", self.build)):
            if path is not None and (Path(path).is_absolute() or ".." in Path(path).parts):
                raise ValueError(f"{key} {path!r} leads outside: write it relative to the bundle, or the package")
        return self


class BatchingKeys(_Section):
    """How requests are merged."""

    enabled: bool = True
    compiled_batch_sizes: Annotated[list[Size], Field(min_length=1)] | None = None
    max_batch_size: Size | None = None
    verify: Annotated[Literal["off", "warn", "enforce"], BeforeValidator(_off)] = "enforce"
    padding: Literal["zeros", "repeat"] = "zeros"
    rtol: Tolerance | None = None
    atol: Tolerance = 0.0

    @field_validator("compiled_batch_sizes")
    @classmethod
    def _ascending(cls, sizes: list[int] | None) -> list[int] | None:
        if sizes is not None and (repeated := _repeated(sizes)):
            raise ValueError(f"{repeated} stands twice: list every size once")
        return sorted(sizes) if sizes is not None else None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.enabled and (self.compiled_batch_sizes or self.max_batch_size):
            raise ValueError("enabled: false contradicts compiled_batch_sizes and max_batch_size: remove one or other")
        return self


class HookKeys(_Section):
    """Where hooks run: in the server's hook threads, or in `processes` of their own."""

    isolation: Literal["thread", "process"] = "thread"
    processes: Size | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.isolation == "thread" and self.processes is not None:
            raise ValueError("processes belongs to isolation: process: write that too, or remove it")
        return self


def _tensors_once(tensors: list[TensorKeys] | None) -> list[TensorKeys] | None:
    if tensors is not None and (repeated := _repeated([tensor.name for tensor in tensors])):
        raise ValueError(f"tensor {repeated!r} stands twice: give every tensor its own name")
    return tensors


TensorList = Annotated[list[TensorKeys], Field(min_length=1)]


class ManifestKeys(_Section):
    """The whole file."""

    format_version: Literal["1"]
    kind: Literal["model", "meta"] = "model"
    file: Annotated[FileKeys, BeforeValidator(lambda given: {"path": given} if isinstance(given, str) else given)] = (
        FileKeys(path="model.onnx")
    )
    executable_inputs: TensorList | None = None
    executable_outputs: TensorList | None = None
    client_inputs: TensorList | None = None
    client_outputs: TensorList | None = None
    input_shapes: Annotated[list[dict[str, Size]], Field(min_length=1)] | None = None
    batching: BatchingKeys = BatchingKeys()
    hooks: HookKeys = HookKeys()
    version: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=255)] = "1"
    labels: dict[str, list[str]] | None = None
    fallback: Text | None = None
    calls: list[Text] | None = None
    expose: bool | None = None
    description: str = ""
    licence: str = ""
    provenance: str = ""

    _once = field_validator("executable_inputs", "executable_outputs", "client_inputs", "client_outputs")(_tensors_once)

    @field_validator("calls")
    @classmethod
    def _calls_once(cls, calls: list[str] | None) -> list[str] | None:
        if calls is not None and (repeated := _repeated(calls)):
            raise ValueError(f"{repeated!r} stands twice: name every model once")
        return calls

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        """What is written must mean something for this kind of model."""
        if self.kind == "model":
            if self.calls is not None:
                raise ValueError("calls: belongs to kind: meta: write that too, or remove it")
            return self
        if wrong := [key for key in _NOT_FOR_METAS if key in self.model_fields_set]:
            raise ValueError(f"{wrong[0]}: a meta model {_NOT_FOR_METAS[wrong[0]]}: remove it")
        if missing := [key for key in _NEEDED_BY_METAS if getattr(self, key) is None]:
            raise ValueError(f"{missing[0]}: is missing: a meta model needs it")
        return self


#: Keys that say nothing about a meta model, and why.
_NOT_FOR_METAS = {
    "file": "has no graph of its own",
    "executable_inputs": "has no graph of its own",
    "executable_outputs": "has no graph of its own",
    "input_shapes": "has no graph of its own",
    "batching": "is never merged, the models that it calls are",
    "hooks": "calls other models from the server's own process",
    "fallback": "has no queue that could be full",
    "expose": "is called by clients only",
}

_NEEDED_BY_METAS = ("calls", "client_inputs", "client_outputs")


def read_keys(file: Path) -> ManifestKeys:
    """The keys of one manifest, validated one by one. Raises `BundleError` naming file, keys and remedies."""
    try:
        content = yaml.load(file.read_bytes(), _UniqueKeyLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BundleError(f"{file}: not YAML ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise BundleError(f'{file}: holds {type(content).__name__}, not keys: begin with format_version: "1"')
    try:
        return ManifestKeys.model_validate(content)
    except ValidationError as error:
        complaints = "; ".join(_complaint(detail) for detail in error.errors(include_url=False))
        raise BundleError(f"{file}: {complaints}") from error


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML lets the last of several equal keys win in silence; here that is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if repeated := _repeated(keys):
            raise yaml.constructor.ConstructorError(None, None, f"key {repeated!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _repeated(values: Sequence[Any]) -> Any:
    """The first value that occurs more than once; None if there is none."""
    return next((value for value, count in Counter(values).items() if count > 1), None)


def _complaint(detail: ErrorDetails) -> str:
    """One error in the words of the manifest: key, what is wrong, what to do."""
    location, given = detail["loc"], detail["input"]
    match detail["type"]:
        case "missing":
            text = "is missing: add it"
        case "extra_forbidden":
            text = f"unknown key: remove it, or write one of {', '.join(_allowed(location))}"
        case "too_short":
            text = "is empty: list at least one, or remove the key"
        case "model_type" | "dict_type":
            text = f"{given!r} holds no keys: write them below it, or in braces"
        case "string_type":
            text = f"{given!r} is not a string: put it in quotes"
        case "literal_error" if isinstance(given, int) and f"'{given}'" in detail["msg"]:
            text = f'{given} is a number: write it in quotes: "{given}"'
        case "value_error":
            text = str(detail["ctx"]["error"])
        case _:
            text = f"{detail['msg']}, not {given!r}"
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
    return f"{key}: {text}" if key else text


def _allowed(location: tuple[int | str, ...]) -> list[str]:
    """The keys that may stand where an unknown one stands."""
    if len(location) == 1:
        return list(ManifestKeys.model_fields)
    sections: dict[str, type[_Section]] = {"file": FileKeys, "batching": BatchingKeys, "hooks": HookKeys}
    return list(sections.get(str(location[0]), TensorKeys).model_fields)
