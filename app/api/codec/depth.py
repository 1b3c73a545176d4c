"""How deep the JSON of a request may nest."""

from typing import Any

from app.domain.errors import InvalidRequest

MAX_DEPTH = 100


def check_depth(item: dict[str, Any], known: tuple[str, ...], depth: int) -> None:
    """Refuse members of `item` that nest beyond `MAX_DEPTH`, `item` being itself at `depth`.

    The members in `known` are not walked: what reads them refuses the first level too many. So this costs nothing
    for a request without members of the client's own invention, however large its data.
    """
    level: list[Any] = [value for key, value in item.items() if key not in known]
    while containers := [value for value in level if isinstance(value, dict | list)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise InvalidRequest(f"the JSON part of the request nests deeper than {MAX_DEPTH}")
        level = [inner for each in containers for inner in (each.values() if isinstance(each, dict) else each)]
