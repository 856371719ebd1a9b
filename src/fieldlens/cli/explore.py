"""fieldlens explore: click a word and see what the model looked at."""

import gc
import json
import os
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fieldlens.core.device import Machine
from fieldlens.core.memory import without_collection

if TYPE_CHECKING:
    from fieldlens.receptive.explorer.jobs import Step
    from fieldlens.receptive.explorer.session import Session


def explore(
    model: str,
    *,
    text: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    length: int = 16384,
    method: str | None = None,
    port: int = 0,
    no_browser: bool = False,
    train_length: int | None = None,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    machine: Annotated[Machine, Parameter(name="*")] = Machine(),  # noqa: B008
) -> None:
    """Click a word and see what the model looked at.

    Example: fieldlens explore runs/sandwich --text story.txt

    Serves a page on this machine only. Paste or open a text and click a word: the gradient of the word's prediction is
    computed. Each earlier word is shaded by its share of the total gradient norm, and a curve shows how many of the
    most recent tokens account for 50, 90 and 99 % of it. The printed address contains a random token, without which
    every request is refused. Ctrl-C stops the server.

    Parameters
    ----------
    model
        Run folder, Hugging Face folder or id, or GGUF file.
    text
        Text or JSONL file to show first. If it has several documents, the first is used. - reads standard input.
    length
        Maximum number of tokens of a text.
    method
        Extension method to compare the model with, such as self-extend or yarn:factor=4; see fieldlens extend.
    port
        Port to listen on; 0 takes any that is free.
    no_browser
        Only print the address.
    train_length
        Training length of the model, if its configuration does not state it or is wrong.
    as_json
        Print the address, the port and the token as JSON.
    """
    from fieldlens.core.errors import BadInput

    _require_extra()
    if length < 3:
        raise BadInput(f"length must be at least 3, got {length}")
    from fieldlens.receptive.explorer.server import Explore, bind, serve, text_of

    machine.set_limits()
    content = text_of(text) if text is not None else None
    listener = bind(port)

    def load(step: "Step") -> "Session":
        step("starting", None)
        with without_collection():
            from fieldlens.receptive.explorer.session import Session

            session = Session(model, machine, length, method, train_length)
            session.load(step)
            for note in session.notes:
                print(note, file=sys.stderr)
            gc.freeze()  # what is loaded stays until the server ends
        return session

    server = Explore(Path(model).name or model, load, content)
    number = listener.getsockname()[1]
    address = f"http://127.0.0.1:{number}/?token={server.token}"
    line = json.dumps({"url": address, "port": number, "token": server.token}) if as_json else address
    print(line, flush=True)
    if not no_browser and not as_json and _has_browser():
        webbrowser.open(address)
    if not serve(server, listener):
        sys.stdout.flush()
        os._exit(0)  # a model is still being loaded, which cannot be interrupted


def _require_extra() -> None:
    """Raise BadInput if the libraries of the server are missing."""
    from importlib.util import find_spec

    from fieldlens.core.errors import BadInput

    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise BadInput(f"explore needs {' and '.join(missing)}: pip install 'fieldlens[explore]'")


def _has_browser() -> bool:
    """Whether a graphical browser can be expected: on a terminal, with a display."""
    graphical = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(graphical) and sys.stdout is not None and sys.stdout.isatty()
