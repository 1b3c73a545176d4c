"""`run`: a workload against a server, or against several settings of an own one in turn.

python -m load_tests run digits --vary max_batch_size=1,8,32 --loop
python -m load_tests run poisson --rate 2000 --vary discipline=fair,edf --vary max_wait_ms=0,2
python -m load_tests run my.yaml --url http://host:8000 --token …
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from load_tests.crew import usual_processes
from load_tests.figures import Run
from load_tests.fleet import bundles, parse_settings, servers, variables, variants
from load_tests.measure import digests, measure, requests_for, warm_up
from load_tests.processes import Server
from load_tests.raw_loop import loop_in_child
from load_tests.report import machine, progress, progress_bar, verdict
from load_tests.results import Variant, machine_facts, write
from load_tests.scenarios import WORKLOADS
from load_tests.tables import show
from load_tests.workload import Workload, changed, read

#: Where files go.
RESULTS = Path("load_tests/results")


@dataclass
class Comparison:
    """What is measured, and how often."""

    workload: Workload
    settings: Mapping[str, Mapping[str, Any]]
    rounds: int
    processes: int
    loop: bool = False
    token: str | None = None
    loops: list[dict[int, float]] = field(default_factory=list)

    def on_own(self) -> list[Variant]:
        """Against own servers, one for each variant."""
        models = list(self.workload.models)
        settings = {label: {**self.workload.settings, **own} for label, own in self.settings.items()}
        for own in settings.values():
            variables(own, models)  # a mistake is told before anything starts
        with tempfile.TemporaryDirectory() as folder:
            directory = bundles(Path(folder), self.workload.models)
            progress(f"starting {len(settings)} servers")
            with servers(directory, Path(folder, "cache"), models, settings) as running:
                return self.alternate(running, directory / models[0] / "model.onnx" if self.loop else None)

    def on(self, url: str) -> list[Variant]:
        """Against one that runs already."""
        return self.alternate({"default": Server(url.rstrip("/"), 0, token=self.token)}, None)

    def alternate(self, running: Mapping[str, Server], model_file: Path | None) -> list[Variant]:
        """A B A B …: every variant once a round."""
        names = [call.model for call in self.workload.calls]
        requests = {label: requests_for(server, self.workload) for label, server in running.items()}
        for label, server in running.items():
            progress(f"{label}: warming up")
            warm_up(self.workload, server, requests[label], self.processes)
        runs: dict[str, list[Run]] = {label: [] for label in running}
        total, done = self.rounds * len(running) * self.workload.seconds, 0.0
        with progress_bar(total) as bar:
            for turn in range(self.rounds):
                if model_file is not None:
                    bar(f"round {turn + 1}: the raw loop", done)
                    self.loops.append(loop_in_child(model_file, _sizes(running), self.workload.seconds))
                for label, server in running.items():

                    def tick(seconds: float, label: str = label, done: float = done, turn: int = turn) -> None:
                        bar(f"round {turn + 1}: {label}", done + seconds)

                    runs[label].append(
                        measure(self.workload, server, requests[label], self.processes, tick, round_=turn)
                    )
                    done += self.workload.seconds
        return [
            Variant(label, self.settings.get(label, {}), digests(server, names), runs[label])
            for label, server in running.items()
        ]


def _sizes(running: Mapping[str, Server]) -> list[int]:
    """The compiled sizes of the first model, for which a loop is to try the same."""
    serving = next(iter(running.values())).models()[0]["serving"]
    sizes = {int(size) for costs in serving["costs"].values() for size in costs}
    return sorted(sizes) or [1, 2, 4, 8, 16, 32]


def workload_of(options: argparse.Namespace) -> Workload:
    """The scenario that was named, with what else was said. Raises `ValueError`."""
    workload = _named(options.scenario)
    changes: dict[str, Any] = {
        name: value for name in ("seconds", "warmup_seconds", "seed") if (value := getattr(options, name)) is not None
    }
    arrivals = {
        name: value for name in ("kind", "rate", "cv", "connections") if (value := getattr(options, name)) is not None
    }
    if arrivals:
        changes["arrivals"] = _merged(workload, arrivals)
    call = {name: value for name in ("model", "rows", "deadline_ms") if (value := getattr(options, name)) is not None}
    if call:
        changes["calls"] = [{**each.model_dump(exclude_unset=True), **call} for each in workload.calls]
    if options.set:
        changes["settings"] = {**workload.settings, **parse_settings(" ".join(options.set))}
    return changed(workload, changes)


def _named(name: str) -> Workload:
    if name in WORKLOADS:
        return WORKLOADS[name]
    if name.endswith((".yaml", ".yml")):
        return read(Path(name))
    raise ValueError(f"{name!r} is neither a YAML file nor one of {', '.join(WORKLOADS)}")


def _merged(workload: Workload, arrivals: Mapping[str, Any]) -> dict[str, Any]:
    """The arrivals of a scenario with other options: a rate makes an open loop of a closed one."""
    before = workload.arrivals.model_dump(exclude_unset=True)
    if arrivals.get("kind") == "closed":
        before.pop("rate", None)
    elif "rate" in arrivals and before.get("kind", "closed") == "closed":
        before["kind"] = "poisson"
    return {**before, **arrivals}


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `run` understands."""
    add = parser.add_argument
    names = "; ".join([f"{each.name}: {each.description}" for each in WORKLOADS.values()])
    add("scenario", nargs="?", default="digits", help=f"a YAML file, or one of the ready ones (digits). {names}")
    add("--url", help="a server that runs already, instead of an own one")
    add("--token", help="the bearer token that it wants")
    add("--vary", action="append", default=[], metavar="SETTING=V,V", help="settings of an own server, side by side")
    add("--set", action="append", default=[], metavar="SETTING=V", help="a setting of all own servers")
    add("--loop", action="store_true", help="also ONNX Runtime in a loop, as the limit (one model)")
    add("--rounds", type=int, default=3, help="how often each is measured, in turn (3)")
    add("--seconds", type=float, help="length of one run")
    add("--warmup-seconds", type=float)
    add("--kind", choices=["closed", "steady", "poisson", "gamma", "bursts", "ramp", "surge"], help="of arrivals")
    add("--rate", type=float, help="requests per second of an open loop")
    add("--cv", type=float, help="of gamma arrivals: 1 is Poisson, more are clumps")
    add("--connections", type=int, help="busy ones of a closed loop; most of an open one")
    add("--model", help="every request asks this model")
    add("--rows", type=int, help="of every request")
    add("--deadline-ms", type=float, help="of every request")
    add("--seed", type=int)
    add("--processes", type=int, default=usual_processes(), help=f"of clients ({usual_processes()})")
    add("--out", type=Path, default=RESULTS, help=f"directory of the JSON file and the picture ({RESULTS})")
    add("--name", help="of these files (run_SCENARIO)")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, show and write; 1 where requests failed, 2 where there is nothing to measure."""
    parser = argparse.ArgumentParser(
        prog="python -m load_tests run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    options = parser.parse_args(argv)
    try:
        workload = workload_of(options)
        comparison = Comparison(
            workload, variants(options.vary), options.rounds, options.processes, options.loop, options.token
        )
        if options.url and (options.vary or options.loop or options.set):
            raise ValueError("--vary, --set and --loop need an own server")
        if options.loop and len(workload.models) > 1:
            raise ValueError("--loop wants one model")
        facts = machine_facts()
        print(machine())
        found = comparison.on(options.url) if options.url else comparison.on_own()
    except ValueError as error:
        print(f"run: {error}", file=sys.stderr)
        return 2
    return finish(workload, found, comparison.loops, facts, options.out / (options.name or f"run_{workload.name}"))


def finish(
    workload: Workload,
    found: Sequence[Variant],
    loops: Sequence[Mapping[int, float]],
    facts: Mapping[str, Any],
    path: Path,
) -> int:
    """Tables, files and the verdict."""
    show(found, workload, loops)
    write(path.with_suffix(".json"), workload, found, facts, loops)
    print(path.with_suffix(".json"))
    try:
        from load_tests.plots import draw
    except ModuleNotFoundError:
        print("no picture: matplotlib is missing (pip install '.[load]')")
    else:
        draw(path.with_suffix(".png"), workload, found, loops)
        print(path.with_suffix(".png"))
    errors = max(variant.middle("error_rate") for variant in found)
    requests = sum(run.due for variant in found for run in variant.runs)
    return verdict(not errors, f"{requests} requests, {errors:.2%} failed at the worst setting")


if __name__ == "__main__":
    sys.exit(main())
