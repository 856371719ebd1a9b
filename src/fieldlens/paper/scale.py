"""The scaling rule: distances are in units of the training length, 512 in the paper.

The factor is the paper's training length over ours. Distances are divided by it; a slope of 2^-h becomes
2^-(h - log2 factor). A window is also multiplied by 12/R, so that R·w / L_tr is the paper's with any number of layers.
"""

import math
from typing import Any

from fieldlens.schemes.spec import canonical, parse, spell

TRAINED = 512
"""The paper's training length."""

LAYERS = 12
"""The paper's number of layers."""

LENGTHS = (512, 1024, 2048, 4096, 8192)


def spec_of(model: str) -> str:
    """The spec of a model named as in the printed numbers, with the paper's own distances."""
    kind, _, value = model.partition(":")
    prefixes = {"shift": "alibi:shift=", "same": "alibi:same=", "window": "none:window="}
    return canonical(prefixes[kind] + value) if kind in prefixes else canonical(model)


def scaled(spec: str, factor: float, layers: int = LAYERS) -> str:
    """Scale a spec with the paper's distances to a training length that is shorter by a factor, and to R layers."""
    cls, options = parse(spec)
    if "window" in options:
        options["window"] = max(1, round(options["window"] / factor * LAYERS / layers))
    if factor == 1:
        return _spec(cls.name, options)
    if cls.name == "alibi":
        key = "same" if "same" in options else "shift"
        options[key] = options.get(key, 0.0) - math.log2(factor)
        if "slope_floor" in options:
            options["slope_floor"] = round(options["slope_floor"] * factor, 12)
    if cls.name == "t5":  # buckets shrink with the square root, so that most stay distinct: 16 for a distance of 32
        options["max_distance"] = round(options.get("max_distance", 128) / factor)
        options["buckets"] = 2 * round(options.get("buckets", 32) / math.sqrt(factor) / 2)  # half are exact
    return _spec(cls.name, options)


def unscaled(spec: str, trained: int) -> str:
    """The control: the paper's own distances; a window of the training length or more is dropped."""
    cls, options = parse(spec)
    if options.get("window", 0) >= trained:
        return _spec(cls.name, {key: value for key, value in options.items() if key != "window"})
    return canonical(spec)


def _spec(name: str, options: dict[str, Any]) -> str:
    pairs = ",".join(f"{key}={spell(value)}" for key, value in options.items())
    return canonical(f"{name}:{pairs}" if pairs else name)


def option(spec: str) -> str:
    """The option that a column varies, as its heading shows it: w 40, Δ -3, h 0."""
    cls, options = parse(spec)
    if "window" in options:
        return f"w {options['window']}"
    if cls.name == "alibi":
        return f"h {spell(options['same'])}" if "same" in options else f"Δ {spell(options.get('shift', 0.0))}"
    return "no window" if cls.name == "none" else canonical(spec)


def heading(spec: str, our_spec: str) -> str:
    """A column heading with the paper's value and ours: w 40 | 10."""
    paper_option, our_option = option(spec), option(our_spec)
    symbol = paper_option.split()[0]
    same = our_option.split()[0] == symbol
    return f"{paper_option} | {our_option.removeprefix(symbol + ' ') if same else our_option}"
