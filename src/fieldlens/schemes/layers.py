"""A scheme per layer: the modules of a layer pattern, and of schemes whose parameters differ between layers."""

from torch import Tensor, nn

from fieldlens.schemes.base import Scheme
from fieldlens.schemes.spec import canonical, cycle, parse, scheme


class LayerSchemes(Scheme):
    """The schemes of a decoder whose layers differ: layer n uses entry `index[n]`.

    The layers of one entry of the pattern share its parameters, unless its class is `per_layer`.
    """

    def __init__(self, spec: str, specs: list[str], index: list[int], heads: int, head_width: int) -> None:
        super().__init__(heads, head_width)
        self.spec, self.index = spec, index
        self.entries = nn.ModuleList(scheme(entry, heads, head_width) for entry in specs)

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

    def embedding(self, positions: Tensor) -> Tensor | None:
        """The sum of the embeddings of the schemes; a scheme adds its own once, however many layers and windows."""
        adding = {_without_window(entry.spec): entry for entry in reversed(self.distinct_schemes)}
        tables = [table for table in (entry.embedding(positions) for entry in adding.values()) if table is not None]
        return sum(tables[1:], tables[0]) if tables else None

    def project(self) -> None:
        for entry in self.distinct_schemes:
            entry.project()


def layer_schemes(spec: str, layers: int, heads: int, head_width: int) -> Scheme:
    """The scheme of a decoder with this number of layers: one module if every layer has the same, else one per entry.

    A pattern cycles from layer 0 and may end in mid-cycle; entries that no layer uses are not built.
    """
    pattern = cycle(spec)
    specs = [pattern[number % len(pattern)] for number in range(layers)]
    if len(set(specs)) == 1 and not parse(specs[0])[0].per_layer:
        return scheme(specs[0], heads, head_width)
    keys = [(entry, number if parse(entry)[0].per_layer else None) for number, entry in enumerate(specs)]
    distinct = list(dict.fromkeys(keys))
    index = [distinct.index(key) for key in keys]
    return LayerSchemes(canonical(spec), [entry for entry, _ in distinct], index, heads, head_width)


def _without_window(spec: str) -> str:
    cls, values = parse(spec)
    return f"{cls.name}:{sorted((key, value) for key, value in values.items() if key != 'window')}"
