"""The registry of schemes: those in this package, installed plugins, and files in FIELDLENS_PLUGINS."""

import hashlib
import importlib
import importlib.util
import os
import pkgutil
import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from fieldlens.core.errors import BadInput, reraise_as_bad_input
from fieldlens.schemes import base
from fieldlens.schemes.base import Scheme

PACKAGE = "fieldlens.schemes"
PLUGINS = "FIELDLENS_PLUGINS"
"""Environment variable: Python files or modules that define schemes or extension methods, separated like PATH."""


def registry() -> dict[str, type[Scheme]]:
    """All schemes by name: those in this package, installed plugins, and those in FIELDLENS_PLUGINS."""
    _discover(os.environ.get(PLUGINS, ""))
    return dict(sorted(base.REGISTERED.items()))


@cache
def _discover(plugins: str) -> None:
    """Import all modules that declare schemes; again only if FIELDLENS_PLUGINS changes."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"{PACKAGE}.{module.name}")
    for point in entry_points(group="fieldlens.schemes"):
        with reraise_as_bad_input(f"cannot import the installed plugin {point.value}"):
            point.load()
    load_plugins(plugins)


@cache
def load_plugins(plugins: str) -> None:
    """Import the files and modules of FIELDLENS_PLUGINS, once."""
    for plugin in filter(None, plugins.split(os.pathsep)):
        with reraise_as_bad_input(f"{PLUGINS}: cannot import {plugin}"):
            _load_file(plugin) if plugin.endswith(".py") else importlib.import_module(plugin)


def _load_file(plugin: str) -> None:
    path = Path(plugin).resolve()
    if not path.is_file():
        raise BadInput(f"{PLUGINS}: no such file: {plugin}")
    name = f"fieldlens_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if any(scheme.__module__ == name for scheme in base.REGISTERED.values()) or name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pickle and torch.compile look up a class by its module name
    before, declaring = dict(base.REGISTERED), set(base.DECLARING)
    try:
        spec.loader.exec_module(module)
        classes = [member for member in vars(module).values() if isinstance(member, type)]
        has_scheme = any(cls in base.REGISTERED.values() for cls in classes)
        if not has_scheme and before == base.REGISTERED and declaring == base.DECLARING:
            needed = "define a subclass of Scheme or ExtensionMethod with a name"
            raise BadInput(f"{PLUGINS}: {plugin} declares no scheme and no method: {needed}")
    except BaseException:
        del sys.modules[name]
        raise


def is_built_in(cls: type[Scheme]) -> bool:
    """Whether a scheme is defined in this package."""
    return cls.__module__.startswith(f"{PACKAGE}.")
