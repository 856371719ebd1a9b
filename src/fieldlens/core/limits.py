"""Limits on what is read, so that endless or hostile input ends with a message instead of filling the memory."""

from contextvars import ContextVar

DOCUMENT_BYTES = 1 << 30
"""Default size of the largest document that is read, after decompression."""

document_bytes: ContextVar[int] = ContextVar("document_bytes", default=DOCUMENT_BYTES)
"""Size of the largest document that is read; the flag --max-document-bytes sets it."""

NESTING = 100
"""Greatest depth of lists and objects in a JSON file."""


def is_nested_too_deeply(value: object) -> bool:
    """Whether lists and dicts inside each other go deeper than NESTING: code that walks them might fail."""
    level = [value]
    for _ in range(NESTING):
        level = [item for node in level if isinstance(node, list | dict) for item in _items(node)]
        if not level:
            return False
    return any(isinstance(node, list | dict) for node in level)


def _items(node: list[object] | dict[object, object]) -> list[object]:
    items = list(node.values()) if isinstance(node, dict) else node
    return [item for item in items if isinstance(item, list | dict)]
