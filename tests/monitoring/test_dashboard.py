"""What the dashboard asks for is there."""

import json
import re
from pathlib import Path

import pytest

from app.api.metrics import COUNTERS, GAUGES, HISTOGRAMS, LABELLED, NODE

MONITORING = Path(__file__).parents[2] / "load_tests" / "monitoring"

DASHBOARD = json.loads((MONITORING / "grafana.json").read_text(encoding="utf-8"))

EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]

SERIES = {
    "worker_info",
    *COUNTERS,
    *GAUGES,
    *LABELLED,
    *NODE,
    *(f"{name}_{suffix}" for name in HISTOGRAMS for suffix in ("bucket", "sum", "count")),
}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_panel_asks_only_for_series_that_are_exposed(expression):
    named = set(re.findall(r"\bworker_\w+", expression))
    assert named <= SERIES
    assert named or "http_requests_total" in expression


def test_every_series_is_shown_but_those_that_only_say_how_the_server_is_set():
    shown = {name for expression in EXPRESSIONS for name in re.findall(r"\bworker_\w+", expression)}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    assert {*COUNTERS, *GAUGES, *LABELLED, *NODE, *HISTOGRAMS} - families == {
        "worker_dispatch_total", "worker_fallbacks_total", "worker_model_max_batch_size", "worker_model_provider",
        "worker_model_weight_bytes", "worker_requests_served_total",
    }  # fmt: skip


def test_panels_do_not_overlap_and_have_ids_of_their_own():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert all(0 <= x < 24 for x, _ in cells)
