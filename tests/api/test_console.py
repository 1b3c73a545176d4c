"""The console's page and files: the same for everyone, told apart by version, and nothing but them."""

import json
import re
import subprocess
import tomllib
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path
from shutil import which

import pytest

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]

PAGE = "/console"


class Page(HTMLParser):
    """What a page refers to, and whether anything in it is inline."""

    def __init__(self, text):
        super().__init__()
        self.links, self.inline, self._open = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.links += [given[name] for name in ("src", "href") if name in given]
        self.inline += [name for name in given if name == "style" or name.startswith("on")]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.inline.append(tag)


async def ask(api, path, method="GET", token=None, **headers):
    given = {**headers, **({"Authorization": f"Bearer {token}"} if token else {})}
    async with api.client(given) as client:
        return await client.request(method, path)


async def links(api):
    """The addresses of the page's files."""
    return ["/" + link for link in Page((await ask(api, PAGE)).text).links]


async def imported(api, path):
    """The addresses of the modules that a file brings in."""
    names = re.findall(r'from "\./([^"]+)"', (await ask(api, path)).text)
    return [path.rpartition("/")[0] + "/" + name for name in names]


async def test_the_page_and_all_that_it_needs_are_served_without_a_token(make_api):
    api = make_api(api_token="the-api-token")
    page = await ask(api, PAGE)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    found = await links(api)
    for path in list(found):
        found += await imported(api, path) if path.endswith("app.js") else []
    types = {path.rpartition(".")[2]: (await ask(api, path)).headers["content-type"] for path in found}
    assert types == {
        "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"
    }  # fmt: skip
    assert [(await ask(api, path)).status_code for path in found] == [200] * len(found)
    assert {path.rpartition("/")[2] for path in found} >= {"d3.js", "charts.js", "history.js", "models.js", "panels.js"}


async def test_what_the_page_shows_asks_for_the_token(make_api):
    api = make_api(api_token="the-api-token")
    assert (await ask(api, "/status")).status_code == 401
    assert (await ask(api, "/status", token="another")).status_code == 403
    assert (await ask(api, "/status", token="the-api-token")).status_code == 200


async def test_the_page_is_the_same_with_and_without_models_tokens_and_queries(make_api, stage):
    plain = (await ask(make_api(), PAGE)).content
    stage.load("secretive")
    api = make_api(api_token="the-api-token")
    assert (await ask(api, PAGE, token="the-api-token")).content == plain
    assert (await ask(api, PAGE + "?token=the-api-token")).content == plain
    assert b"secretive" not in plain


async def test_nothing_is_inline_and_nothing_comes_from_elsewhere(api):
    page = await ask(api, PAGE)
    found = Page(page.text)
    assert (found.inline, [link for link in found.links if not link.startswith("console/")]) == ([], [])
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"


async def test_files_are_kept_for_good_and_the_page_is_asked_for_again(api):
    assert (await ask(api, PAGE)).headers["cache-control"] == "no-cache"
    for path in await links(api):
        assert (await ask(api, path)).headers["cache-control"] == "public, max-age=31536000, immutable"


@pytest.mark.parametrize("coding", ["identity", "gzip", "br, gzip;q=0.5", ""])
async def test_files_come_compressed_to_who_takes_that(api, coding):
    [library] = [path for path in await links(api) if path.endswith("d3.js")]
    answer = await ask(api, library, **{"Accept-Encoding": coding})
    packed = "gzip" in coding
    assert answer.headers.get("content-encoding") == ("gzip" if packed else None)
    assert answer.headers["vary"] == "Accept-Encoding"
    assert b"d3" in answer.content
    assert (int(answer.headers["content-length"]) < 100_000) is packed


async def test_a_head_request_is_told_the_length_and_nothing_more(api):
    for path in (PAGE, *await links(api)):
        got, head = await ask(api, path), await ask(api, path, "HEAD")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == got.headers["content-length"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_there_is_nothing_to_write(api, method):
    for path in (PAGE, (await links(api))[0]):
        answer = await ask(api, path, method)
        assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")


@pytest.mark.parametrize(
    "name",
    [
        "absent.js", "__init__.py", "console.html", "", "..%2F__init__.py", "%2e%2e%2fapp.py", "..%5Capp.py",
        "....//access.py",
        "%2Fetc%2Fpasswd", "/etc/passwd", "app.js/", "app.js%00", "APP.JS",
    ],
)  # fmt: skip
async def test_no_other_file_is_served(api, name):
    [script] = [path for path in await links(api) if path.endswith("app.js")]
    answer = await ask(api, script.removesuffix("app.js") + name)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_every_file_of_the_console_is_installed_and_served(api):
    """An editable installation would hide a file that no wheel holds."""
    folder = ROOT / "app" / "api" / "console"
    found = {path.name for path in folder.iterdir() if path.is_file() and path.suffix != ".py"}
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = setuptools["package-data"]["app.api.console"]
    assert [name for name in found if not any(fnmatch(name, pattern) for pattern in patterns)] == []
    [script] = [path for path in await links(api) if path.endswith("app.js")]
    served = [name for name in found if (await ask(api, script.replace("app.js", name))).status_code == 200]
    assert found - set(served) == {"console.html"}


async def test_a_file_of_another_version_is_not_mistaken_for_this_one(api):
    [script] = [path for path in await links(api) if path.endswith("app.js")]
    version = script.split("/")[2]
    assert (await ask(api, script.replace(version, "0" * len(version)))).status_code == 404


@pytest.mark.skipif(which("node") is None, reason="runs a script of the page")
@pytest.mark.parametrize(
    ("told", "name", "seen"),
    [
        ({"queue_depth": 1}, "w1", {"queue_depth": 1}),
        ({"workers": [{"name": "w0", "status": None}, {"name": "w1", "status": {"alive": True}}]}, "",
         {"alive": True, "worker": "w1 of #w0 #w1 · "}),
        ({"workers": [{"name": "w0", "status": {"alive": True}}, {"name": "w1", "status": {"alive": False}}]}, "w1",
         {"alive": False, "worker": "w1 of #w0 #w1 · "}),
        ({"workers": [{"name": "w0", "status": None}]}, "w0", "worker w0 does not answer"),
    ],
)  # fmt: skip
def test_of_several_workers_the_page_shows_one(tmp_path, told, name, seen):
    """Their node answers for all of them, and its status has no models."""
    module = tmp_path / "history.mjs"
    module.write_text((ROOT / "app" / "api" / "console" / "history.js").read_text())
    script = (
        f"import {{ shown }} from {json.dumps(str(module))};"
        f"try {{ console.log(JSON.stringify(shown({json.dumps(told)}, {json.dumps(name)}))) }}"
        "catch (error) { console.log(JSON.stringify(error.message)) }"
    )
    command = ["node", "--input-type=module", "--eval", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == seen


async def test_the_page_works_under_the_prefix_of_a_proxy(api):
    assert (await ask(api, "/console/")).headers["location"] == "../console"
    async with api.client(root_path="/serving") as client:
        page = await client.get("/serving/console")
        assert page.status_code == 200
        for link in Page(page.text).links:
            assert (await client.get("/serving/" + link)).status_code == 200


async def test_the_documentation_tells_of_the_page_and_not_of_its_files(api):
    paths = (await api.get("/openapi.json")).json()["paths"]
    assert [path for path in paths if "console" in path] == ["/console"]
