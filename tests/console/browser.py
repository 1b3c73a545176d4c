"""A headless Chromium, driven over the WebDriver protocol by plain HTTP: Debian's packages are all that it takes."""

import base64
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import free_port

SWITCHES = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
]  # fmt: skip

#: Seconds for anything the page is waited for.
PATIENCE = 30


def program(*names):
    """The first of these programs that is there."""
    for name in names:
        if found := shutil.which(name):
            return found
    return pytest.fail(f"{names[0]} is not there: apt-get install chromium chromium-driver")


class Browser:
    """One tab, with a profile of its own."""

    def __init__(self, client: httpx.Client, session: str) -> None:
        self._client = client
        self._session = session

    def _call(self, method, path, body=None):
        answer = self._client.request(method, f"/session/{self._session}{path}", json=body, timeout=2 * PATIENCE)
        value = answer.json()["value"]
        assert answer.is_success, value
        return value

    def post(self, path, **body):
        """One command of the protocol."""
        return self._call("POST", path, body)

    def devtools(self, command, **params):
        """One command of Chromium's own."""
        return self.post("/goog/cdp/execute", cmd=command, params=params)

    def open(self, url, *, width=1280, height=900, dark=False):
        """Load a page in a window of so many CSS pixels."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])
        self.post("/url", url=url)

    def run(self, script, *arguments):
        """The value of a JavaScript function body in the page."""
        return self.post("/execute/sync", script=script, args=list(arguments))

    def text(self, selector):
        """The text of the first element."""
        return self.run("return document.querySelector(arguments[0])?.textContent ?? null", selector)

    def wait(self, condition, *arguments):
        """Until an expression holds in the page, and its value: the page tells, nobody asks twice."""
        script = """
            const [condition, patience, values, done] = arguments;
            const holds = new Function("values", `return ${condition}`);
            const began = performance.now();
            const look = () => {
              const found = holds(values);
              if (found || performance.now() - began > patience) return done(found || null);
              setTimeout(look, 50);
            };
            look();
        """
        self._call("POST", "/timeouts", {"script": PATIENCE * 1000 + 5000})
        found = self.post("/execute/async", script=script, args=[condition, PATIENCE * 1000, list(arguments)])
        assert found, f"never: {condition} {arguments}; page: {self.text('body')!r:.2000}"
        return found

    def complaints(self):
        """What the page wrote to its console, or broke, since the last look."""
        return [f"{each['level']}: {each['message']}" for each in self.post("/se/log", type="browser")]

    def requested(self):
        """Every address that the page asked for since the last look."""
        events = [json.loads(each["message"])["message"] for each in self.post("/se/log", type="performance")]
        return [each["params"]["request"]["url"] for each in events if each["method"] == "Network.requestWillBeSent"]

    def picture(self, path):
        """Write the whole page as PNG."""
        shot = self.devtools("Page.captureScreenshot", captureBeyondViewport=True)
        Path(path).write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A fresh Chromium whose profile and log are in `folder`."""
    port = free_port()
    command = [program("chromedriver"), f"--port={port}", f"--log-path={folder / 'driver.log'}"]
    options = {
        "binary": program("chromium", "chromium-browser", "google-chrome"),
        "args": [*SWITCHES, f"--user-data-dir={folder / 'profile'}"],
    }
    logs = {"browser": "ALL", "performance": "ALL"}
    wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logs}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            for line in process.stdout or ():
                if "started successfully" in line:
                    break
            transport = httpx.HTTPTransport(retries=3)
            with httpx.Client(
                base_url=f"http://127.0.0.1:{port}", transport=transport, timeout=60, trust_env=False
            ) as client:
                body = {"capabilities": {"alwaysMatch": wanted}}
                made = client.post("/session", json=body, timeout=2 * PATIENCE).json()["value"]
                assert "sessionId" in made, made
                yield Browser(client, made["sessionId"])
                client.delete(f"/session/{made['sessionId']}", timeout=PATIENCE)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
