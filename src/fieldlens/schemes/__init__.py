"""Positional schemes: what a scheme is, the registry of them, and the spec text that names one.

A scheme is one file in this folder: a subclass of `Scheme` with a `name`. The model, the command line, the
contract tests, the benchmarks and the plots all loop over `registry()`.

A spec text is `name[:key=value[,key=value…]]`, for example `sandwich:dims=64` or `none:window=40`. The keys are the
keyword arguments of the scheme's constructor, and `window`, which every scheme has.
"""

import hashlib
import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
import types
import typing
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar, Literal, Union

import torch
from torch import Tensor, nn

from fieldlens.errors import BadInput, unknown

PLUGINS = "FIELDLENS_PLUGINS"
"""Environment variable: Python files or modules with further schemes, separated like PATH."""

LARGEST = 1e12
"""No option of a spec is larger than this."""

MOST = 2**16
"""Heads, their width, and entries of a scheme's tables; more is a slip of the pen."""

_REGISTRY: dict[str, type["Scheme"]] = {}


class Scheme(nn.Module):
    """One way of telling a causal transformer about order. A subclass overrides what it touches.

    Order enters in three places, and each is a table over explicit positions or distances:
    `embedding` is added to the token embeddings, `angles` turn queries and keys, `bias` is added to the scaled scores.
    Tables are float64; whoever uses one casts it, never below float32.
    """

    name: ClassVar[str]
    label: ClassVar[str] = ""
    source: ClassVar[str] = ""
    relative: ClassVar[bool] = True
    colour: ClassVar[str] = ""
    """As #0072B2; plots choose one for a scheme that has none."""
    marker: ClassVar[str] = "."
    file_hash: ClassVar[str] = ""
    """Of its file as it was imported; none where a class was typed into a session."""

    window: int | None = None
    spec: str = ""

    def __init__(self, heads: int, head_width: int) -> None:
        super().__init__()
        self.heads, self.head_width = heads, head_width
        self.register_load_state_dict_post_hook(_project)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            if not isinstance(cls.name, str) or not re.fullmatch(r"[\w-]+", cls.name):
                raise BadInput(f"a scheme is named {cls.name!r}: letters, digits, _ and - are possible")
            if cls.colour and not re.fullmatch(r"#[0-9a-fA-F]{6}", cls.colour):
                raise BadInput(f"the colour of scheme '{cls.name}' is {cls.colour!r}: one like #0072B2 is needed")
            cls.label, cls.file_hash = cls.label or cls.name, _file_hash(cls)
            known = _REGISTRY.setdefault(cls.name, cls)
            if known.__qualname__ != cls.__qualname__ or known.__module__ != cls.__module__:
                raise BadInput(f"scheme '{cls.name}' is declared twice: in {known.__module__} and in {cls.__module__}")
            _REGISTRY[cls.name] = cls

    def embedding(self, positions: Tensor) -> Tensor | None:
        """What is added to the token embeddings: (…, T) -> (…, T, D)."""
        return None

    def angles(self, positions: Tensor) -> Tensor | None:
        """By how much each half-split pair of query and key dimensions is turned: (…, T) -> (…, T, K/2)."""
        return None

    def bias(self, distances_N: Tensor) -> Tensor | None:
        """What is added to the scaled scores of a key this many tokens back: (N,) -> (H, N)."""
        return None

    def project(self) -> None:
        """Put learned parameters back where they must lie; leave those alone that are there.

        Loading weights calls it, and training: ours after each step, transformers' before each forward.
        """

    def extra_repr(self) -> str:
        return self.spec


def _project(scheme: Scheme, _: Any) -> None:
    scheme.project()


def _file_hash(cls: type) -> str:
    with suppress(OSError, TypeError):
        return hashlib.sha256(Path(inspect.getfile(cls)).read_bytes()).hexdigest()[:16]
    return ""


def exact(values: Tensor) -> Tensor:
    """The widest floating type that the tensor's device has: float64, or float32 on Apple GPUs."""
    return values.to(torch.float32 if values.device.type == "mps" else torch.float64)


def registry() -> dict[str, type[Scheme]]:
    """Every scheme there is: the files of this folder, installed plugins, and what FIELDLENS_PLUGINS names."""
    _discover(os.environ.get(PLUGINS, ""))
    return dict(sorted(_REGISTRY.items()))


@cache
def _discover(plugins: str) -> None:
    """Import what declares schemes; once, unless the plugins change."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    for point in entry_points(group="fieldlens.schemes"):
        with told(f"the installed plugin {point.value} cannot be imported"):
            point.load()
    for plugin in filter(None, plugins.split(os.pathsep)):
        with told(f"{PLUGINS} names {plugin}, which cannot be imported"):
            _load_file(plugin) if plugin.endswith(".py") else importlib.import_module(plugin)


@contextmanager
def told(what: str) -> Iterator[None]:
    """Whatever goes wrong in a file that we did not write, in one line."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{what}: {type(error).__name__}: {' '.join(str(error).split())}") from error


def _load_file(plugin: str) -> None:
    path = Path(plugin).resolve()
    if not path.is_file():
        raise BadInput(f"{PLUGINS} names {plugin}, which is not a file")
    name = f"fieldlens_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if any(scheme.__module__ == name for scheme in _REGISTRY.values()):
        return
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name], before = module, dict(_REGISTRY)  # pickle and the compiler look a class up where it says it is
    try:
        spec.loader.exec_module(module)
        has = any(isinstance(one, type) and one in _REGISTRY.values() for one in vars(module).values())
        if not has and before == _REGISTRY:
            raise BadInput(f"{PLUGINS} names {plugin}, which declares no scheme: give a subclass of Scheme a name")
    except BaseException:
        del sys.modules[name]
        raise


def is_ours(cls: type[Scheme]) -> bool:
    """Whether a scheme is one of this folder's."""
    return cls.__module__.startswith(f"{__name__}.")


def source_of(spec: str) -> dict[str, str]:
    """Names the file of a scheme that is not ours: once edited, it is another scheme."""
    cls = parse(spec)[0]
    return {"scheme_source": cls.file_hash} if cls.file_hash and not is_ours(cls) else {}


def options(cls: type[Scheme]) -> dict[str, inspect.Parameter]:
    """The keys a spec of this scheme may have, with their types and defaults."""
    with told(f"the types of scheme '{cls.name}' cannot be read"):
        hints, keys = typing.get_type_hints(cls.__init__), {}
    for place, (key, parameter) in enumerate(inspect.signature(cls.__init__).parameters.items()):
        if place > 2 and parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            raise BadInput(f"option '{key}' of scheme '{cls.name}' stands before the *: options come after it")
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            if key == "window":
                raise BadInput(f"scheme '{cls.name}' declares an option 'window', which every scheme has")
            if key not in hints or parameter.default is inspect.Parameter.empty:
                raise BadInput(f"option '{key}' of scheme '{cls.name}' is declared without a type or a default")
            keys[key] = parameter.replace(annotation=hints[key])
    window = inspect.Parameter("window", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=int | None)
    return {**keys, "window": window}


def parse(spec: str) -> tuple[type[Scheme], dict[str, Any]]:
    """The class and the options that differ from their defaults, keys sorted."""
    name, colon, rest = spec.strip().partition(":")
    schemes = registry()
    if name not in schemes:
        raise unknown("scheme", name, schemes, f"; {PLUGINS}=FILE.py adds yours")
    allowed = options(schemes[name])
    given: dict[str, Any] = {}
    for part in rest.split(",") if colon else []:
        key, equals, text = (piece.strip() for piece in part.partition("="))
        if key not in allowed:
            raise unknown(f"option of scheme '{name}'", key, allowed)
        if not equals or not text:
            raise BadInput(f"option '{key}' of scheme '{name}' wants a value: {name}:{key}=…")
        if key in given:
            raise BadInput(f"option '{key}' of scheme '{name}' is given twice")
        given[key] = _value(f"option '{key}' of scheme '{name}'", text, allowed[key].annotation)
    check_window(given.get("window"))
    return schemes[name], {key: given[key] for key in sorted(given) if given[key] != allowed[key].default}


WIDEST = 2**40


def check_window(window: int | None) -> None:
    """Refuse a window in which a query would not even see itself, or that no position can reach."""
    if window is not None and window < 1:
        raise BadInput(f"window is {window}: a query sees at least itself, so at least 1")
    if window is not None and window >= WIDEST:
        raise BadInput(f"window is {window}: less than {WIDEST} is needed; leave it out to see everything")


def _value(what: str, text: str, annotation: Any) -> Any:
    """Read one option's text as the type its constructor declares."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        choices = {spell(choice): choice for choice in args}
        known = choices | {str(choice): choice for choice in args}
        if text not in known:
            raise unknown(f"value of {what}:", text, choices)
        return known[text]
    if origin in (Union, types.UnionType):
        return _of_several(what, text, args)
    if annotation is str:
        return text
    if annotation is bool:
        if text not in ("true", "false"):
            raise BadInput(f"{what} wants true or false, got '{text}'")
        return text == "true"
    if annotation not in (int, float):
        raise BadInput(f"{what} is declared as {annotation}: a spec holds int, float, bool, str or Literal")
    try:
        value = annotation(text)
    except ValueError:
        wanted = "a whole number" if annotation is int else "a number"
        raise BadInput(f"{what} wants {wanted}, got '{text[:40]}'") from None
    if not abs(value) <= LARGEST:
        raise BadInput(f"{what} wants a finite number up to {LARGEST:g}, got '{text[:40]}'")
    return value


def _of_several(what: str, text: str, kinds: tuple[Any, ...]) -> Any:
    """The first of several types that it can be; none is spelt so."""
    *first, last = (kind for kind in kinds if kind is not types.NoneType)
    if text == "none" and types.NoneType in kinds:
        return None
    for kind in first:
        with suppress(BadInput):
            return _value(what, text, kind)
    return _value(what, text, last)


def spell(value: Any) -> str:
    """An option's value as a spec writes it."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def canonical(spec: str, window: int | None = None) -> str:
    """The one spelling of a spec: keys sorted, defaults dropped. A window given beside the spec joins it."""
    cls, given = parse(spec)
    if window is not None:
        if given.setdefault("window", window) != window:
            raise BadInput(f"two windows: {given['window']} in '{spec}' and {window} beside it")
        check_window(window)
    pairs = ",".join(f"{key}={spell(given[key])}" for key in sorted(given))
    return f"{cls.name}:{pairs}" if pairs else cls.name


def scheme(spec: str, heads: int, head_width: int) -> Scheme:
    """Build the scheme a spec names, for example scheme("sandwich:dims=64", heads=12, head_width=64)."""
    for what, value in (("heads", heads), ("head_width", head_width)):
        if not 1 <= value <= MOST:
            raise BadInput(f"{what} is {value}: from 1 to {MOST} is possible")
    cls, given = parse(spec)
    window = given.pop("window", None)
    with told(f"scheme '{spec}' cannot be built for {heads} heads of width {head_width}"):
        built = cls(heads, head_width, **given)
    built.spec, built.window = canonical(spec), window
    return built
