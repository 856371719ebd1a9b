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
    defaults: dict[tuple[str, str], list[tuple[str, Any]]] = {}
    for name, cls in registry().items():
        hints = get_type_hints(cls)
        for field in dataclasses.fields(cls):
            kind = hints[field.name]
            assert offered.setdefault(field.name, Option(kind, "")).kind is kind, f"option {field.name} has two types"
            text = field.metadata["help"]
            defaults.setdefault((field.name, text), []).append((name, field.default))
    for (option, text), values in defaults.items():
        names = " or ".join(name for name, _ in values)
        default = ", ".join(f"{value}" if len(values) == 1 else f"{value} for {name}" for name, value in values)
        words = f"{offered[option].help} {text}, for the protocol {names}. Default: {default}."
        offered[option] = offered[option]._replace(help=words.strip())
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
