"""How a model with an extension method generates: with the cache that is exact for the method, or without one."""

from collections.abc import Sequence

from fieldlens.core.errors import BadInput
from fieldlens.extension.base import ExtensionMethod


def mode_and_window(
    method: ExtensionMethod, mode: str | None, lengths: Sequence[int], tokens: int
) -> tuple[str, int | None, str]:
    """The mode and the window of a generation with a method, and a note; BadInput if the mode is not exact."""
    if method.crop is not None:
        allowed, window = "re-encode", method.crop
        note = f"{method.name} encodes the last {window} tokens again for each new token"
    elif not method.cached:
        allowed, window = "re-encode", max(lengths) + tokens
        note = f"{method.name} is not exact with a cache: the whole text is encoded again for each new token"
    elif method.kept is not None:
        allowed, window = "sliding", None
        note = f"{method.name} keeps {method.kept[0]} first and {method.kept[1]} recent keys"
        if method.kept[0] and min(lengths) < max(lengths):
            raise BadInput(f"{method.name} keeps the first keys of a prompt: pass one prompt at a time")
    else:
        allowed, window, note = "full", None, f"{method.name} reads all keys of the cache"
    if mode not in (None, allowed):
        raise BadInput(f"method {method.name} needs mode {allowed}, got {mode}: {note}")
    return allowed, window, f"mode {allowed}: {note}"
