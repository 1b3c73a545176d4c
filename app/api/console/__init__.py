"""The console: one page that draws `/status` as it moves. It is the same for everyone and holds no figures.

A page load carries no bearer token, so the page and its files are served to anyone; what they show they ask `/status`
for, with the token that the reader has typed in.
"""

import gzip
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

_OWN = ("console.css", "icon.svg", "app.js", "charts.js", "format.js", "history.js", "models.js", "panels.js")

#: Package and path of the one library. The file is read, the package never imported.
_LIBRARY = ("XStatic-D3", "xstatic/pkg/d3/data/d3.js")

_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "html": "text/html"}

#: Nothing is fetched from elsewhere, nothing inline is run, and no other page may frame this one.
POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"

_HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Vary": "Accept-Encoding"}

_FOREVER = "public, max-age=31536000, immutable"

_METHODS = ["GET", "HEAD"]


@dataclass(frozen=True, slots=True)
class _Asset:
    """One file, as it is and compressed."""

    content: bytes
    packed: bytes
    media_type: str

    def answer(self, request: Request, headers: dict[str, str]) -> Response:
        """The file, in the shorter form where the client takes it; Starlette leaves the body out for HEAD."""
        told = {**_HEADERS, **headers}
        coding = {each.partition(";")[0].strip() for each in request.headers.get("accept-encoding", "").split(",")}
        if "gzip" in coding:
            return Response(self.packed, headers={**told, "Content-Encoding": "gzip"}, media_type=self.media_type)
        return Response(self.content, headers=told, media_type=self.media_type)


def _asset(name: str, content: bytes) -> _Asset:
    return _Asset(content, gzip.compress(content, mtime=0), _TYPES[name.rpartition(".")[2]])


def _read(names: Iterable[str]) -> dict[str, bytes]:
    folder = files(__name__)
    return {name: (folder / name).read_bytes() for name in names}


def router() -> APIRouter:
    """The routes of this module. Reads and compresses the files once: 30 ms."""
    package, path = _LIBRARY
    found = {**_read(_OWN), "d3.js": Path(str(distribution(package).locate_file(path))).read_bytes()}
    page = _read(["console.html"])["console.html"]
    version = sha256(b"".join([page, *found.values()])).hexdigest()[:16]
    assets = {name: _asset(name, content) for name, content in found.items()}
    html = _asset("console.html", page.replace(b"{version}", version.encode()))
    routes = APIRouter(tags=["console"])

    @routes.head("/console", include_in_schema=False)
    @routes.get("/console", summary="The console, a page for people", response_class=HTMLResponse)
    async def console(request: Request) -> Response:
        return html.answer(request, {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"})

    @routes.api_route("/console/", methods=_METHODS, include_in_schema=False)
    async def slash() -> Response:
        return RedirectResponse("../console", 308)  # relative, as every address in the page: a proxy may add a prefix

    @routes.api_route("/console/{asked}/{name}", methods=_METHODS, include_in_schema=False)
    async def asset(request: Request, asked: str, name: str) -> Response:
        if asked != version or name not in assets:
            raise HTTPException(404, "Not Found")
        return assets[name].answer(request, {"Cache-Control": _FOREVER})

    return routes
