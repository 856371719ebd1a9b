"""The registry of protocols: one per file of this folder, with the options of each."""

import dataclasses
import importlib
import pkgutil
from functools import cache
from typing import Any, NamedTuple, get_type_hints

from fieldlens.core.errors import BadInput, unknown
from fieldlens.evaluation import protocols
from fieldlens.evaluation.protocols import base
from fieldlens.evaluation.protocols.base import Protocol


class Option(NamedTuple):
    """An option of one or several protocols: its type and its help text."""

    kind: type
    help: str


@cache
def registry() -> dict[str, type[Protocol]]:
    """All protocols by name."""
    for module in pkgutil.iter_modules(protocols.__path__):
        importlib.import_module(f"{protocols.__name__}.{module.name}")
    return dict(sorted(base.REGISTERED.items()))


@cache
def options() -> dict[str, Option]:
    """The options of all protocols by name. Protocols that share an option must agree on its type."""
    offered: dict[str, Option] = {}
    for name, cls in registry().items():
        hints = get_type_hints(cls)
        for field in dataclasses.fields(cls):
            kind = hints[field.name]
            text = f"{field.metadata['help']}, for the protocol {name}. Default: {field.default}."
            before = offered.get(field.name, Option(kind, ""))
            assert before.kind is kind, f"protocols disagree on the type of option {field.name}"
            offered[field.name] = Option(kind, f"{before.help} {text}".strip())
    return offered


def protocol(name: str, **settings: Any) -> Protocol:
    """A protocol by name; options that are None keep their defaults."""
    if name not in registry():
        raise unknown("protocol", name, registry())
    chosen = {key: value for key, value in settings.items() if value is not None}
    for key in chosen:
        if key not in registry()[name].__dataclass_fields__:
            raise BadInput(f"protocol '{name}' has no option '{key}'")
    return registry()[name](**chosen)
