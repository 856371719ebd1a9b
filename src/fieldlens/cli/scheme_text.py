"""fieldlens schemes --text: plots what schemes add to the scores of a text."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from fieldlens.models.decoder import Decoder

TEXT_LENGTH, MAX_LENGTH = 32, 2048
"""Number of tokens by default, and at most: each panel has the square of it."""


@dataclass(frozen=True)
class TextPlot:
    """The options of the command."""

    text: Path
    plot: Path
    specs: tuple[str, ...]
    model: str | None
    layer: int
    head: int | None
    heads: int
    head_width: int
    length: int


def draw_on_text(options: TextPlot) -> dict[str, Any]:
    """Write the plot, computed on the CPU in float64; return what the command prints."""
    from fieldlens.core.errors import BadInput
    from fieldlens.models.scheme_on_text import added_scores
    from fieldlens.reporting.plots import save
    from fieldlens.reporting.score_matrices import score_matrices

    if not 2 <= options.length <= MAX_LENGTH:
        raise BadInput(f"--length must be between 2 and {MAX_LENGTH:,} with --text, got {options.length}")
    if options.model is not None and options.specs:
        raise BadInput(f"pass schemes or --model, not both: got {', '.join(options.specs)} and {options.model}")
    decoders, ids_T, tokens = _trained(options) if options.model else _untrained(options)
    panels = []
    for name, decoder in decoders.items():
        heads = decoder.config.heads
        if options.head is not None and not 1 <= options.head <= heads:
            raise BadInput(f"--head must be between 1 and {heads}, the number of heads, got {options.head}")
        added_HTT = added_scores(decoder, ids_T, options.layer - 1)
        chosen = [options.head] if options.head else range(1, heads + 1) if len(decoders) == 1 else [heads]
        panels += [(f"{name}, head {head} of {heads}", added_HTT[head - 1]) for head in chosen]
    save(score_matrices(panels, tokens), options.plot)
    rows = [
        {"title": title, "lowest": round(float(seen.min()), 9), "highest": round(float(seen.max()), 9)}
        for title, seen in ((title, matrix_TT[~matrix_TT.isnan()]) for title, matrix_TT in panels)
    ]
    return {"text": str(options.text), "tokens": tokens, "panels": rows, "plot": str(options.plot)}


def _trained(options: TextPlot) -> tuple[dict[str, "Decoder"], "torch.Tensor", list[str]]:
    """The decoder of a run or model folder, and the beginning of the text in its tokens."""
    import torch

    from fieldlens.core.errors import BadInput
    from fieldlens.data.text import open_text, read_file
    from fieldlens.data.tokenizer import load_tokenizer, token_texts
    from fieldlens.models.adapters.decoder import DecoderAdapter
    from fieldlens.models.loading import load
    from fieldlens.models.origin import find_model

    assert options.model is not None
    origin = find_model(options.model)
    adapter = load(origin, torch.device("cpu"), torch.float64).adapter
    if not isinstance(adapter, DecoderAdapter):
        raise BadInput(f"{options.model} was not trained by fieldlens: its scheme is not known")
    ids_T = torch.from_numpy(read_file(open_text(options.text), origin.tokenizer).documents[0][: options.length])
    if len(ids_T) < 2:
        raise BadInput(f"{options.text} has fewer than 2 tokens")
    tokens = token_texts(load_tokenizer(origin.tokenizer), ids_T.tolist())
    decoder = adapter.decoder
    if not 1 <= options.layer <= decoder.config.layers:
        raise BadInput(f"--layer must be between 1 and {decoder.config.layers}, got {options.layer}")
    name = f"{decoder.scheme.of_layer(options.layer - 1).spec}, layer {options.layer}"
    return {name: decoder}, ids_T.long(), tokens


def _untrained(options: TextPlot) -> tuple[dict[str, "Decoder"], "torch.Tensor", list[str]]:
    """An untrained layer with each scheme, and the first bytes of the text."""
    import torch

    from fieldlens.core.errors import BadInput
    from fieldlens.data.text import open_text
    from fieldlens.models.decoder import Config, Decoder
    from fieldlens.schemes.spec import cycle

    if not options.specs:
        raise BadInput(
            "--text needs a scheme or --model, for example: fieldlens schemes fox --text FILE --plot text.png"
        )
    if options.layer != 1:
        raise BadInput(f"--layer {options.layer} needs --model: without it there is one layer")
    content = "".join(open_text(options.text).documents()).encode()[: options.length]
    if len(content) < 2:
        raise BadInput(f"{options.text} has fewer than 2 bytes")
    decoders = {}
    for entry in dict.fromkeys(entry for spec in options.specs for entry in cycle(spec)):
        torch.manual_seed(0)
        shape = {"layers": 1, "width": options.heads * options.head_width, "heads": options.heads, "vocab_size": 256}
        config = Config(scheme=entry, train_length=options.length, **shape)  # type: ignore[arg-type]
        decoders[f"{entry}, before training"] = Decoder(config).eval().double()
    return decoders, torch.tensor(list(content)), [chr(byte) if 32 < byte < 127 else "·" for byte in content]
