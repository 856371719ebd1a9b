"""A scheme per layer: the modules of a layer pattern, and of schemes whose parameters differ between layers."""

from torch import Tensor, nn

from fieldlens.schemes.base import Scheme
from fieldlens.schemes.softmax_options import needs_copies
from fieldlens.schemes.spec import COMMON, canonical, cycle, parse, scheme


class LayerSchemes(Scheme):
    """The schemes of a decoder whose layers differ: layer n uses entry `index[n]`.

    The layers of one entry of the pattern share its parameters, unless its class is `per_layer`.
    """

    def __init__(self, spec: str, entries: list[Scheme], index: list[int]) -> None:
        super().__init__(entries[0].heads, entries[0].head_width)
        self.spec, self.index, self.entries = spec, index, nn.ModuleList(entries)

    @property
    def distinct_schemes(self) -> list[Scheme]:
        return [self.of_layer(self.index.index(entry)) for entry in range(len(self.entries))]

    def of_layer(self, number: int) -> Scheme:
        entry = self.entries[self.index[number]]
        assert isinstance(entry, Scheme)
        return entry

    @property
    def relative(self) -> bool:  # type: ignore[override]
        return all(entry.relative for entry in self.distinct_schemes)

    @property
    def exact_with_cache(self) -> bool:  # type: ignore[override]
        return all(entry.exact_with_cache for entry in self.distinct_schemes)

    @property
    def exact_reach(self) -> bool:  # type: ignore[override]
        return all(entry.exact_reach for entry in self.distinct_schemes)

    def embedding(self, positions: Tensor) -> Tensor | None:
        """The sum of the embeddings of the schemes; a scheme adds its own once, whatever its layers and windows."""
        adding = {_own_options(entry.spec): entry for entry in reversed(self.distinct_schemes)}
        tables = [table for table in (entry.embedding(positions) for entry in adding.values()) if table is not None]
        return sum(tables[1:], tables[0]) if tables else None

    def project(self) -> None:
        for entry in self.distinct_schemes:
            entry.project()


def layer_schemes(spec: str, layers: int, heads: int, head_width: int, train_length: int | None) -> Scheme:
    """The scheme of a decoder with this number of layers: one module if every layer has the same, else one per entry.

    A pattern cycles from layer 0 and may end in mid-cycle; entries that no layer uses are not built.
    """
    pattern = cycle(spec)
    specs = [pattern[number % len(pattern)] for number in range(layers)]
    keys = [(entry, number if _per_layer(entry) else None) for number, entry in enumerate(specs)]
    distinct = list(dict.fromkeys(keys))
    entries = [scheme(entry, heads, head_width, train_length) for entry, _ in distinct]
    if len(entries) == 1 and keys[0][1] is None:
        return entries[0]
    return LayerSchemes(canonical(spec), entries, [distinct.index(key) for key in keys])


def _per_layer(spec: str) -> bool:
    """Whether each layer with this spec has its own parameters."""
    cls, values = parse(spec)
    return cls.per_layer or needs_copies(values.get("logits", "none"), values.get("sink", "none"))


def _own_options(spec: str) -> str:
    """A spec without the options that every scheme has."""
    cls, values = parse(spec)
    return f"{cls.name}:{sorted((key, value) for key, value in values.items() if key not in COMMON)}"
