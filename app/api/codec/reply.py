"""An inference response, from tensors to buffers."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from app.api.codec.binary import pack
from app.api.codec.classification import classify
from app.api.codec.json import write_data
from app.api.codec.parameters import OutputRequest
from app.api.codec.ranges import write_range
from app.api.codec.recent import Recent
from app.api.codec.request import Decoded
from app.api.exchange import Buffer
from app.domain.model import ModelSpec
from app.domain.tensors import Array, Tensors

#: Header lines to add to a reply: names in lower case.
Headers = tuple[tuple[bytes, bytes], ...]

#: Replies below this many tensor bytes become one buffer: a copy is cheaper than one more write.
_JOIN_BELOW = 16_384

_JSON: Headers = ((b"content-type", b"application/json"),)


#: A response: headers to add (length of the body excluded) and the buffers to send one after the other.
Encoded = tuple[Headers, list[Buffer]]


class _Head(NamedTuple):
    """The JSON part of an all-binary response without an id, for tensors of given shapes, and whether they are few."""

    headers: Headers
    json: bytes
    joins: bool


class Encoder:
    """Encodes responses and remembers the heads of all-binary ones by their shapes. Any thread."""

    def __init__(self, remembered: int = 512) -> None:
        self._heads: Recent[tuple[object, ...], _Head] = Recent(remembered)

    def encode(
        self,
        request: Decoded,
        model_id: str,
        spec: ModelSpec,
        outputs: Tensors,
        parameters: Mapping[str, Any] | None = None,
    ) -> Encoded:
        """Encode the outputs that `request` asks for, in its order; all that `spec` declares where it names none.

        `spec` is that of the model that answered, `model_id` stands for it in what is remembered. `outputs` are
        client-facing tensors of the declared dtypes, in any memory order; `parameters` go into the response. Raises
        `InvalidRequest` for BYTES that JSON cannot carry, for a classification of too many elements, and for shared
        memory that does not take its output.
        """
        wanted = request.outputs
        arrays: list[Array] = []
        shapes: list[tuple[int, ...]] = []
        for output in wanted or spec.client_outputs:
            array = outputs[output.name]
            arrays.append(array)
            shapes.append(array.shape)
        # The name is part of the key: a model can be renamed in place.
        key = (model_id, spec.name, wanted, request.binary_default, *shapes)
        head = None if parameters else self._heads.get(key)
        if head is None:
            if wanted is None:
                wanted = tuple([OutputRequest(each.name, request.binary_default) for each in spec.client_outputs])
            document: dict[str, Any] = {"model_name": spec.name, "model_version": spec.version}
            if parameters:
                document["parameters"] = dict(parameters)
            if not _plain(wanted, spec):
                return _encode_any(document, request, outputs, wanted, spec)
            head = _binary_head(document, wanted, arrays, spec)
            if not parameters:
                self._heads.put(key, head)
        return _send(head, arrays, request.id)


def _plain(wanted: tuple[OutputRequest, ...], spec: ModelSpec) -> bool:
    """Whether the head depends on nothing but shapes: all binary, all of fixed-size elements."""
    return all(
        output.binary and not output.classification and spec.client_outputs_by_name[output.name].datatype != "BYTES"
        for output in wanted
    )


def _binary_head(
    document: dict[str, Any], wanted: tuple[OutputRequest, ...], arrays: list[Array], spec: ModelSpec
) -> _Head:
    document["outputs"] = [
        {
            "name": output.name,
            "datatype": spec.client_outputs_by_name[output.name].datatype,
            "shape": array.shape,
            "parameters": {"binary_data_size": array.nbytes},
        }
        for output, array in zip(wanted, arrays, strict=True)
    ]
    # A copy, since this may be remembered: what orjson returns sits in 4 kB, however short it is.
    json = bytes(memoryview(orjson.dumps(document)))
    nbytes = sum([array.nbytes for array in arrays])
    return _Head(_headers(len(json), nbytes > 0), json, nbytes < _JOIN_BELOW)


def _send(head: _Head, arrays: list[Array], identifier: str | None) -> Encoded:
    headers, json, joins = head
    if identifier:
        json = b'{"id":%b,%b' % (orjson.dumps(identifier), json[1:])
        headers = _headers(len(json), len(headers) > 1)
    if not joins:
        return headers, [json, *[pack(array) for array in arrays if array.size]]
    for array in arrays:
        json += array.tobytes()
    return headers, [json]


def _encode_any(
    document: dict[str, Any],
    request: Decoded,
    outputs: Tensors,
    wanted: tuple[OutputRequest, ...],
    spec: ModelSpec,
) -> Encoded:
    """A response with JSON, BYTES, classification or shared memory in it: built afresh each time."""
    members: list[dict[str, Any]] = []
    blobs: list[Buffer] = []
    for name, binary, classes, shared in wanted:
        declared = spec.client_outputs_by_name[name]
        array, datatype = outputs[name], declared.datatype
        if classes:
            array, datatype = classify(array, declared, classes, (spec.labels or {}).get(name, ())), "BYTES"
        member: dict[str, Any] = {"name": name, "datatype": datatype, "shape": array.shape}
        if shared is not None:
            assert request.regions is not None
            member["parameters"] = write_range(request.regions, shared, name, pack(array))
        elif binary:
            blob = pack(array)
            blobs.append(blob)
            member["parameters"] = {"binary_data_size": len(blob)}
        else:
            member["data"] = write_data(array, name, datatype)
        members.append(member)
    identity = {"id": request.id} if request.id else {}
    json = orjson.dumps({**identity, **document, "outputs": members}, option=orjson.OPT_SERIALIZE_NUMPY)
    blobs = [blob for blob in blobs if len(blob)]
    headers = _headers(len(json), bool(blobs))
    if sum(map(len, blobs)) < _JOIN_BELOW:
        return headers, [b"".join([json, *blobs])]
    return headers, [json, *blobs]


def _headers(json_length: int, binary: bool) -> Headers:
    """Without a single binary byte the response is plain JSON, also where binary was asked for."""
    if not binary:
        return _JSON
    return (
        (b"content-type", b"application/octet-stream"),
        (b"inference-header-content-length", b"%d" % json_length),
    )
