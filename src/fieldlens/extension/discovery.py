"""The registry of extension methods and their specs: `name[:key=value[,key=value…]]`, parsed like those of schemes."""

import importlib
import inspect
import os
import pkgutil
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from fieldlens.core.errors import BadInput, reraise_as_bad_input, unknown
from fieldlens.extension import base, methods
from fieldlens.extension.base import ExtensionMethod
from fieldlens.schemes.discovery import PLUGINS, load_plugins
from fieldlens.schemes.spec import keyword_options, parse_options, spell


def registry() -> dict[str, type[ExtensionMethod]]:
    """All methods by name: those of this package, installed plugins, and those in FIELDLENS_PLUGINS."""
    _discover()
    load_plugins(os.environ.get(PLUGINS, ""))
    return dict(sorted(base.REGISTERED.items()))


@cache
def _discover() -> None:
    for module in pkgutil.iter_modules(methods.__path__):
        importlib.import_module(f"{methods.__name__}.{module.name}")
    for point in entry_points(group="fieldlens.methods"):
        with reraise_as_bad_input(f"cannot import the installed plugin {point.value}"):
            point.load()


def is_built_in(cls: type[ExtensionMethod]) -> bool:
    """Whether a method is defined in this package."""
    return cls.__module__.startswith(f"{methods.__name__}.")


def options(cls: type[ExtensionMethod]) -> dict[str, inspect.Parameter]:
    """Options of a method by name, with their types and defaults."""
    return keyword_options("method", cls, positional=1)


def parse(spec: str) -> tuple[type[ExtensionMethod], dict[str, Any]]:
    """The class of a spec, and its options that differ from their defaults, sorted by key."""
    name = spec.strip().partition(":")[0]
    classes = registry()
    if name not in classes:
        raise unknown("method", name, classes, f"; set {PLUGINS}=FILE.py to add your own")
    allowed = options(classes[name])
    values = parse_options("method", spec, allowed)
    return classes[name], {key: values[key] for key in sorted(values) if values[key] != allowed[key].default}


def canonical(spec: str) -> str:
    """The canonical form of a spec: keys sorted, defaults dropped."""
    cls, values = parse(spec)
    pairs = ",".join(f"{key}={spell(value)}" for key, value in values.items())
    return f"{cls.name}:{pairs}" if pairs else cls.name


def build(spec: str, train_length: int | None) -> ExtensionMethod:
    """Build a method from its spec for a model of this training length."""
    cls, values = parse(spec)
    if train_length is None:
        raise BadInput(f"method '{spec}' needs the training length of the model: give --train-length")
    with reraise_as_bad_input(f"cannot build method '{spec}' for the training length {train_length}"):
        return cls(train_length, **values)


def record(method: ExtensionMethod) -> dict[str, Any]:
    """What results record of a method; the source hash of one that is a plugin."""
    source = {} if is_built_in(type(method)) else {"source": method.file_hash}
    return {**method.about(), **source}
