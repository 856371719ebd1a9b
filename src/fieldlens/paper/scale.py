"""The scaling rule: distances are in units of the training length, 512 in the paper.

A factor is how many times shorter the training length is here. Where distances are a factor shorter, a slope of 2^-h
is one of 2^-(h - log2 factor). The number of layers stays, so that a window keeps R·w / L_tr.
"""

import math

from fieldlens.schemes.spec import canonical, parse, spell

TRAINED = 512
"""The paper's training length."""

LENGTHS = (512, 1024, 2048, 4096, 8192)


def spec_of(model: str) -> str:
    """The spec of a model as the printed numbers name it, with the paper's own distances."""
    kind, _, value = model.partition(":")
    named = {"shift": "alibi:shift=", "same": "alibi:same=", "window": "none:window="}
    return canonical(named[kind] + value) if kind in named else canonical(model)


def scaled(spec: str, factor: float) -> str:
    """A spec with the paper's distances, for a training length that is a factor shorter."""
    cls, given = parse(spec)
    if factor == 1:
        return canonical(spec)
    if "window" in given:
        given["window"] = max(1, round(given["window"] / factor))
    if cls.name == "alibi":
        key = "same" if "same" in given else "shift"
        given[key] = given.get(key, 0.0) - math.log2(factor)
        if "slope_floor" in given:
            given["slope_floor"] = round(given["slope_floor"] * factor, 12)
    if cls.name == "t5":  # as many buckets as keep most of them distinct: half of 32 for a quarter of 128
        given["max_distance"] = round(given.get("max_distance", 128) / factor)
        given["buckets"] = round(given.get("buckets", 32) / math.sqrt(factor))
    pairs = ",".join(f"{key}={spell(value)}" for key, value in given.items())
    return canonical(f"{cls.name}:{pairs}" if pairs else cls.name)


def unscaled(spec: str, trained: int) -> str:
    """The control: the paper's own distances; a window that reaches as far as the training length is none."""
    cls, given = parse(spec)
    if given.get("window", 0) >= trained:
        pairs = ",".join(f"{key}={spell(value)}" for key, value in given.items() if key != "window")
        return canonical(f"{cls.name}:{pairs}" if pairs else cls.name)
    return canonical(spec)


def option(spec: str) -> str:
    """What a column varies, as its heading writes it: w 40, Δ -3, h 0."""
    cls, given = parse(spec)
    if "window" in given:
        return f"w {given['window']}"
    if cls.name == "alibi":
        return f"h {spell(given['same'])}" if "same" in given else f"Δ {spell(given.get('shift', 0.0))}"
    return "no window" if cls.name == "none" else canonical(spec)


def heading(spec: str, ours: str) -> str:
    """Both values: the paper's, and ours."""
    there, here = option(spec), option(ours)
    shared = there.split()[0]
    return f"{there} | {here.removeprefix(shared + ' ')}" if here.split()[0] == shared else f"{there} | {here}"
