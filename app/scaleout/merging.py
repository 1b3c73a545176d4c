"""Puts together what the workers say: metrics, statistics, and answers to commands that went to all. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from app.scaleout.fleet import Answer

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{)?(.*)", re.DOTALL)


def merged_metrics(texts: Mapping[str, str], places: Mapping[str, str]) -> Iterator[str]:
    """The families of all workers, each with its HELP and TYPE once, in pieces.

    `places` are the labels, such as `gpu="0",worker="w0"`, of those samples that do not say whose they are.
    """
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for worker, text in texts.items():
        family = ""
        for line in text.splitlines():
            if line.startswith("# "):
                family = _head(line, heads, family)
            elif line:
                samples.setdefault(family, []).append(_placed(line, places[worker]))
    for family, lines in samples.items():
        yield "\n".join([*heads.get(family, ()), *lines]) + "\n"


def _head(line: str, heads: dict[str, list[str]], family: str) -> str:
    """Note a HELP or TYPE line, once; the family that it begins."""
    _, kind, *rest = line.split(" ", 3)
    if kind not in ("HELP", "TYPE") or not rest:
        return family
    known = heads.setdefault(rest[0], [])
    if not any(each.startswith(f"# {kind} ") for each in known):
        known.append(line)
    return rest[0]


def _placed(line: str, place: str) -> str:
    found = _SAMPLE.match(line)
    if found is None or 'worker="' in line:
        return line
    name, brace, rest = found.groups()
    return f"{name}{{{place},{rest}" if brace and not rest.startswith("}") else f"{name}{{{place}}}{rest.lstrip('}')}"


def merged_statistics(answers: Sequence[Any]) -> dict[str, Any]:
    """Statistics of the V2 extension, added up by model: clients take differences of them."""
    models: dict[tuple[str, str], Any] = {}
    for answer in answers:
        for each in answer["model_stats"]:
            key = each["name"], each["version"]
            models[key] = _added(models[key], each) if key in models else each
    return {"model_stats": list(models.values())}


def _added(one: Any, other: Any, name: str = "") -> Any:
    """Numbers added, but for the later of two instants; batches by their size; what is no number as it is."""
    if isinstance(one, Mapping):
        return {key: _added(one[key], other[key], key) if key in one and key in other else (one | other)[key]
                for key in one | other}  # fmt: skip
    if isinstance(one, list):
        return _added_batches(one, other) if name == "batch_stats" else [*one, *other]
    if isinstance(one, int) and not isinstance(one, bool):
        return max(one, other) if name == "last_inference" else one if name == "batch_size" else one + other
    return one


def _added_batches(one: Sequence[Any], other: Sequence[Any]) -> list[Any]:
    sizes = {each["batch_size"]: each for each in one}
    for each in other:
        size = each["batch_size"]
        sizes[size] = _added(sizes[size], each) if size in sizes else each
    return [sizes[size] for size in sorted(sizes)]


def merged_answers(answers: Mapping[str, Answer]) -> tuple[int, bytes]:
    """Status and body for a command that went to all workers.

    Where all did it: what each of them said, or nothing where none said anything. Else the first failure, by name.
    """
    told = {name: answer.json() for name, answer in answers.items()}
    failed = {name: answer for name, answer in answers.items() if not answer.ok}
    if failed:
        name, answer = next(iter(failed.items()))
        said = told[name] if isinstance(told[name], Mapping) else {}
        message = f"{name}: {said.get('error') or answer.text or f'status {answer.status}'}"
        done = [each for each in answers if each not in failed]
        if done:
            message += f" (done by {', '.join(done)})"
        body = {"error": message, "code": said.get("code", "worker_unavailable"), "workers": told}
        return answer.status or 503, orjson.dumps(body)
    if all(each is None for each in told.values()):
        return 200, b""
    return 200, orjson.dumps({"workers": told})
