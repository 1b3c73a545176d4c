"""Goodput against offered load, one panel per scenario, as a PNG."""

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from load_tests.simulate.scenarios import Scenario
from load_tests.simulate.tables import Result

_COLUMNS = 3
_INCHES = (6.0, 4.2)
_COLOURS = {"fair": "tab:blue", "fifo": "tab:orange", "edf": "tab:green"}
_VALUE, _OTHER = "tab:red", "tab:gray"
_STYLES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 4)))


def draw(path: Path, scenarios: Sequence[Scenario], results: Mapping[str, Sequence[Result]]) -> None:
    """Write the picture: a line per rule, coloured by discipline or as deciding by value, and a tick at its r99."""
    columns = min(_COLUMNS, len(scenarios))
    rows = ceil(len(scenarios) / columns)
    figure = Figure(figsize=(_INCHES[0] * columns, _INCHES[1] * rows + 1.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for panel, scenario in zip(panels, scenarios, strict=False):
        _panel(panel, scenario, results[scenario.name])
    for panel in panels[len(scenarios) :]:
        panel.set_axis_off()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=columns, fontsize="small")
    figure.savefig(path, format="png")


def _panel(panel: Axes, scenario: Scenario, results: Sequence[Result]) -> None:
    seen: dict[str, int] = {}
    for result in results:
        discipline = "value" if result.valued else result.rule.discipline
        place = seen[discipline] = seen.get(discipline, -1) + 1
        colour = _VALUE if result.valued else _COLOURS.get(discipline, _OTHER)
        offered = [outcome.arrived / outcome.seconds for outcome in result.loads.values()]
        goodput = [outcome.goodput for outcome in result.loads.values()]
        style = _STYLES[place % len(_STYLES)]
        panel.plot(offered, goodput, color=colour, linestyle=style, marker=".", label=result.rule.label)
        if result.r99 is not None:
            panel.plot([result.r99[0]], [0.0], color=colour, marker="|", markersize=18, clip_on=False)
    most = panel.get_xlim()[1]
    panel.plot([0.0, most], [0.0, most], color="0.8", zorder=0)
    panel.set_title(f"{scenario.name}: {scenario.title}", fontsize="small")
    panel.set_xlabel("offered, requests/s")
    panel.set_ylabel("answered in time, requests/s")
    panel.set_xlim(0.0, most)
    panel.set_ylim(bottom=0.0)
