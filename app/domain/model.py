"""What a model is to the server: its tensors, its variants, its compiled batch sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from app.domain.batch_safety import BatchCheck, BatchSafety, Padding
from app.domain.errors import InvalidRequest, ShapeNotCompiled
from app.domain.tensors import Tensors, TensorSpec

#: Inputs without a batch axis take part in the merge key up to this many bytes; larger ones never merge.
MAX_CONSTANT_BYTES = 1024

DEFAULT_SIZES = (1, 2, 4, 8, 16, 32)


class MergeKey(NamedTuple):
    """Requests with equal keys may share an execution.

    `variant` names the input-shape family, `extents` are the actual sizes of the free axes, `constants` the bytes of
    the inputs without a batch axis. `alone` is nonzero and unique for a request that may merge with no other.
    """

    variant: str
    extents: tuple[int, ...] = ()
    constants: bytes = b""
    alone: int = 0


class Simple(NamedTuple):
    """How requests for most models are queued: with one `key`, as `input` has rows on `axis`, at most `largest`."""

    input: str
    axis: int
    key: MergeKey
    largest: int


@dataclass(frozen=True, eq=False)
class Variant:
    """One input-shape family.

    `compiled_sizes` ascend; they are empty for a model that runs at its exact row count in a session whose batch
    extent is free. `dims` gives the extents this variant fixes, by (input name, axis).
    """

    key: str
    compiled_sizes: tuple[int, ...]
    dims: Mapping[tuple[str, int], int]


@dataclass(frozen=True, eq=False)
class ModelSpec:
    """A servable model, as its manifest and its graph declare it.

    `inputs` and `outputs` are the executable's tensors; `client_inputs` and `client_outputs` are what clients see
    (the same unless hooks change them). `batching` is False where the bundle or the batch-safety check forbids merging;
    `batch_safety` is what the check that `batch_check` asks for found, None before it and where there is nothing to
    check; `padding` fills partial batches unless the policy says otherwise; `meta_models` are the models a meta model
    may call, None for a plain one.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    variants: tuple[Variant, ...]
    client_inputs: tuple[TensorSpec, ...] = ()
    client_outputs: tuple[TensorSpec, ...] = ()
    batching: bool = True
    batch_check: BatchCheck = field(default_factory=BatchCheck)
    batch_safety: BatchSafety | None = None
    padding: Padding = "zeros"
    max_batch_size: int | None = None
    meta_models: tuple[str, ...] | None = None
    version: str = "1"
    labels: Mapping[str, tuple[str, ...]] | None = None
    description: str = ""
    fallback: str | None = None
    """The cheaper model that answers when this one cannot in time, unless the policy names another."""
    expose: bool | None = None
    """Whether clients may ask for it; None: unless a meta model calls it."""

    @cached_property
    def is_meta(self) -> bool:
        """Whether this is Python between models, with no graph of its own."""
        return self.meta_models is not None

    @cached_property
    def coalescible(self) -> bool:
        """Whether requests may merge: every output and at least one input has a batch axis, and nothing forbids it."""
        return (
            self.batching
            and bool(self.outputs)
            and all(spec.batch_axis is not None for spec in self.outputs)
            and any(spec.batch_axis is not None for spec in self.inputs)
        )

    @cached_property
    def batching_reason(self) -> str:
        """Why requests do not merge, or what there is to know before they do; empty where there is nothing to say."""
        if self.is_meta:
            return "a meta model is not batched: the models that it calls are"
        if self.batch_safety is not None:
            return self.batch_safety.reason
        if self.coalescible:
            return ""
        if not self.batching:
            return "the manifest turns batching off (batching.enabled)"
        unbatched = [spec.name for spec in self.outputs if spec.batch_axis is None]
        return f"output {unbatched[0]!r} has no batch axis" if unbatched else "no input has a batch axis"

    @cached_property
    def variants_by_key(self) -> Mapping[str, Variant]:
        """The variants by their key."""
        return {variant.key: variant for variant in self.variants}

    @cached_property
    def inputs_by_name(self) -> Mapping[str, TensorSpec]:
        """The executable inputs by name."""
        return {spec.name: spec for spec in self.inputs}

    @cached_property
    def text_inputs(self) -> tuple[str, ...]:
        """The executable inputs that are text, so that their BYTES must be UTF-8; a meta model has none."""
        return () if self.is_meta else tuple(spec.name for spec in self.inputs if spec.datatype == "BYTES")

    @cached_property
    def client_inputs_by_name(self) -> Mapping[str, TensorSpec]:
        """The client-facing inputs by name."""
        return {spec.name: spec for spec in self.client_inputs}

    @cached_property
    def client_outputs_by_name(self) -> Mapping[str, TensorSpec]:
        """The client-facing outputs by name."""
        return {spec.name: spec for spec in self.client_outputs}

    @cached_property
    def simple(self) -> Simple | None:
        """Of a model with one key and one input, so that nothing of its requests needs to be looked at but their rows.

        A request without a row is not for it.
        """
        if self._simple_key is None or len(self.inputs) > 1:
            return None
        (spec,), largest = self.inputs, self.largest(self._simple_key.variant)
        if spec.batch_axis is None or largest is None:
            return None
        return Simple(spec.name, spec.batch_axis, self._simple_key, largest)

    def sizes(self, variant: str) -> tuple[int, ...]:
        """The compiled batch sizes of a variant, ascending; empty where it runs at the exact row count."""
        return self._sizes[variant]

    def largest(self, variant: str) -> int | None:
        """The largest compiled size of a variant; None where it runs at the exact row count."""
        sizes = self._sizes[variant]
        return sizes[-1] if sizes else None

    def check_text(self, tensors: Tensors) -> None:
        """Raise `InvalidRequest` for executable inputs that are text and not UTF-8."""
        for name in self.text_inputs:
            for index, element in enumerate(tensors[name].flat):
                try:
                    element.decode()
                except (UnicodeDecodeError, AttributeError) as error:
                    fault = getattr(error, "reason", f"{type(element).__name__}, not bytes")
                    raise InvalidRequest(
                        f"input {name!r} of model {self.name!r} is text: element {index} is not UTF-8 ({fault})"
                    ) from None

    def rows_of(self, tensors: Tensors) -> int:
        """The one row count of the executable inputs; 1 for a model without a batch axis.

        Raises `InvalidRequest` when the inputs disagree, or when there are no rows. Where requests never merge, open
        axes that nobody declared a batch may differ and be empty; then it is the first that is not, or 1.
        """
        rows = 0
        for group in self._row_groups:
            extents = [tensors[each.name].shape[each.batch_axis or 0] for each in group]
            rows = rows or self._common(group, extents)
        return rows or 1

    def check_rows(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """How many rows a client sent by inputs of these shapes: those of the first that has a batch, 1 without any.

        Raises `InvalidRequest` when they disagree on the number of rows, or have none.
        """
        counts = [
            self._common(group, [shapes[each.name][each.batch_axis or 0] for each in group])
            for group in self._client_row_groups
        ]
        return counts[0] if counts else 1

    def _common(self, group: Sequence[TensorSpec], extents: Sequence[int]) -> int:
        """The one extent of inputs that have to have the same. Raises `InvalidRequest`."""
        rows = extents[0]
        for spec, actual in zip(group, extents, strict=True):
            if actual != rows:
                raise InvalidRequest(
                    f"input {spec.name!r} has batch size {actual}, which does not match the {rows} of input "
                    f"{group[0].name!r}"
                )
        if rows == 0 and (self.coalescible or not group[0].batch_name):
            raise InvalidRequest(
                f"input {group[0].name!r} has 0 rows: a request needs at least one", reason="empty_batch"
            )
        return rows

    def merge_key(self, tensors: Tensors, token: int) -> MergeKey:
        """The merge key of validated executable inputs; `token` (nonzero, unique) marks one that never merges.

        Raises `ShapeNotCompiled` when no variant takes the shapes.
        """
        if self._simple_key is not None:
            return self._simple_key
        variant = self.variant_of(tensors)
        if not self.coalescible:
            return MergeKey(variant, alone=token)
        constants = [tensors[spec.name] for spec in self.inputs if spec.batch_axis is None]
        if any(array.dtype.hasobject for array in constants) or sum(a.nbytes for a in constants) > MAX_CONSTANT_BYTES:
            return MergeKey(variant, alone=token)
        extents = tuple(
            extent
            for spec in self.inputs
            for axis, extent in enumerate(tensors[spec.name].shape)
            if axis != spec.batch_axis and spec.shape[axis] == -1
        )
        return MergeKey(variant, extents, b"".join(array.tobytes() for array in constants))

    def variant_of(self, tensors: Tensors) -> str:
        """The variant whose dims these tensors have. Raises `ShapeNotCompiled` naming inputs and shapes."""
        for variant in self.variants:
            if all(tensors[name].shape[axis] == extent for (name, axis), extent in variant.dims.items()):
                return variant.key
        names = dict.fromkeys(name for name, _ in self.variants[0].dims)
        given = " and ".join(f"{list(tensors[name].shape)} of input {name!r}" for name in names)
        compiled = ", ".join(" and ".join(self._compiled_shape(name, each) for name in names) for each in self.variants)
        raise ShapeNotCompiled(f"no compiled program for input shape {given}; compiled are {compiled}")

    def _compiled_shape(self, name: str, variant: Variant) -> str:
        """The shape of an input under one variant, the batch and the free axes as -1."""
        shape = self.inputs_by_name[name].shape
        return str([variant.dims.get((name, axis), extent) for axis, extent in enumerate(shape)])

    @cached_property
    def _row_groups(self) -> tuple[tuple[TensorSpec, ...], ...]:
        return self._grouped(self.inputs)

    @cached_property
    def _client_row_groups(self) -> tuple[tuple[TensorSpec, ...], ...]:
        return self._grouped(self.client_inputs)

    def _grouped(self, inputs: Sequence[TensorSpec]) -> tuple[tuple[TensorSpec, ...], ...]:
        """The inputs with a batch axis, those together whose rows are the same.

        Where requests never merge, an open axis that nobody declared is no batch but an extent of a name.
        """
        groups: dict[str, list[TensorSpec]] = {}
        for each in inputs:
            if each.batch_axis is not None:
                groups.setdefault("" if self.coalescible else each.batch_name, []).append(each)
        return tuple(map(tuple, groups.values()))

    @cached_property
    def _sizes(self) -> Mapping[str, tuple[int, ...]]:
        return {each.key: each.compiled_sizes if self.coalescible else () for each in self.variants}

    @cached_property
    def _simple_key(self) -> MergeKey | None:
        """The one key of a model with one variant, no free axes and no inputs without a batch axis."""
        simple = (
            self.coalescible
            and len(self.variants) == 1
            and not self.variants[0].dims
            and all(
                spec.batch_axis is not None
                and all(extent != -1 or axis == spec.batch_axis for axis, extent in enumerate(spec.shape))
                for spec in self.inputs
            )
        )
        return MergeKey(self.variants[0].key) if simple else None
