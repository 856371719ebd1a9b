"""A loaded model with a method attached, for commands that take `--method`."""

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from fieldlens.core.errors import BadInput
from fieldlens.extension.attach import attached
from fieldlens.extension.discovery import build, canonical, record
from fieldlens.models.loading import Model
from fieldlens.storage.records import ModelRecord


def for_good(model: Model, spec: str, bos: int | None = None) -> Model:
    """The model with a method attached as long as its adapter lives."""
    stack = ExitStack()
    extended = with_method(model, spec, stack, bos)
    vars(extended.adapter)["attachment"] = stack  # a stack that is forgotten would detach the method
    return extended


def with_method(model: Model, spec: str, stack: ExitStack, bos: int | None) -> Model:
    """The model with a method attached until the stack is closed."""
    method = build(spec, model.adapter.train_length)
    adapter = stack.enter_context(attached(model.adapter, method, bos))
    adapter.name = f"{model.adapter.name} + {canonical(spec)}"
    about: ModelRecord = {**model.about, "name": f"{model.about['name']} + {canonical(spec)}", "method": record(method)}
    return replace(model, adapter=adapter, about=about)


def resolve_method(request: Any) -> None:
    """Set method and window of a request from its method, window and sinks; sinks are then part of the method."""
    if request.method is None and request.sinks is None:
        return
    method, window = method_of_flags(request.method, request.window, request.sinks)
    for name, value in (("method", method), ("window", window), ("sinks", None)):
        object.__setattr__(request, name, value)  # requests are frozen, and copied with changes


def method_of_flags(method: str | None, window: int | None, sinks: int | None) -> tuple[str | None, int | None]:
    """The method and the window that --method, --window and --sinks ask for: sinks and a window mean streaming."""
    if method is not None:
        if window is not None or sinks is not None:
            instead = "write --method streaming:sinks=4,window=1024"
            raise BadInput(f"--method cannot be combined with --window or --sinks: {instead}")
        return canonical(method), None
    if sinks is None:
        return None, window
    if window is None:
        raise BadInput("--sinks needs --window: the number of recent keys to keep beside the first ones")
    return canonical(f"streaming:sinks={sinks},window={window}"), None
