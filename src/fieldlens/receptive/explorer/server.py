"""The server of `fieldlens explore`: one page, and requests to the model behind it."""

import asyncio
import json
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fieldlens.core.errors import BadInput, FieldlensError
from fieldlens.core.faults import machine_fault
from fieldlens.receptive.explorer.block import ServedExplorer
from fieldlens.receptive.explorer.guard import Guard, TooLarge, bounded_body
from fieldlens.receptive.explorer.jobs import Cancelled, Full, Job, Step, Worker
from fieldlens.receptive.explorer.samples import SAMPLES
from fieldlens.reporting import blocks as report

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from fieldlens.receptive.explorer.session import Session

CHARACTERS = 200_000
"""Maximum number of characters of a text."""
INTERVAL = 0.1
"""Seconds between two messages of progress."""
GRACE = 2.0
"""Seconds that a running request may take to end when the server stops."""

STOPPED = "the server was stopped"

Work = Callable[["Session", dict[str, Any], Step], dict[str, Any]]


class Explore:
    """The page and its requests; the model is loaded by the first job of the worker."""

    def __init__(self, name: str, load: Callable[[Step], "Session"], text: str | None) -> None:
        self.name, self.token, self.worker = name, secrets.token_urlsafe(24), Worker()
        self.session: Session | None = None
        self.first_text = text
        self.failed = threading.Event()
        self.opened = False
        self.loading = self.worker.submit(lambda step: self._load(load, step))

    def _load(self, load: Callable[[Step], "Session"], step: Step) -> None:
        try:
            session = load(step)
            if self.first_text is not None:
                session.first = session.read(self.first_text, cut=True).id
            self.session = session
        except Cancelled:  # the server stops
            raise
        except BaseException:
            self.failed.set()
            raise

    def app(self) -> "ASGIApp":
        """The ASGI application, behind its guard."""
        from starlette.applications import Starlette
        from starlette.routing import Route

        routes = [Route("/", self.page, methods=["GET"])]
        for path, work in {"model": _model, "text": _text, "target": _target, "loss": _loss}.items():
            routes.append(Route(f"/api/{path}", self._endpoint(work), methods=["POST"]))
        return Guard(Starlette(routes=routes), self.token)

    async def page(self, request: "Request") -> "Response":
        from starlette.responses import HTMLResponse

        self.opened = True
        block = ServedExplorer({"server": True, "samples": SAMPLES, "characters": CHARACTERS})
        subtitle = "Click a word to see what the model looked at when it predicted it."
        content = report.page(f"What {self.name} looks at", subtitle, [block], {"served by": "fieldlens explore"})
        policy = f"{report.policy([block])}; frame-ancestors 'none'"
        return HTMLResponse(content, headers={"Content-Security-Policy": policy})

    def _endpoint(self, work: Work) -> Callable[["Request"], Any]:
        async def answer(request: "Request") -> "Response":
            from starlette.responses import PlainTextResponse, StreamingResponse

            try:
                body = json.loads(await bounded_body(request))
                if not isinstance(body, dict) or len(str(body.get("text", ""))) > CHARACTERS:
                    raise ValueError
                job = self.worker.submit(lambda step: work(self._ready(), body, step))
            except TooLarge:
                return PlainTextResponse("the request is too large", 413)
            except (ValueError, RecursionError):
                limit = f"a JSON object is expected, with a text of at most {CHARACTERS:,} characters"
                return PlainTextResponse(limit, 400)
            except Full:
                return PlainTextResponse("too many requests are waiting", 429, headers={"Retry-After": "1"})
            return StreamingResponse(self._messages(job), media_type="application/x-ndjson")

        return answer

    def _ready(self) -> "Session":
        if self.session is None:
            raise self.loading.result.exception() or BadInput("the model is not loaded")
        return self.session

    async def _messages(self, job: Job) -> AsyncIterator[str]:
        """Lines of JSON: progress while the job waits and runs, then its result or its error."""
        finished = asyncio.wrap_future(job.result)
        finished.add_done_callback(lambda future: future.cancelled() or future.exception())  # asyncio logs unread ones
        try:
            while not job.result.done():
                if job.cancelled:  # the server stops
                    yield json.dumps({"error": STOPPED}) + "\n"
                    return
                stage, done = self.worker.progress(job)
                yield json.dumps({"stage": stage, "done": done}) + "\n"
                await asyncio.wait({finished}, timeout=INTERVAL)
            error = job.result.exception()
            message = {"result": job.result.result()} if error is None else {"error": _message(error)}
            yield json.dumps(message, allow_nan=False) + "\n"
        finally:
            job.cancelled = True  # the client has left, or has its answer


def _message(error: BaseException | None) -> str:
    """An error in one line; what is not the user's to mend is named by its class too."""
    text = " ".join(str(error).split())
    if isinstance(error, Cancelled):
        return STOPPED
    if isinstance(error, FieldlensError):
        return text
    fault = machine_fault(error) if isinstance(error, Exception) else None
    return f"{fault}" if fault else f"{type(error).__name__}: {text}"[:500]


def _model(session: "Session", body: dict[str, Any], step: Step) -> dict[str, Any]:
    return session.about()


def _text(session: "Session", body: dict[str, Any], step: Step) -> dict[str, Any]:
    step("reading the text", None)
    if isinstance(body.get("id"), str):
        return session.text(body["id"]).to_json()
    if not isinstance(body.get("text"), str):
        raise BadInput("a text or the id of a text is expected")
    return session.read(body["text"], cut=body.get("cut") is True).to_json()


def _target(session: "Session", body: dict[str, Any], step: Step) -> dict[str, Any]:
    return session.target(_query(body), step)


def _loss(session: "Session", body: dict[str, Any], step: Step) -> dict[str, Any]:
    if type(body.get("tokens")) is not int:
        raise BadInput("tokens must be an integer")
    return session.losses(_query(body), [body["tokens"]], step)


def _query(body: dict[str, Any]) -> Any:
    from fieldlens.receptive.explorer.session import Query

    if "text" not in body or "at" not in body:
        raise BadInput("text and at are expected")
    return Query.from_json(body)


def bind(port: int) -> socket.socket:
    """A listening socket on the loopback interface; port 0 takes any that is free."""
    if not 0 <= port < 1 << 16:
        raise BadInput(f"port must be between 0 and 65535, got {port}")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise BadInput(f"port {port} cannot be used ({error.strerror}): give another --port") from None
    listener.listen(256)
    return listener


def serve(explore: Explore, listener: socket.socket) -> bool:
    """Serve until Ctrl-C; returns whether all threads ended. Raises the error of a model that cannot be loaded."""
    import uvicorn

    settings: dict[str, Any] = {"log_level": "warning", "access_log": False, "server_header": False, "lifespan": "off"}
    config = uvicorn.Config(explore.app(), timeout_graceful_shutdown=int(GRACE), ws="none", **settings)
    server = uvicorn.Server(config)

    def stop_on_failure() -> None:
        explore.failed.wait()
        if explore.opened:
            time.sleep(1)  # until the page has read the error
        server.should_exit = True

    threading.Thread(target=stop_on_failure, daemon=True).start()
    # In a thread of its own: the caller's may have an event loop, and Ctrl-C is handled here. The end is an event,
    # because an interrupted join() can take a running thread for ended.
    finished = threading.Event()

    def run() -> None:
        try:
            server.run(sockets=[listener])
        finally:
            finished.set()

    threading.Thread(target=run, daemon=True).start()
    try:
        while not finished.wait(INTERVAL):
            pass
    except KeyboardInterrupt:  # how a server is stopped
        explore.worker.cancel()
        server.should_exit = True
        finished.wait(5 * GRACE)
    listener.close()
    ended = explore.worker.close(GRACE) and finished.is_set()
    if explore.failed.is_set() and (error := explore.loading.result.exception()) is not None:
        raise error
    return ended


def text_of(path: Path) -> str:
    """The text of a file, or its first document."""
    from fieldlens.data.text import open_text

    document = next(iter(open_text(path).documents()), "")
    if not document:
        raise BadInput(f"{path} is empty: it contains no text")
    return document
