"""The console in a real browser: over a real server with traffic, and over servers in every state that there is.

Needs Debian's chromium and chromium-driver. `CONSOLE_PICTURES=<folder>` keeps pictures of what was seen.
"""

import json
import os
import re
from pathlib import Path

import httpx
import numpy as np
import pytest

from app.api import console
from app.runtime.registry import RESTING
from tests.console.browser import program
from tests.console.conftest import model
from tests.e2e.conftest import BUNDLES, running

pytestmark = pytest.mark.clients

CHARTS = ("share", "queue", "rate", "wait")

LIVE = "document.body.dataset.link === 'live'"

ROWS = "[...document.querySelectorAll('#models tbody tr td:first-child button span')].map((each) => each.textContent)"

#: The figure of the tile with this label.
TILE = (
    "[...document.querySelectorAll('.tile')].find((each) => each.firstChild.textContent === %r).children[1].textContent"
)

DRAWN = "document.querySelectorAll(`#${values[0]} .lines path[d^=M]`).length >= values[1]"

PHONE = {"width": 375, "height": 800}


def keep(page, name):
    """A picture, where somebody wants to look."""
    if folder := os.environ.get("CONSOLE_PICTURES"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.picture(Path(folder) / f"{name}.png")


def names(page):
    return page.run(f"return {ROWS}")


def contrast(page, selector):
    """Between the text of an element and what is behind it, as WCAG counts."""
    script = """
        const channels = (text) => text.match(/[\\d.]+/g).map(Number);
        let node = document.querySelector(arguments[0]);
        const ink = channels(getComputedStyle(node).color);
        while (getComputedStyle(node).backgroundColor === "rgba(0, 0, 0, 0)") node = node.parentElement;
        return [ink, channels(getComputedStyle(node).backgroundColor)];
    """

    def luminance(colour):
        parts = np.array(colour[:3]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    light, dark = sorted((luminance(colour) for colour in page.run(script, selector)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A real one behind a token."""
    settings = {"MODELS_INCLUDE": "tabular,filetype", "ENDPOINTS_API_TOKEN": "the-api-token"}
    with running(tmp_path_factory.mktemp("cache"), **settings) as process:
        yield process


@pytest.fixture
def ask(server):
    """Send one inference request to `tabular`."""
    row = np.load(BUNDLES / "tabular" / "sample.npz")["X"][:1].tolist()
    body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 30], "data": row}]}
    headers = {"Authorization": "Bearer the-api-token"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=60, trust_env=False) as client:
        yield lambda: client.post("/v2/models/tabular/infer", json=body).raise_for_status()


def test_a_server_behind_a_token_is_watched_at_work(page, server, ask):
    page.requested(), page.complaints()
    page.open(server.url + "/console")
    page.wait("!document.querySelector('#door').hidden")
    assert page.text("#models tbody") == ""
    page.run("document.querySelector('#token').value = 'wrong'; document.querySelector('#door button').click()")
    page.wait("document.querySelector('#door-text').textContent.includes('refused')")
    page.complaints()  # that the token was asked for is one
    page.run("document.querySelector('#token').value = 'the-api-token'; document.querySelector('#door button').click()")
    page.wait(LIVE)
    assert sorted(names(page)) == ["filetype", "tabular"]
    cells = "[...document.querySelectorAll('#models tbody tr')].find((each) => each.textContent.includes('tabular'))"
    answered = f"{cells}.querySelector('[data-label=Answered]').textContent"
    before = int(page.run(f"return {answered}"))
    for _ in range(20):
        ask()
    page.wait(f"{answered} === values[0]", str(before + 20))
    page.wait(f"{cells}.querySelector('[data-label^=Share]').textContent.startsWith('100 %')")
    page.wait(DRAWN, "rate", 1)
    for chart in CHARTS:
        page.wait(DRAWN, chart, 1)
    page.wait("[...document.querySelectorAll('#batches rect')].some((each) => +each.getAttribute('height') > 50)")
    assert page.complaints() == []
    keep(page, "real")
    asked = [url for url in page.requested() if not url.startswith(("chrome", "data:", "about:"))]
    assert [url for url in asked if not url.startswith(server.url + "/")] == []
    assert [url for url in asked if "token" in url.partition("/console")[2]] == []
    assert sum(url.endswith("/status") for url in asked) > 3
    assert page.run("return location.href") == server.url + "/console"
    page.open(server.url + "/console")  # the tab remembers
    page.wait(LIVE)
    page.run("document.querySelector('#forget').click()")
    page.wait("!document.querySelector('#door').hidden")


def test_a_server_that_does_nothing_says_so(page, stub):
    page.complaints()
    stub.models = [model("one"), model("two", dispatches=0)]
    page.open(stub.url + "/console")
    page.wait(LIVE)
    page.wait(DRAWN, "share", 4)
    assert page.text("#batches .empty.shown") == "Nothing was executed yet."
    assert page.text("#drops .empty.shown") == "Nothing was dropped."
    assert page.run(f"return {TILE % 'Queued'}") == "0"
    assert page.complaints() == []
    keep(page, "idle")


def test_a_server_without_models_is_shown_too(page, stub):
    page.complaints()
    page.open(stub.url + "/console")
    page.wait(LIVE)
    assert page.text("#scope-text") == "No models yet."
    assert page.complaints() == []


def test_models_come_and_go_and_are_told_with_their_reasons(page, stub):
    stub.models = [model("stays", share_actual=0.7, share_target=0.5), model("goes", share_actual=0.3)]
    page.open(stub.url + "/console")
    page.wait(f"{ROWS}.length === 2")
    broken = model("broken", "UNAVAILABLE", reason="model.onnx: not a model")
    stub.models = [stub.models[0], model("comes", share_actual=0.2), broken]
    stub.node = {"problems": {"/models/gone": "no such directory"}}
    page.wait(f"{ROWS}.join() === 'stays,comes,broken'")
    assert page.text("#models tr.unavailable td.why") == "model.onnx: not a model"
    assert "/models/gone: no such directory" in page.text("#problems")
    assert page.run(f"return {TILE % 'Models ready'}") == "2 / 3"


def test_what_an_operator_unloaded_is_no_problem(page, stub):
    stub.models = [model("gone", "UNAVAILABLE", "unloaded"), model("idle", "UNAVAILABLE", "not loaded")]
    page.open(stub.url + "/console")
    page.wait(LIVE)
    assert page.run("return document.querySelector('#problems').hidden")
    assert page.text("#models td.why") == "unloaded"
    assert page.run("return document.querySelectorAll('#models tbody tr:first-child td:not([hidden])').length") == 3
    stub.models[0]["reason"] = "hooks.py: " + "this is a long story " * 20
    page.wait("!document.querySelector('#problems').hidden")
    assert page.text("#problems").startswith("gone: hooks.py")
    told, row = [page.run(f"return document.querySelector('#models {each}').clientWidth") for each in ("td.why", "tr")]
    assert told > row / 2
    stub.models = [model("gone", ok=7), model("idle")]
    page.wait("!document.querySelector('td.why')")
    assert page.run("return document.querySelector('[data-label=Answered]').hidden") is False


def test_the_console_knows_which_reasons_are_no_faults():
    [written] = re.findall(r"const RESTING = (\[.*?\]);", (Path(console.__file__).parent / "panels.js").read_text())
    assert json.loads(written) == list(RESTING)


def test_a_server_that_drains_goes_and_comes_again(page, away):
    away.models = [model("m", ok=5)]
    with away.serving():
        page.open(away.url + "/console")
        page.wait(LIVE)
        away.ready = False
        page.wait("document.querySelector('#link-text').textContent.startsWith('Draining')")
    page.wait("document.body.dataset.link === 'gone'")
    assert "No answer since" in page.text("#link-text")
    assert names(page) == ["m"]  # the last figures stay
    keep(page, "gone")
    away.ready, away.models = True, [model("n")]
    with away.serving():
        page.wait(LIVE)
        page.wait(f"{ROWS}.join() === 'n'")
        away.node = {"alive": False}
        page.wait("document.body.dataset.link === 'dead'")
        away.node = {}
        page.wait(LIVE)


def test_a_server_that_starts_says_what_it_waits_for(page, stub):
    stub.ready, stub.models = False, [model("slow", "LOADING"), model("quick")]
    page.open(stub.url + "/console")
    page.wait("document.querySelector('#link-text').textContent === 'Starting: 1 models are loading'")


def many(count):
    return [
        model(f"model-{at:04}", share_actual=at / 1e6, queue_depth=at % 7, ok=at, weight_bytes=at * 1000)
        for at in range(count)
    ]


def test_a_thousand_models_are_searched_sorted_and_bounded(page, stub):
    page.complaints()
    stub.models = many(1000)
    page.open(stub.url + "/console")
    page.wait(LIVE)
    assert (page.text("#count"), len(names(page))) == ("25 of 1000 models", 25)
    assert "6 busiest of 1000" in page.text("#scope-text")
    page.wait(DRAWN, "queue", 7)  # and all together
    page.run("document.querySelector('#more').click()")
    assert len(names(page)) == 75
    page.run("const sort = document.querySelector('#sort'); sort.value = 5; sort.dispatchEvent(new Event('change'))")
    assert names(page)[:2] == ["model-0999", "model-0998"]
    page.run("[...document.querySelectorAll('th button')][0].click()")
    assert names(page)[0] == "model-0000"
    page.run("const box = document.querySelector('#search'); box.value = '077'; box.dispatchEvent(new Event('input'))")
    assert len(names(page)) == 11
    assert page.text("#count").endswith("11 match")
    page.run("[...document.querySelectorAll('#models tbody button')][0].click()")
    assert page.text("#scope-text") == f"Charts of {names(page)[0]}."
    script = "const began = performance.now(); document.querySelector('#search').dispatchEvent(new Event('input'));"
    assert page.run(script + "return performance.now() - began") < 2000  # of a frozen page it would be more
    assert page.complaints() == []
    keep(page, "many")


def test_an_open_page_does_not_grow(page, stub):
    """Ten thousand answers in a row, of models that come and go."""
    stub.models = [model("m")]
    page.open(stub.url + "/console")
    page.wait(LIVE)
    script = """
        const file = document.querySelector("script[type=module]").src.replace("app", "history");
        const { History, flatten, SAMPLES } = await import(file);
        const history = new History();
        const told = arguments[0];
        const sizes = [];
        for (let at = 0; at < 10000; at += 1) {
          const models = [{ ...told, name: `m${at % 5}` }, { ...told, name: `passing-${at}` }];
          history.add({ queue_depth: at, device_busy_seconds: at }, flatten(models), at * 1000, 1000);
          if (at % 1000 !== 999) continue;
          sizes.push([history.names, history.times().length, history.values("m1", "queue").length]);
        }
        arguments[1]([SAMPLES, sizes, [...history.values(null, "queue").slice(-2)], history.times().at(-1)]);
    """
    script = f"(async function () {{ {script} }}).apply(null, arguments)"
    samples, sizes, last, time = page.post("/execute/async", script=script, args=[stub.models[0]])
    assert sizes[0] == sizes[-1] == [samples + 6, samples, samples]
    assert (last, time) == ([9998, 9999], 9_999_000)
    nodes = "return document.querySelectorAll('*').length"
    before, asked = page.run(nodes), stub.asked
    page.wait(
        f"performance.getEntriesByType('resource').filter((each) => each.name.endsWith('/status')).length > {asked + 2}"
    )
    assert abs(page.run(nodes) - before) < 10


def test_a_budget_drops_and_what_is_off_the_device_are_told(page, stub):
    stub.models = [
        model("here", weight_bytes=3_000_000, weight_loads=4, dropped={"queue_full": 30, "expired_queue": 10}),
        model("away", weight_bytes=2_000_000, resident=False, weight_evicts=2, batch_rows={"1": 4, "8": 2}),
        model("disk", weight_bytes=1_000_000, resident=False, residency_floor="unpinned"),
    ]
    stub.node = {
        "weight_pool_bytes": 4_000_000,
        "resident_weight_bytes": 3_000_000,
        "device_memory_limit_bytes": 10_000_000,
    }
    page.open(stub.url + "/console")
    page.wait(LIVE)
    weights, drops = page.text("#weights"), page.text("#drops")
    for text in ("3 MB of 4 MB", "on device (floor system)", "host memory (floor system)", "disk (floor unpinned)"):
        assert text in weights
    assert "1 of 3 shown models resident" in weights
    assert "Process memory5 MBweights 3 MB of 4 MB" in page.text("#tiles")
    assert page.run("return document.querySelector('.tile:nth-child(3) .meter > span').style.width") == "75%"
    assert drops.index("queue full30") < drops.index("deadline passed in the queue10")
    width = "return [...document.querySelectorAll('#drops .track > span')].map((each) => each.style.width)"
    assert page.run(width)[0] == "100%"
    assert page.run("return document.querySelectorAll('#batches rect').length") == 2


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, {"width": 1280, "height": 900}], ids=["phone", "desktop"])
def test_it_can_be_read_on_a_phone_and_in_the_dark(page, stub, size, dark):
    stub.models = [
        model("a-model-with-a-very-long-name-" * 3, share_actual=0.5, share_target=0.3, queue_depth=3, wait_p99=0.2),
        model("broken", "UNAVAILABLE", reason="/a/very/long/path/without/any/space" * 4),
        model("loading", "LOADING"),
    ]
    page.open(stub.url + "/console", **size, dark=dark)
    page.wait(LIVE)
    assert page.run("return document.documentElement.scrollWidth") == size["width"]
    edges = "return [...document.querySelectorAll('main *')].map((each) => each.getBoundingClientRect().right)"
    assert max(page.run(edges)) <= size["width"]
    red, green, blue = page.run("return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (max(red, green, blue) < 60) is dark
    read = ("figcaption", "figcaption small", ".tile .label", "#link-text", "tr.unavailable td:nth-child(2)",
            "tr.ready td:nth-child(2)", "tr.loading td:nth-child(2)", "#problems p", "#count", "td.why")  # fmt: skip
    assert {each: ratio for each in read if (ratio := contrast(page, each)) < 4.5} == {}
    keep(page, f"{'phone' if size is PHONE else 'desktop'}-{'dark' if dark else 'light'}")


def test_a_pointer_on_a_chart_tells_of_that_moment_in_all(page, stub):
    stub.models = [model("m", queue_depth=4)]
    page.open(stub.url + "/console")
    page.wait(DRAWN, "queue", 1)
    box = page.run("const { x, y } = document.querySelector('#queue svg').getBoundingClientRect(); return [x, y]")
    page.devtools("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + 60, y=box[1] + 50)
    page.wait("document.querySelector('#wait').dataset.when !== ''")
    assert page.run("return document.querySelectorAll('.cursor line').length") == len(CHARTS)
    page.devtools("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    page.wait("document.querySelector('#wait').dataset.when === ''")


def test_without_a_browser_the_test_fails_and_says_what_is_missing(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium chromium-driver"):
        program("chromedriver")
