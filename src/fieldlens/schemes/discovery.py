"""The registry: every scheme there is, from this folder, installed plugins and FIELDLENS_PLUGINS."""

import hashlib
import importlib
import importlib.util
import os
import pkgutil
import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from fieldlens import schemes
from fieldlens.core.errors import BadInput, reraise_as_bad_input
from fieldlens.schemes import base
from fieldlens.schemes.base import Scheme

PLUGINS = "FIELDLENS_PLUGINS"
"""Environment variable: Python files or modules with further schemes, separated like PATH."""


def registry() -> dict[str, type[Scheme]]:
    """Every scheme there is: the files of this folder, installed plugins, and what FIELDLENS_PLUGINS names."""
    _discover(os.environ.get(PLUGINS, ""))
    return dict(sorted(base.REGISTERED.items()))


@cache
def _discover(plugins: str) -> None:
    """Import what declares schemes; once, unless the plugins change."""
    for module in pkgutil.iter_modules(schemes.__path__):
        importlib.import_module(f"{schemes.__name__}.{module.name}")
    for point in entry_points(group="fieldlens.schemes"):
        with reraise_as_bad_input(f"the installed plugin {point.value} cannot be imported"):
            point.load()
    for plugin in filter(None, plugins.split(os.pathsep)):
        with reraise_as_bad_input(f"{PLUGINS} names {plugin}, which cannot be imported"):
            _load_file(plugin) if plugin.endswith(".py") else importlib.import_module(plugin)


def _load_file(plugin: str) -> None:
    path = Path(plugin).resolve()
    if not path.is_file():
        raise BadInput(f"{PLUGINS} names {plugin}, which is not a file")
    name = f"fieldlens_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if any(scheme.__module__ == name for scheme in base.REGISTERED.values()):
        return
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pickle and the compiler look a class up where it says it is
    before = dict(base.REGISTERED)
    try:
        spec.loader.exec_module(module)
        has = any(isinstance(one, type) and one in base.REGISTERED.values() for one in vars(module).values())
        if not has and before == base.REGISTERED:
            raise BadInput(f"{PLUGINS} names {plugin}, which declares no scheme: give a subclass of Scheme a name")
    except BaseException:
        del sys.modules[name]
        raise


def is_built_in(cls: type[Scheme]) -> bool:
    """Whether a scheme is one of this folder's."""
    return cls.__module__.startswith(f"{schemes.__name__}.")
