"""The server: its routes, and whom it answers."""

import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra 'explore' is not installed")
pytest.importorskip("httpx")

from httpx import Response
from starlette.testclient import TestClient

from deepmatching.errors import DeepMatchingError
from deepmatching.explorer import serving
from deepmatching.explorer.jobs import MAX_RUNS, Runs
from deepmatching.explorer.pictures import Pair, Pictures
from deepmatching.explorer.results import Result, RunSettings
from helpers.explorer import QUICK, png, unpack
from helpers.synthetic_pictures import moved_noise

ORIGIN = "http://127.0.0.1:8760"


@pytest.fixture
def client(pictures: Pictures, small_pair: Pair, result: Result) -> Iterator[TestClient]:
    """Open a client of a server that has the small pair; the matcher is not run again."""
    pictures.pairs.add(small_pair.id, small_pair)
    runs = Runs(lambda pair, settings, begin: result)
    explorer = serving.Explorer(pictures, runs, ("compact", "hog"), (RunSettings(), RunSettings("hog")))
    with TestClient(serving.application(explorer), base_url=ORIGIN, raise_server_exceptions=False) as http:
        yield http


@pytest.fixture
def run(client: TestClient) -> str:
    """Return the address of a finished run of the small pair."""
    started = client.post("/api/runs", json={"pair": "small", "settings": asdict(QUICK)})
    assert started.status_code == 202
    address = f"/api/runs/{started.json()['id']}"
    while client.get(address).json()["state"] in ("waiting", "running"):
        pass
    return address


def test_the_page_and_all_its_files_are_served(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    for name in ("css/base.css", "js/main.js", "icon.svg"):
        assert f"/static/{name}" in page.text
        assert client.get(f"/static/{name}").status_code == 200
    assert client.get("/static/js/main.js").headers["content-type"].startswith("text/javascript")

    for name in ("../serving.py", "%2e%2e/serving.py", "js/none.js", "", "js"):  # nothing else is
        assert client.get(f"/static/{name}").status_code == 404


def test_the_page_may_load_nothing_from_elsewhere(client: TestClient) -> None:
    for path in ("/", "/api/about", "/static/js/main.js", "/none"):
        headers = client.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers


def test_what_the_page_starts_with(client: TestClient) -> None:
    about = client.get("/api/about").json()
    assert about["models"] == ["compact", "hog"] and "sample-bunny" in about["samples"]
    assert [settings["model"] for settings in about["choices"]] == ["compact", "hog"]
    assert about["given"] is None


@pytest.mark.parametrize(
    "headers",
    [
        *({"host": name} for name in ("evil.example", "evil.example:8760", "", "[bad")),
        *({"origin": name} for name in ("http://evil.example", "http://127.0.0.1:9999", "null", "http://[bad")),
        *({"sec-fetch-site": name} for name in ("cross-site", "same-site")),
    ],
    ids=str,
)
def test_a_foreign_page_is_refused(client: TestClient, headers: dict[str, str]) -> None:
    for method, path in (("GET", "/api/about"), ("POST", "/api/pictures"), ("DELETE", "/api/runs/x")):
        response = client.request(method, path, headers=headers)
        assert response.status_code == 403 and "error" in response.json()


def test_this_machine_is_served_under_its_own_names(client: TestClient) -> None:
    for host in ("127.0.0.1:8760", "localhost:8760", "[::1]:8760"):
        headers = {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}
        assert client.get("/api/about", headers=headers).status_code == 200


def test_a_link_on_a_foreign_page_may_lead_here_but_not_into_the_interface(client: TestClient) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/", headers=headers).status_code == 200
    assert client.get("/api/about", headers=headers).status_code == 403


def test_a_server_for_all_addresses_is_called_by_number_but_not_by_a_foreign_name(pictures: Pictures) -> None:
    explorer = serving.Explorer(pictures, Runs(lambda *_: pytest.fail("nothing runs")), ("hog",))
    with TestClient(serving.application(explorer, "0.0.0.0"), base_url="http://192.168.0.7:8760") as http:
        assert http.get("/api/about").status_code == 200
        assert http.get("/api/about", headers={"host": "evil.example"}).status_code == 403


def test_two_uploads_are_a_pair(client: TestClient) -> None:
    ids = []
    for name, image in zip(("a ü.png", "b.png"), moved_noise(), strict=True):
        sent = client.post("/api/pictures", content=png(image), headers={"x-name": name.replace("ü", "%C3%BC")})
        assert sent.status_code == 201 and sent.json()["name"] == name
        ids.append(sent.json()["id"])
    pair = client.post("/api/pairs", json={"first": ids[0], "second": ids[1]}).json()
    assert client.get(f"/api/pairs/{pair['id']}").json() == pair
    assert pair["names"] == ["a ü.png", "b.png"]
    image = client.get(f"/api/pairs/{pair['id']}/images/1")
    assert image.headers["content-type"] == "image/png" and image.content.startswith(b"\x89PNG")


def test_a_bad_upload_is_reported(client: TestClient) -> None:
    response = client.post("/api/pictures", content=b"GIF89a no", headers={"x-name": "cat.gif"})
    assert response.status_code == 400
    assert "'cat.gif' cannot be decoded" in response.json()["error"]


def test_an_upload_is_read_only_as_far_as_it_is_allowed_to_go(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MAX_UPLOAD_BYTES", 1000)
    response = client.post("/api/pictures", content=(bytes(100) for _ in range(1000)))
    assert response.status_code == 413 and "choose a smaller file" in response.json()["error"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/pairs", b"{"),
        ("/api/pairs", b"[]"),
        ("/api/pairs", b'{"first": "x"}'),
        ("/api/runs", b'{"pair": "small", "settings": 3}'),
        ("/api/runs", b'{"pair": "small", "settings": {"model": "cat"}}'),
        ("/api/runs", b'{"pair": "small", "settings": {}, "more": 1}'),
        ("/api/runs", b"\xff\xfe"),
        ("/api/runs", b"[" * 60_000),
        ("/api/pairs", b'{"first": ["x"], "second": null}'),
        ("/api/pairs", b'{"first": {}, "second": 1}'),
    ],
)
def test_a_bad_request_is_reported(client: TestClient, path: str, body: bytes) -> None:
    response = client.post(path, content=body)
    assert response.status_code in (400, 404)
    assert response.json()["error"].endswith(".")


def test_a_client_that_leaves_during_an_upload_is_no_error(client: TestClient) -> None:
    messages = iter([{"type": "http.request", "body": b"half", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        assert message.get("status", 400) == 400

    scope = {"type": "http", "method": "POST", "path": "/api/pictures", "headers": [(b"host", b"localhost")]}
    asyncio.run(client.app({**scope, "query_string": b"", "root_path": ""}, receive, send))  # type: ignore[arg-type]


def test_what_is_not_there_is_404_with_a_message(client: TestClient) -> None:
    for path in ("pairs/x", "runs/x", "runs/x/grid", "pairs/x/images/0"):
        response = client.get(f"/api/{path}")
        assert response.status_code == 404 and response.json()["error"].endswith(".")


def test_a_finished_run_gives_everything(client: TestClient, run: str, result: Result) -> None:
    assert client.get(run).json()["state"] == "done"
    assert client.get(f"{run}/facts").json()["matches"] == len(result.matches)
    rows, columns = result.geometry.grid(0)
    assert unpack(client.get(f"{run}/grid").content)[1]["scores"].shape == (rows, columns)
    assert unpack(client.get(f"{run}/layers").content)[1]["flow"].shape == (64, 96, 2)
    assert unpack(client.get(f"{run}/points/2/3").content)[0]["index"] == [2, 3]
    assert client.get(f"{run}/points/2/3/picture").content.startswith(b"\x89PNG")
    assert client.get(f"{run}/points/{rows}/0").status_code == 400
    sent = client.get(f"{run}/files/matches.txt")
    assert sent.headers["content-disposition"] == 'attachment; filename="matches.txt"'
    assert client.get(f"{run}/files/none").status_code == 404


def test_a_busy_server_says_so_and_keeps_the_runs_that_wait(pictures: Pictures, small_pair: Pair) -> None:
    pictures.pairs.add(small_pair.id, small_pair)
    runs = Runs(lambda *_: pytest.fail("never computed"))
    runs._waiting.put = lambda run: None  # type: ignore[method-assign, misc] - it waits for ever
    with TestClient(serving.application(serving.Explorer(pictures, runs, ("hog",))), base_url=ORIGIN) as http:

        def start() -> Response:
            return http.post("/api/runs", json={"pair": "small", "settings": {"model": "hog"}})

        started = [start() for _ in range(50)]
        assert [answer.status_code for answer in started] == [202] * MAX_RUNS + [503] * (50 - MAX_RUNS)
        addresses = [f"/api/runs/{answer.json()['id']}" for answer in started[:MAX_RUNS]]
        assert all(http.get(address).json()["state"] == "waiting" for address in addresses)
        assert http.get(f"{addresses[3]}/grid").status_code == 404  # there is no result
        assert http.delete(addresses[3]).json()["state"] == "cancelled"
        assert start().status_code == 202
        assert [http.get(address).status_code for address in addresses].index(404) == 3


def test_a_page_can_be_downloaded(client: TestClient, run: str) -> None:
    page = client.get(f"{run}/page")
    assert page.status_code == 200 and "explorer.html" in page.headers["content-disposition"]
    assert 'id="embedded"' in page.text


def test_a_port_that_is_taken_is_reported_and_the_usual_one_is_replaced() -> None:
    with serving.open_socket("127.0.0.1", 0, 1) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DeepMatchingError, match="--port"):
            serving.open_socket("127.0.0.1", port, 1)
        with serving.open_socket("127.0.0.1", None, port) as other:
            assert other.getsockname()[1] != port
