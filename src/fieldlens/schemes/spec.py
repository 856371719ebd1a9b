"""Parsing of specs: `name[:key=value[,key=value…]]` for a scheme, `[count*]spec/[count*]spec…` for a layer pattern."""

import inspect
import re
import types
import typing
from contextlib import suppress
from itertools import groupby
from typing import Any, Literal, Union

from fieldlens.core.errors import BadInput, reraise_as_bad_input, unknown
from fieldlens.schemes.base import MAX_SIZE, Scheme
from fieldlens.schemes.discovery import PLUGINS, is_built_in, registry
from fieldlens.schemes.softmax_options import LogitScaling, Sink, SoftmaxOptions
from fieldlens.schemes.window import check_window

MAX_VALUE = 1e12
"""Maximum absolute value of a numeric option."""

MAX_CYCLE = 1024
"""Maximum number of layers in one cycle of a layer pattern."""


COMMON = {
    name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    for name, default, annotation in (
        ("logits", "none", LogitScaling),
        ("sink", "none", Sink),
        ("window", None, int | None),
    )
}
"""Options of every scheme."""


def options(cls: type[Scheme]) -> dict[str, inspect.Parameter]:
    """Options of a scheme by name, with their types and defaults: its keyword-only arguments, and `COMMON`."""
    keys = keyword_options("scheme", cls, positional=2)
    for key in keys.keys() & COMMON.keys():
        raise BadInput(f"scheme '{cls.name}' declares an option '{key}', which every scheme already has")
    return keys | COMMON


def keyword_options(kind: str, cls: Any, positional: int) -> dict[str, inspect.Parameter]:
    """Keyword-only arguments of a class whose instances are built from specs, after its positional arguments."""
    with reraise_as_bad_input(f"cannot read the type hints of {kind} '{cls.name}'"):
        hints, keys = typing.get_type_hints(cls.__init__), {}
    for index, (key, parameter) in enumerate(inspect.signature(cls.__init__).parameters.items()):
        if index > positional and parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            raise BadInput(f"option '{key}' of {kind} '{cls.name}' is not keyword-only: declare it after the *")
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            if key not in hints or parameter.default is inspect.Parameter.empty:
                raise BadInput(f"option '{key}' of {kind} '{cls.name}' needs a type hint and a default")
            keys[key] = parameter.replace(annotation=hints[key])
    return keys


def parse(spec: str) -> tuple[type[Scheme], dict[str, Any]]:
    """The class of a spec, and its options that differ from their defaults, sorted by key; not of a layer pattern."""
    if "/" in spec:
        raise BadInput(f"'{spec}' is not one scheme: {_PATTERN_FORM}")
    name = spec.strip().partition(":")[0]
    schemes = registry()
    if name not in schemes:
        raise unknown("scheme", name, schemes, f"; set {PLUGINS}=FILE.py to add your own")
    allowed = options(schemes[name])
    values = parse_options("scheme", spec, allowed)
    check_window(values.get("window"))
    return schemes[name], {key: values[key] for key in sorted(values) if values[key] != allowed[key].default}


def parse_options(kind: str, spec: str, allowed: dict[str, inspect.Parameter]) -> dict[str, Any]:
    """The options that a spec states, converted to their types."""
    name, colon, rest = spec.strip().partition(":")
    values: dict[str, Any] = {}
    for part in rest.split(",") if colon else []:
        key, equals, text = (piece.strip() for piece in part.partition("="))
        if key not in allowed:
            raise unknown(f"{name} option", key, allowed)
        if not equals or not text:
            raise BadInput(f"option '{key}' of {kind} '{name}' has no value: write {name}:{key}=VALUE")
        if key in values:
            raise BadInput(f"option '{key}' of {kind} '{name}' is given twice")
        values[key] = _parse_value(f"option '{key}' of {kind} '{name}'", text, allowed[key].annotation)
    return values


def _parse_value(option: str, text: str, annotation: Any) -> Any:
    """Convert the text of an option to its annotated type."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        choices = {spell(choice): choice for choice in args}
        spellings = choices | {str(choice): choice for choice in args}
        if text not in spellings:
            raise unknown(f"value of {option}:", text, choices)
        return spellings[text]
    if origin in (Union, types.UnionType):
        return _parse_union(option, text, args)
    if annotation is str:
        return text
    if annotation is bool:
        if text not in ("true", "false"):
            raise BadInput(f"{option} must be true or false, got '{text}'")
        return text == "true"
    if annotation not in (int, float):
        raise BadInput(f"{option} has the type {annotation}: use int, float, bool, str, Literal or a union of these")
    try:
        value = annotation(text)
    except ValueError:
        expected = "an integer" if annotation is int else "a number"
        raise BadInput(f"{option} must be {expected}, got '{text[:40]}'") from None
    if not abs(value) <= MAX_VALUE:
        raise BadInput(f"{option} must be between -{MAX_VALUE:g} and {MAX_VALUE:g}, got '{text[:40]}'")
    return value


def _parse_union(option: str, text: str, kinds: tuple[Any, ...]) -> Any:
    """Convert the text to the first type of a union that accepts it; None is written `none`."""
    *first, last = (kind for kind in kinds if kind is not types.NoneType)
    if text == "none" and types.NoneType in kinds:
        return None
    for kind in first:
        with suppress(BadInput):
            return _parse_value(option, text, kind)
    return _parse_value(option, text, last)


def spell(value: Any) -> str:
    """The text of an option's value in a spec."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


_PATTERN_FORM = "a pattern such as 3*rotary:window=64/none cycles over the layers of a decoder"


def cycle(spec: str, window: int | None = None) -> list[str]:
    """The canonical spec of each layer in one cycle of a layer pattern; a list of one for a single scheme."""
    entries: list[str] = []
    for part in spec.split("/"):
        count, star, entry = part.rpartition("*")
        if star and not re.fullmatch(r"\s*[1-9]\d{0,3}\s*", count):
            raise BadInput(
                f"'{part.strip()}' in '{spec}' must be COUNT*SPEC with a count from 1 to {MAX_CYCLE}: {_PATTERN_FORM}"
            )
        if "/" in spec and not entry.strip():
            raise BadInput(f"'{spec}' lacks a scheme before or after a slash: {_PATTERN_FORM}")
        entries += [_canonical(entry, window)] * int(count or 1)
    if len(entries) > MAX_CYCLE:
        raise BadInput(f"the layer pattern '{spec[:40]}…' has {len(entries)} layers, more than {MAX_CYCLE}")
    periods = (n for n in range(1, len(entries) + 1) if not len(entries) % n)
    return next(entries[:n] for n in periods if entries[:n] * (len(entries) // n) == entries)


def canonical(spec: str, window: int | None = None) -> str:
    """The canonical form of a spec or pattern: keys sorted, defaults dropped, the `window` argument included."""
    runs = ((entry, len(list(run))) for entry, run in groupby(cycle(spec, window)))
    entries = [(f"{count}*{entry}", entry, count) for entry, count in runs]
    return entries[0][1] if len(entries) == 1 else "/".join(text if n > 1 else entry for text, entry, n in entries)


def family(spec: str) -> str:
    """The name of the scheme of a spec; of a layer pattern, that of its first layer."""
    return spec.partition("/")[0].rpartition("*")[2].partition(":")[0].strip()


def _canonical(spec: str, window: int | None) -> str:
    """The canonical form of the spec of one scheme."""
    cls, values = parse(spec)
    if window is not None:
        if values.setdefault("window", window) != window:
            raise BadInput(f"conflicting windows: {values['window']} in '{spec}', but window={window}")
        check_window(window)
    pairs = ",".join(f"{key}={spell(values[key])}" for key in sorted(values))
    return f"{cls.name}:{pairs}" if pairs else cls.name


def scheme(spec: str, heads: int, head_width: int, train_length: int | None = None) -> Scheme:
    """Build a scheme from its spec, for example scheme("sandwich:dims=64", heads=12, head_width=64).

    Some schemes need the training length. A layer pattern is not one scheme: `Config` takes it.
    """
    for name, value in (("heads", heads), ("head_width", head_width)):
        if not 1 <= value <= MAX_SIZE:
            raise BadInput(f"{name} must be between 1 and {MAX_SIZE}, got {value}")
    spec, *others = cycle(spec)
    if others:
        raise BadInput(f"'{canonical('/'.join([spec, *others]))}' is not one scheme: {_PATTERN_FORM}")
    cls, values = parse(spec)
    window, logits, sink = (values.pop(key, COMMON[key].default) for key in ("window", "logits", "sink"))
    with reraise_as_bad_input(f"cannot build scheme '{spec}' for {heads} heads of width {head_width}"):
        module = cls(heads, head_width, **values)
        if (vars(module).get("heads"), vars(module).get("head_width")) != (heads, head_width):
            raise BadInput(f"scheme '{cls.name}' must call super().__init__(heads, head_width) in its __init__")
        module.spec, module.window, module.train_length = spec, window, train_length
        if (logits, sink) != ("none", "none"):
            module.softmax_options = SoftmaxOptions(heads, logits, sink, train_length)
        module.prepare()
    return module


def source_of(spec: str) -> dict[str, str]:
    """Source hash of user-defined schemes, under the key `scheme_source`; empty for built-in schemes.

    For a layer pattern: `name=hash` of each user-defined scheme in it.
    """
    classes = {cls.name: cls for cls in (parse(entry)[0] for entry in cycle(spec))}
    own = {name: cls for name, cls in sorted(classes.items()) if cls.file_hash and not is_built_in(cls)}
    if not own:
        return {}
    hashes = [cls.file_hash if len(classes) == 1 else f"{name}={cls.file_hash}" for name, cls in own.items()]
    return {"scheme_source": ",".join(hashes)}


def has_source(spec: str, source: str) -> bool:
    """Whether the schemes of a spec are defined as when `source_of` recorded this source, here or in this package."""
    hashes = {cls.name: cls.file_hash for cls in (parse(entry)[0] for entry in cycle(spec))}
    if "=" not in source:
        return set(hashes.values()) == {source}
    return all(hashes.get(name) == file_hash for name, file_hash in (pair.split("=") for pair in source.split(",")))
