"""The parts of a Sinusoidal model's scores sum to its scores, and each is what its name says."""

import pytest
import torch

from fieldlens.core.errors import BadInput
from fieldlens.models.decoder import Config, Decoder
from fieldlens.paper.score_parts import PARTS, first_layer_scores, summarise

LENGTH = 12


def sinusoidal() -> Decoder:
    decoder = Decoder(Config(scheme="sinusoidal", layers=1, width=16, heads=2, vocab_size=30, init_std=0.5))
    for parameter in decoder.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 0.3, 0.5)  # gains and biases that are not 1 and 0
    return decoder.double()


def scores(decoder: Decoder, ids: torch.Tensor) -> torch.Tensor:
    """q·k/√K of the first layer, by the modules themselves."""
    block = decoder.blocks[0]
    positions = torch.arange(ids.shape[1])
    normed = block.attention_norm(decoder.embed(ids) + decoder.scheme.embedding(positions))
    query, key, _ = (x.unflatten(-1, (2, 8)).transpose(1, 2) for x in block.qkv(normed).chunk(3, -1))
    return query @ key.transpose(2, 3) / 8**0.5


def test_the_parts_sum_to_the_scores() -> None:
    decoder, ids = sinusoidal(), torch.randint(30, (3, LENGTH))
    parts = first_layer_scores(decoder, ids)
    assert tuple(parts) == PARTS
    assert (sum(parts.values()) - scores(decoder, ids)).abs().max() < 1e-12


def test_without_token_embeddings_no_score_is_semantic_or_cross() -> None:
    decoder, ids = sinusoidal(), torch.randint(30, (1, LENGTH))
    torch.nn.init.zeros_(decoder.embedding.weight)
    parts = first_layer_scores(decoder, ids)
    assert parts["semantic"].abs().max() == parts["cross"].abs().max() == 0
    assert parts["positional"].abs().max() > 0.1


def test_shares_sum_to_one_and_curves_have_every_distance() -> None:
    decoder, ids = sinusoidal(), torch.randint(30, (3, LENGTH))
    embedding = decoder.scheme.embedding(torch.arange(LENGTH))
    summary = summarise(first_layer_scores(decoder, ids), slice(6, LENGTH), embedding)
    assert sum(summary.shares.values()) == pytest.approx(1)
    assert all(len(curve) == 7 for curve in summary.curves.values())
    assert sum(summary.curves["positional"]) != 0


def test_identity_projections_give_the_inner_products_of_the_paper() -> None:
    """With W_q = W_k = I, no gain and no biases, the positional part is p_m · p_n up to its scale."""
    decoder, ids = sinusoidal(), torch.zeros(1, LENGTH, dtype=torch.long)
    block = decoder.blocks[0]
    torch.nn.init.zeros_(decoder.embedding.weight)
    block.attention_norm.weight.data.fill_(1)
    block.attention_norm.bias.data.zero_()
    block.qkv.bias.data.zero_()
    block.qkv.weight.data.copy_(torch.eye(16).repeat(3, 1))
    embedding = decoder.scheme.embedding(torch.arange(LENGTH))
    centred = embedding - embedding.mean(-1, keepdim=True)
    summary = summarise(first_layer_scores(decoder, ids), slice(LENGTH - 1, LENGTH), centred)
    assert summary.similarity > 0.95  # not 1: the layer norm divides each position by its own σ
    assert summary.shares["positional"] == pytest.approx(1)


def test_a_scheme_without_position_embeddings_is_refused() -> None:
    decoder = Decoder(Config(scheme="alibi", layers=1, width=16, heads=2, vocab_size=30))
    with pytest.raises(BadInput, match="adds no position embeddings: use a sinusoidal model"):
        first_layer_scores(decoder, torch.zeros(1, 4, dtype=torch.long))
