"""The server of `fieldlens explore`: who is refused and how, numbers equal to receptive_field, and a live page."""

import base64
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from newcomer import TEXT, save_model

from fieldlens import cli, load_model, receptive_field
from fieldlens.core.device import Machine
from fieldlens.core.errors import BadInput
from fieldlens.receptive.explorer.guard import BODY, is_loopback
from fieldlens.receptive.explorer.jobs import QUEUE, Cancelled, Full, Worker
from fieldlens.receptive.explorer.session import Query, Session

pytest.importorskip("starlette", reason="needs the extra: pip install 'fieldlens[explore]'")
pytest.importorskip("uvicorn", reason="needs the extra: pip install 'fieldlens[explore]'")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("explore") / "model")


class Server:
    """A server in its own process, as the command starts it."""

    def __init__(self, model: Path, *words: str) -> None:
        command = [sys.executable, "-m", "fieldlens", "explore", str(model), "--json", "--threads", "1", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.about = json.loads(self.process.stdout.readline())
        self.root = f"http://127.0.0.1:{self.about['port']}"

    def request(self, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
        """Status and text of the answer; the token is sent unless headers say otherwise."""
        headers = {"X-Fieldlens-Token": self.about["token"]} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(f"{self.root}{path}", data, headers)
            with urllib.request.urlopen(request, timeout=60) as answer:
                self.headers = answer.headers
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            self.headers = error.headers
            return error.code, error.read().decode()

    def ask(self, path: str, body: Any) -> dict[str, Any]:
        """The result of a request: the last line of its answer."""
        status, text = self.request(f"/api/{path}", body)
        assert status == 200, text
        return json.loads(text.splitlines()[-1])


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIELDLENS_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("OMP_NUM_THREADS", "1")
        running = Server(model, "--length", "256")
    running.ask("model", {})
    yield running
    running.process.kill()
    running.process.communicate()


# ---- Who is refused


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X_Fieldlens_Token": ""}, 403),
        ({"X_Fieldlens_Token": "wrong"}, 403),
        ({"X_Fieldlens_Token": "\xe9"}, 403),
        ({"Origin": "http://example.org"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}, 403),
        ({"Host": "example.org"}, 400),
        ({"Host": "127.0.0.1.example.org:80"}, 400),
        ({"Host": "localhost:99999999"}, 400),
        ({}, 200),
    ],
)
def test_strangers_are_refused(server: Server, headers: dict[str, str], status: int) -> None:
    for path, body in (("/api/model", {}), ("/", None)):
        answer, _ = server.request(path, body, **headers)
        assert answer == status
        assert "Access-Control-Allow-Origin" not in server.headers
        assert "default-src 'none'" in server.headers["Content-Security-Policy"]
        assert server.headers["X-Content-Type-Options"] == "nosniff"


def test_the_page_opens_by_its_address_only(server: Server) -> None:
    with urllib.request.urlopen(server.about["url"]) as answer:
        policy, page = answer.headers["Content-Security-Policy"], answer.read().decode()
    assert "frame-ancestors 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    assert server.about["token"] not in page
    for path in ("/", "/?token=", "/?token=x"):
        assert server.request(path, X_Fieldlens_Token="")[0] == 403
    assert server.request(f"/api/model?token={server.about['token']}", {}, X_Fieldlens_Token="")[0] == 403
    for path in ("/nothing", "/../etc/passwd", "/api/"):
        assert server.request(path)[0] == 404
    assert server.request("/api/model")[0] == 405


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"text": "' + b"a" * 300_000 + b'"}'])
def test_a_bad_body_is_refused(server: Server, body: bytes) -> None:
    assert server.request("/api/text", body)[0] == 400


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("text", {}, "a text or the id of a text is expected"),
        ("text", {"text": " \n"}, "the text is empty"),
        ("text", {"text": "a"}, "at least 3 are needed"),
        ("text", {"text": TEXT[:9000]}, "at most 256 are allowed"),
        ("text", {"id": "unknown"}, "not known to the server any more"),
        ("target", {}, "text and at are expected"),
        ("target", {"text": "x", "at": "1"}, "must be integers"),
        ("target", {"text": "x", "at": True}, "must be integers"),
        ("target", {"text": "x", "at": 1, "objective": "other"}, "objective must be log-likelihood or top-logit"),
        ("target", {"text": "STORED", "at": 0}, "at must be between 1 and"),
        ("target", {"text": "STORED", "at": 10**9}, "at must be between 1 and"),
        ("target", {"text": "STORED", "at": 5, "layer": 99}, "no model 0 with a layer 99"),
        ("target", {"text": "STORED", "at": 5, "model": -1}, "no model -1"),
        ("loss", {"text": "STORED", "at": 5, "tokens": 6}, "tokens must be between 1 and 5, got 6"),
        ("loss", {"text": "STORED", "at": 5}, "tokens must be an integer"),
    ],
)
def test_a_bad_request_is_explained(server: Server, path: str, body: dict[str, Any], message: str) -> None:
    stored = server.ask("text", {"text": TEXT[:200]})["result"]["id"]
    if body.get("text") == "STORED":
        body = body | {"text": stored}
    status, text = server.request(f"/api/{path}", body)
    assert status == 200  # the answer has begun with progress; its last line is the error
    assert message in json.loads(text.splitlines()[-1])["error"]


def test_ten_megabytes_are_refused(server: Server) -> None:
    for headers in ({}, {"X_Fieldlens_Token": "wrong"}):
        status, _ = server.request("/api/text", b"a" * 10_000_000, **headers)
        assert status == (403 if headers else 413)
    assert server.request("/api/text", b"a" * (BODY + 1))[0] == 413
    assert server.ask("model", {})["result"]["models"]


def test_two_hundred_at_once(server: Server) -> None:
    text = server.ask("text", {"text": TEXT[:600]})["result"]["id"]

    def ask(number: int) -> int:
        return server.request("/api/target", {"text": text, "at": 40 + number % 100})[0]

    with ThreadPoolExecutor(200) as pool:
        statuses = list(pool.map(ask, range(200)))
    assert set(statuses) <= {200, 429}
    assert statuses.count(200) >= QUEUE
    assert server.ask("model", {})["result"]["models"]


# ---- Numbers


@pytest.mark.parametrize("objective", ["log-likelihood", "top-logit"])
def test_shares_are_those_of_receptive_field(server: Server, model: Path, objective: Any) -> None:
    text = server.ask("text", {"text": TEXT[:500]})["result"]
    answer = server.ask("target", {"text": text["id"], "at": 90, "objective": objective})["result"]
    shares_T = np.frombuffer(base64.b64decode(answer["shares"]), "<f4")
    session = Session(str(model), Machine(threads=1), 256, None, None)
    session.load(lambda stage, done: None)
    ids_T = session.read(TEXT[:500]).ids_T
    assert "".join(text["pieces"]) == TEXT[:500]
    field = receptive_field(load_model(model), ids_T[:91], target=objective)
    np.testing.assert_allclose(shares_T, field.shares(), rtol=1e-5, atol=1e-6)
    assert answer["marks"] == [field.erf(level) for level in (0.5, 0.9, 0.99)]


def session_of(model: Path, **options: Any) -> Session:
    session = Session(str(model), Machine(threads=1), 256, options.get("method"), None)
    session.load(lambda stage, done: None)
    return session


def test_layers_methods_and_losses(model: Path) -> None:
    session = session_of(model, method="window:window=3")
    text = session.read(TEXT[:400])
    stock, cut = (session.target(Query(text.id, 60, number), print_nothing) for number in (0, 1))
    assert cut["shares"] != stock["shares"]
    session.targets.clear()
    assert session.target(Query(text.id, 60), print_nothing)["shares"] == stock["shares"]  # the method is detached
    layer = session.target(Query(text.id, 60, layer=1), print_nothing)
    assert layer["shares"] != stock["shares"]
    losses = dict(session.losses(Query(text.id, 60), [7], print_nothing)["losses"])
    rows = {tokens: torch.from_numpy(text.ids_T[None, 60 - tokens : 61]) for tokens in (1, 7, 60)}
    assert losses == {tokens: pytest.approx(float(load_model(model).losses(row)[0, 0])) for tokens, row in rows.items()}


def print_nothing(stage: str, done: float | None) -> None: ...


def test_progress_rises_and_a_gradient_can_be_cancelled(model: Path) -> None:
    session = session_of(model)
    text = session.read(TEXT[:400])
    parts: list[float] = []
    session.target(Query(text.id, 50), lambda stage, done: parts.append(done) if done is not None else None)
    assert parts == sorted(parts)
    assert parts[0] == 0
    assert parts[-1] == 1
    assert len(parts) > 2 * session.layers - 1

    def stop(stage: str, done: float | None) -> None:
        if done is not None and done > 0.6:  # in the backward pass
            raise Cancelled

    with pytest.raises(Cancelled):
        session.target(Query(text.id, 51), stop)
    assert Query(text.id, 51) not in session.targets
    assert session.target(Query(text.id, 51), print_nothing)["marks"]


def test_a_long_text_is_cut_only_at_the_start(model: Path) -> None:
    session = session_of(model)
    with pytest.raises(BadInput, match="at most 256 are allowed"):
        session.read(TEXT[:5000])
    text = session.read(TEXT[:5000], cut=True)
    assert len(text.pieces) == 256
    assert "--length allows more" in text.note


# ---- The queue


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def test_jobs_run_in_order_and_the_queue_is_bounded() -> None:
    worker, gate, order = Worker(), threading.Event(), list[int]()
    first = worker.submit(lambda step: gate.wait())
    wait_for(lambda: worker.current is first)
    jobs = [worker.submit(lambda step, n=n: order.append(n)) for n in range(QUEUE)]
    with pytest.raises(Full):
        worker.submit(lambda step: None)
    jobs[3].cancelled = True
    late = worker.submit(lambda step: order.append(99))  # in the place of the cancelled one
    assert worker.progress(late)[0].startswith("waiting, ")
    gate.set()
    late.result.result(10)
    assert order == [n for n in range(QUEUE) if n != 3] + [99]
    assert worker.close(5)


def test_an_error_does_not_end_the_thread() -> None:
    worker = Worker()
    with pytest.raises(SystemExit):
        worker.submit(lambda step: sys.exit(1)).result.result(10)
    assert worker.submit(lambda step: 7).result.result(10) == 7
    assert worker.close(5)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:80", True), ("localhost", True), ("[::1]:5", True), ("LOCALHOST:1", True), ("", False),
        ("evil.org", False), ("127.0.0.1@evil.org", False), ("localhost:x", False), ("[::1", False), ("0.0.0.0", False),
    ],
)  # fmt: skip
def test_hosts(host: str, expected: bool) -> None:
    assert is_loopback(host) == expected


# ---- The command


def test_ctrl_c_stops_it_quietly(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(tmp_path))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        running = Server(model, "--no-browser")
    finally:
        signal.signal(signal.SIGINT, before)
    running.ask("model", {})
    assert running.ask("text", {"text": "a"}) == {"error": "the text has 1 tokens, at least 3 are needed"}
    assert "an unpaired surrogate" in running.ask("text", {"text": "\ud800 one two three"})["error"]
    running.process.send_signal(signal.SIGINT)
    out, err = running.process.communicate(timeout=60)
    note = f"{model} has no manifest.json of fieldlens: its files cannot be verified\n"
    assert (running.process.returncode, out, err) == (0, "", note)


SLOW = """
import signal, time
from fieldlens.receptive.explorer.server import Explore, bind, serve

class Slow:
    def target(self, query, step):
        while True:
            step("computing the gradient", 0.5)
            time.sleep(0.05)

signal.signal(signal.SIGINT, signal.default_int_handler)
explore, listener = Explore("slow", lambda step: Slow(), None), bind(0)
print(listener.getsockname()[1], explore.token, flush=True)
assert serve(explore, listener)
"""


def test_ctrl_c_ends_a_running_gradient_quietly() -> None:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", SLOW], **pipes)
    try:
        assert process.stdout is not None
        port, token = process.stdout.readline().split()
        body = json.dumps({"text": "a", "at": 1}).encode()
        headers = {"X-Fieldlens-Token": token}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/api/target", body, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            while b"computing" not in (line := answer.readline()):
                assert json.loads(line)["stage"] == "waiting"
            process.send_signal(signal.SIGINT)
            *_, last = answer.read().splitlines()
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert json.loads(last) == {"error": "the server was stopped"}
    assert (process.returncode, err) == (0, "")


def test_a_model_that_cannot_be_loaded_ends_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["explore", str(tmp_path / "no" / "where"), "--no-browser"])
    assert stop.value.code == 2
    assert "does not exist" in capsys.readouterr().err


def test_what_the_command_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.txt"
    empty.touch()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for words, message in (
            (["--port", "70000"], "port must be between 0 and 65535, got 70000"),
            (["--port", str(taken.getsockname()[1])], "give another --port"),
            (["--length", "2"], "length must be at least 3, got 2"),
            (["--text", str(empty)], "it contains no text"),
            (["--text", str(tmp_path / "missing")], "is not a file"),
        ):
            with pytest.raises(SystemExit) as stop:
                cli.main(["explore", "m", "--no-browser", *words])
            assert stop.value.code == 2
            assert message in capsys.readouterr().err


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stop:
        cli.main(["explore", "m"])
    assert stop.value.code == 2
    expected = "fieldlens: explore needs starlette and uvicorn: pip install 'fieldlens[explore]'\n"
    assert capsys.readouterr().err == expected


# ---- The page


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Any]:
    """The page of the server; in the end it must have said nothing and asked nobody else."""
    messages: list[str] = []
    requests: list[str] = []
    context = browser.new_context(
        viewport={"width": 1200, "height": 900}, permissions=["clipboard-read", "clipboard-write"]
    )
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(server.about["url"])
    yield page
    context.close()
    assert messages == []
    assert {url for url in requests if not url.startswith((f"{server.root}/", "data:"))} == set()


def heading(page: Any) -> str:
    return " ".join(page.locator(".explorer-title").inner_text().split())


def use_text(page: Any, text: str) -> None:
    page.locator(".explorer-form summary").click()
    page.get_by_label("Text", exact=True).fill(text)
    page.get_by_role("button", name="Use this text").click()


def test_a_pasted_text_and_a_clicked_word(page: Any, server: Server) -> None:
    page.locator(".explorer-title").wait_for()
    use_text(page, TEXT[:300])
    pieces = server.ask("text", {"text": TEXT[:300]})["result"]["pieces"]
    last = len(pieces) - 1
    page.get_by_text(f"word {last} of {last}").wait_for()
    page.locator(".explorer-text .t").nth(30).click()
    page.get_by_text(f"word 30 of {last}").wait_for()
    assert page.locator(".explorer-marks dd").count() == 3
    page.get_by_role("slider", name="Window").press("Home")
    page.get_by_text("measured").wait_for()
    loss = page.locator(".explorer-cut p").nth(1).inner_text()
    predicted, measured = (float(loss.split(name)[1].split()[0].strip(",;")) for name in ("predicted", "measured"))
    assert predicted == pytest.approx(measured, abs=2e-3)  # the prediction is right at the shortest context
    page.get_by_role("slider", name="Target").press("ArrowRight")
    page.get_by_text(f"word 31 of {last}").wait_for()
    page.get_by_label("Layer").select_option("layer 1")
    page.get_by_role("combobox", name="Target").select_option("top-logit")
    for _ in range(200):  # both switches are in the address, the second did not undo the first
        if {"layer=1", "objective=top-logit"} <= set(page.evaluate("location.hash.slice(1)").split("&")):
            break
        page.wait_for_timeout(50)
    page.reload()
    page.get_by_text(f"word 31 of {last}").wait_for()
    assert page.get_by_label("Layer").input_value() == "1"
    assert page.get_by_role("combobox", name="Target").input_value() == "top-logit"


def test_hostile_texts_execute_nothing(page: Any) -> None:
    page.locator(".explorer-title").wait_for()
    hostile = "<img src=x onerror=window.hacked=1></script><script>window.hacked=1</script> \u202e \x07 {{script}} end"
    use_text(page, hostile)
    page.get_by_text("Ready.").wait_for()
    page.locator(".explorer-text").press("Home")
    for _ in range(8):
        page.locator(".explorer-text").press("ArrowRight")
    assert page.evaluate("window.hacked") is None
    assert page.locator(".explorer img, .explorer script").count() == 0


def test_a_refused_text_is_explained_and_the_page_goes_on(page: Any) -> None:
    page.locator(".explorer-title").wait_for()
    before = heading(page)
    use_text(page, TEXT[:5000])
    page.locator(".explorer-status.failed").wait_for()
    assert "at most 256 are allowed" in page.locator(".explorer-status").inner_text()
    assert heading(page) == before
