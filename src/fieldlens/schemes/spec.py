"""The spec text that names a scheme and its options: `name[:key=value[,key=value…]]`."""

import inspect
import types
import typing
from contextlib import suppress
from typing import Any, Literal, Union

from fieldlens.core.errors import BadInput, reraise_as_bad_input, unknown
from fieldlens.schemes.base import MOST, Scheme
from fieldlens.schemes.discovery import PLUGINS, is_built_in, registry
from fieldlens.schemes.window import check_window

LARGEST = 1e12
"""No option of a spec is larger than this."""


def options(cls: type[Scheme]) -> dict[str, inspect.Parameter]:
    """The keys a spec of this scheme may have, with their types and defaults."""
    with reraise_as_bad_input(f"the types of scheme '{cls.name}' cannot be read"):
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
    with reraise_as_bad_input(f"scheme '{spec}' cannot be built for {heads} heads of width {head_width}"):
        built = cls(heads, head_width, **given)
    built.spec, built.window = canonical(spec), window
    return built


def source_of(spec: str) -> dict[str, str]:
    """Names the file of a scheme that is not ours: once edited, it is another scheme."""
    cls = parse(spec)[0]
    return {"scheme_source": cls.file_hash} if cls.file_hash and not is_built_in(cls) else {}
