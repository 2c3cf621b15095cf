"""The explorer's server: its routes, whom it answers, and how it is started."""

import ipaddress
import json
import re
import socket
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from deepmatching import __version__
from deepmatching.errors import DeepMatchingError
from deepmatching.explorer import page, payloads
from deepmatching.explorer.jobs import Busy, Runs
from deepmatching.explorer.page import exported_page
from deepmatching.explorer.pictures import MAX_UPLOAD_BYTES, SAMPLES, Pictures, Unknown
from deepmatching.explorer.results import Result, RunSettings, Traces
from deepmatching.network.inspection import Inspection

MAX_REQUEST_BYTES = 2**16  #: The largest request that is not a picture, in bytes.

#: Sent with every response. The page loads nothing from elsewhere and may not be framed.
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class TooLarge(DeepMatchingError):
    """A request that is too large to be read."""


_binary = partial(Response, media_type="application/octet-stream")  #: An answer that the page unpacks.


@dataclass(eq=False)
class Explorer:
    """The pictures, runs and models that the server knows, and its answers."""

    pictures: Pictures
    runs: Runs
    models: tuple[str, ...]
    choices: tuple[RunSettings, ...] = (RunSettings(),)  #: settings that the page starts with; two are compared
    traces: Traces = field(default_factory=Traces)

    # Starlette runs what is not ``async`` in a thread.

    def asset(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in page.assets():
            raise Unknown("There is no such file.")
        return Response(page.assets()[name], media_type=page.content_type(name))

    def about(self, request: Request) -> Response:
        about = {
            **{"version": __version__, "models": self.models, "max_size": self.pictures.max_size},
            **{"given": self.pictures.given_id, "largest_upload": MAX_UPLOAD_BYTES},
            "choices": [asdict(settings) for settings in self.choices],
            "samples": {name: credit for name, (_, _, credit) in SAMPLES.items()},
        }
        return JSONResponse(about)

    async def upload(self, request: Request) -> Response:
        name = unquote(request.headers.get("x-name", "picture"))
        data = await _body(request, MAX_UPLOAD_BYTES)
        picture = await run_in_threadpool(self.pictures.upload, name, data)
        return JSONResponse(picture.about(), 201)

    async def open_pair(self, request: Request) -> Response:
        first, second = await _values(request, "first", "second")
        pair = await run_in_threadpool(self.pictures.pair_of_uploads, str(first), str(second))
        return JSONResponse(pair.about(), 201)

    def image(self, request: Request) -> Response:
        pair = self.pictures.pair(request.path_params["pair"])
        return Response(pair.encoded(1 if request.path_params["which"] else 0), media_type="image/png")

    async def start(self, request: Request) -> Response:
        id, settings = await _values(request, "pair", "settings")
        pair = await run_in_threadpool(self.pictures.pair, str(id))
        return JSONResponse(self.runs.start(pair, RunSettings.of(settings, self.models)).about(), 202)

    def result(self, request: Request) -> Result:
        run = self.runs[request.path_params["run"]]
        if run.result is None or run.state != "done":
            raise Unknown("This run has no result yet.")
        return run.result

    def inspection(self, request: Request) -> Inspection:
        place = request.path_params
        return self.traces.inspect(self.result(request), place["row"], place["column"])

    def scores(self, request: Request) -> Response:
        return _download(page.scores_picture(self.result(request), self.inspection(request)), "scores-picture.png")

    def file(self, request: Request) -> Response:
        name = request.path_params["name"]
        return _download(page.file_of(self.result(request), name), name)


def application(explorer: Explorer, host: str = "127.0.0.1") -> Starlette:
    """Return the web application of an explorer that is served on this address."""
    one, point = "/api/runs/{run}", "/api/runs/{run}/points/{row:int}/{column:int}"
    runs, result = explorer.runs, explorer.result
    routes = [
        Route("/", explorer.asset),
        Route("/static/{name:path}", explorer.asset),
        Route("/api/about", explorer.about),
        Route("/api/pictures", explorer.upload, methods=["POST"]),
        Route("/api/pairs", explorer.open_pair, methods=["POST"]),
        Route("/api/pairs/{pair}", lambda r: JSONResponse(explorer.pictures.pair(r.path_params["pair"]).about())),
        Route("/api/pairs/{pair}/images/{which:int}", explorer.image),
        Route("/api/runs", explorer.start, methods=["POST"]),
        Route(one, lambda r: JSONResponse(runs[r.path_params["run"]].about()), methods=["GET"]),
        Route(one, lambda r: JSONResponse(runs.cancel(r.path_params["run"]).about()), methods=["DELETE"]),
        Route(f"{one}/facts", lambda r: JSONResponse(payloads.facts(result(r)))),
        Route(f"{one}/grid", lambda r: _binary(payloads.grid(result(r)))),
        Route(f"{one}/layers", lambda r: _binary(payloads.layers(result(r)))),
        Route(point, lambda r: _binary(payloads.point(explorer.inspection(r)))),
        Route(f"{point}/picture", explorer.scores),
        Route(f"{one}/files/{{name}}", explorer.file),
        Route(f"{one}/page", lambda r: _download(exported_page(result(r), explorer.traces).encode(), "explorer.html")),
    ]
    guard = Middleware(Guard, hosts=allowed_hosts(host), any_address=host in ("0.0.0.0", "::"))
    handlers = dict.fromkeys((DeepMatchingError, ClientDisconnect), _refused)  # who left does not read the answer
    return Starlette(routes=routes, middleware=[guard], exception_handlers=handlers)


def allowed_hosts(host: str) -> set[str]:
    """Return the names under which a server on this address may be called."""
    names = {"127.0.0.1", "localhost", "::1", host.lower()}
    return names if is_loopback(host) else names | {socket.gethostname().lower(), socket.getfqdn().lower()}


def is_loopback(host: str) -> bool:
    """Tell whether an address is reached from this machine only."""
    return host == "localhost" or getattr(_number(host), "is_loopback", False)


def _number(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a name spells, or None."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


class Guard(BaseHTTPMiddleware):
    """A middleware that refuses requests of foreign pages, and sends :data:`HEADERS` with every response.

    A page of another site that is open in the same browser can send requests to 127.0.0.1. Its requests carry an
    ``Origin`` or ``Sec-Fetch-Site`` header that says so. With a name of its own that leads to 127.0.0.1 (DNS rebinding)
    it would be of the same origin, but then the ``Host`` header has that name. Starlette's ``TrustedHostMiddleware``
    cannot allow every IP address without allowing every name, and its older versions do not know ``[::1]``.

    The server may be called by the names ``hosts`` or, if it is on all addresses of the machine, by any IP address.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str], any_address: bool) -> None:
        super().__init__(app)
        self.hosts, self.any_address = hosts, any_address

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        reason = self.refusal(request.scope["path"], request.headers)
        response = JSONResponse({"error": reason}, 403) if reason else await call_next(request)
        response.headers.update(HEADERS)
        return response

    def refusal(self, path: str, headers: Headers) -> str:
        """Return why a request is refused, or an empty text."""
        host = headers.get("host", "")
        name = re.sub(":[0-9]*$", "", host.lower()).strip("[]")  # without the port
        if name not in self.hosts and not (self.any_address and _number(name)):
            return "This server does not answer under that name: use the address that it printed."
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        is_foreign = origin is not None and origin.lower().partition("://")[2] != host.lower()
        is_navigation = headers.get("sec-fetch-mode") == "navigate" and path == "/"
        if is_foreign or (site not in ("same-origin", "none") and not is_navigation):
            return "A page of another site may not use this server."
        return ""


def open_socket(host: str, port: int | None, usual: int) -> socket.socket:
    """Return a socket that listens. Without a port, the usual one or, if that is taken, any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in (usual, 0) if port is None else (port,):
        try:
            return socket.create_server((host, number), family=family)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
    advice = "leave --port out" if port is not None else "choose another --host"
    raise DeepMatchingError(f"The explorer cannot listen on {host}, port {port or usual} ({reason}): {advice}.")


def serve(app: Starlette, listening: socket.socket) -> None:
    """Answer requests until the interrupt key ends it."""
    import uvicorn

    uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off")).run(sockets=[listening])


async def _refused(request: Request, error: Exception) -> Response:
    statuses: dict[type[Exception], int] = {Unknown: 404, TooLarge: 413, Busy: 503}
    return JSONResponse({"error": str(error)}, statuses.get(type(error), 400))


async def _body(request: Request, max_bytes: int) -> bytes:
    """Return the body of a request, read only as far as it is allowed to go."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise TooLarge(f"This is larger than {max_bytes // 2**20 or 1} MB: choose a smaller file.")
        parts.append(part)
    return b"".join(parts)


async def _values(request: Request, *names: str) -> list[Any]:
    """Return the values of a JSON object with exactly these names."""
    body = await _body(request, MAX_REQUEST_BYTES)
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        raise DeepMatchingError("The request is not JSON.") from None
    if not isinstance(values, dict) or set(values) != set(names):
        raise DeepMatchingError(f"The request must have {' and '.join(names)}.")
    return [values[name] for name in names]


def _download(data: bytes, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(data, media_type=page.content_type(name), headers=headers)
