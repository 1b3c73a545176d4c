"""How a refused value reads in an error message: on one line, short, and never the client's data at length."""

from collections.abc import Iterable

_LONGEST = 60


def show(value: object) -> str:
    """One JSON value for a message: a scalar as it is (cut at 60 characters), a container by its kind only."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return repr(value if len(value) <= _LONGEST else value[:_LONGEST] + "…")
        case list():
            return f"an array of {len(value)}"
        case dict():
            return "an object"
        case _:
            return repr(value)


def show_shape(shape: Iterable[int]) -> str:
    """A shape the way the wire writes it: `[-1,3]`."""
    return f"[{','.join(map(str, shape))}]"
