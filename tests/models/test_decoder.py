"""The decoder: the shape of the paper, its entry points, and invalid input."""

import math

import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

import fieldlens
from fieldlens.core.errors import BadInput

SMALL = {"layers": 2, "width": 32, "heads": 4, "vocab_size": 60}


def test_the_papers_model_has_162_322_944_parameters() -> None:
    with torch.device("meta"):
        model = fieldlens.Decoder(fieldlens.Config(scheme="none"))
    assert sum(parameter.numel() for parameter in model.parameters()) == 162_322_944


def test_a_tied_head_is_counted_once() -> None:
    tied, untied = (fieldlens.Decoder(fieldlens.Config(tied=tied, **SMALL)) for tied in (True, False))
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (tied, untied)]
    assert counts[1] - counts[0] == 60 * 32
    assert tied.head.weight is tied.embedding.weight


def test_initialisation() -> None:
    model = fieldlens.Decoder(fieldlens.Config(scheme="none", layers=8, width=256, heads=4, vocab_size=4096))
    residual = 0.02 / math.sqrt(16)
    model.requires_grad_(False)
    for name, expected in (("qkv", 0.02), ("attention_out", residual), ("mlp_in", 0.02), ("mlp_out", residual)):
        layer = getattr(model.blocks[0], name)
        assert float(layer.weight.std()) == pytest.approx(expected, rel=0.02)
        assert not layer.bias.any()
    assert float(model.embedding.weight.std()) == pytest.approx(0.02, rel=0.02)
    assert float(model.head.weight.std()) == pytest.approx(0.02, rel=0.02)
    assert model.head.bias is None


def test_rotary_decoder_is_transformers_gpt_neox() -> None:
    """An independent implementation of the same architecture, weights copied over."""
    model = fieldlens.Decoder(fieldlens.Config(scheme="rotary", init_std=0.2, **SMALL)).eval()
    config = GPTNeoXConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        hidden_act="gelu",
        use_parallel_residual=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
    )
    neox = GPTNeoXForCausalLM(config).eval()
    with torch.no_grad():
        neox.gpt_neox.embed_in.weight.copy_(model.embedding.weight)
        neox.lm_head.weight.copy_(model.head.weight)
        for block, layer in zip(model.blocks, neox.gpt_neox.layers, strict=True):
            for source, target in (
                (block.attention_out, layer.attention.dense),
                (block.mlp_in, layer.mlp.dense_h_to_4h),
                (block.mlp_out, layer.mlp.dense_4h_to_h),
            ):
                target.load_state_dict(source.state_dict())
            for kind in ("weight", "bias"):  # GPT-NeoX interleaves q, k and v by head
                by_head = getattr(block.qkv, kind).unflatten(0, (3, 4, 8)).transpose(0, 1).flatten(0, 2)
                getattr(layer.attention.query_key_value, kind).copy_(by_head)
    ids = torch.randint(60, (2, 50))
    with torch.no_grad():
        assert (model(ids) - neox(ids).logits).abs().max() < 1e-4


def test_embeddings_can_replace_ids() -> None:
    model = fieldlens.Decoder(fieldlens.Config(scheme="sinusoidal", **SMALL))
    ids = torch.randint(60, (2, 9))
    assert torch.equal(model(embeddings_BTD=model.embed(ids)), model(ids))


def test_positions_are_arguments() -> None:
    """Sinusoidal embeddings use `positions`, not the indices of the tensor."""
    model = fieldlens.Decoder(fieldlens.Config(scheme="sinusoidal", **SMALL))
    ids = torch.randint(60, (1, 6))
    shifted = model(ids, positions=torch.arange(3, 9))
    by_hand = model.embed(ids) + model.scheme.embedding(torch.arange(3, 9)).float()
    zero = model.scheme.embedding(torch.arange(6)).float()
    assert (model(embeddings_BTD=by_hand - zero) - shifted).abs().max() < 1e-5


@pytest.mark.parametrize(("window", "own"), [(3, None), (3, 5), (5, 3), (None, 3)])
def test_the_smaller_window_applies(window: int | None, own: int | None) -> None:
    weights = fieldlens.Decoder(fieldlens.Config(scheme="alibi", init_std=0.2, **SMALL)).state_dict()
    wide = fieldlens.Decoder(fieldlens.Config(scheme="alibi", window=own, **SMALL))
    narrow = fieldlens.Decoder(fieldlens.Config(scheme="alibi", window=3, **SMALL))
    wide.load_state_dict(weights)
    narrow.load_state_dict(weights)
    ids = torch.randint(60, (1, 20))
    assert torch.equal(wide(ids, window=window), narrow(ids))


def test_config_holds_one_window_and_one_spelling() -> None:
    config = fieldlens.Config(scheme="alibi:slopes=paper,shift=2.0", window=8)
    assert (config.scheme, config.window, config.mlp_width) == ("alibi:shift=2,window=8", 8, 3072)
    assert fieldlens.Config(scheme="alibi:window=8").window == 8
    assert fieldlens.Config(scheme=config.scheme, window=8) == config


def test_last_position_mode_computes_less() -> None:
    """With a window the bottom layer reads R(w-1)+1 tokens, however long the text; the top layer has one query."""
    model = fieldlens.Decoder(fieldlens.Config(scheme="none", window=4, **SMALL))
    counts: list[tuple[int, int]] = []
    for block in model.blocks:
        block.register_forward_hook(lambda _, inputs, output: counts.append((inputs[0].shape[1], output.shape[1])))
    assert model(torch.randint(60, (1, 500)), last=True).shape == (1, 1, 60)
    assert counts == [(7, 4), (4, 1)]


@pytest.mark.parametrize("window", [None, 3])
def test_a_replaced_projection_is_used_in_last_position_mode(window: int | None) -> None:
    """As with LoRA adapters: the projection plus another layer."""

    class Adapted(torch.nn.Module):
        def __init__(self, base: torch.nn.Module) -> None:
            super().__init__()
            self.base, self.more = base, torch.nn.Linear(32, 96)

        def forward(self, x_BSD: torch.Tensor) -> torch.Tensor:
            return self.base(x_BSD) + self.more(x_BSD)

    model, ids_BT = (
        fieldlens.Decoder(fieldlens.Config(scheme="alibi", window=window, **SMALL)),
        torch.randint(60, (2, 9)),
    )
    for block in model.blocks:
        block.qkv = Adapted(block.qkv)
    assert (model(ids_BT, last=True) - model(ids_BT)[:, -1:]).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 30}, "width 30 is not a multiple of heads 4"),
        ({"layers": 0}, "layers must be an integer of at least 1, got 0"),
        ({"vocab_size": -5}, "vocab_size must be an integer of at least 1, got -5"),
        ({"mlp_width": 0}, "mlp_width must be an integer of at least 1, got 0"),
        ({"layers": 2.5}, "layers must be an integer of at least 1, got 2.5"),
        ({"init_std": -1.0}, "init_std must be greater than 0, got -1"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"train_length": 0}, "train_length must be an integer of at least 1, got 0"),
        ({"train_length": 2.5}, "train_length must be an integer of at least 1, got 2.5"),
        ({"scheme": "sandwhich"}, "did you mean 'sandwich'"),
        ({"scheme": "rotary", "width": 36}, "head width must be even, got 9"),
    ],
)
def test_bad_shapes_are_rejected(changes: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        fieldlens.Decoder(fieldlens.Config(**{**SMALL, **changes}))


def test_bad_calls_are_rejected() -> None:
    model = fieldlens.Decoder(fieldlens.Config(**SMALL))
    ids = torch.tensor([[1, 2, 3]])
    with pytest.raises(BadInput, match="token id 60 is outside the vocabulary of 60"):
        model(torch.tensor([[1, 60]]))
    with pytest.raises(BadInput, match="token id -1 is outside"):
        model(torch.tensor([[-1, 6]]))
    with pytest.raises(BadInput, match=r"tokens >= 1, 32\), got \(1, 0, 32\)"):
        model(ids[:, :0])
    with pytest.raises(BadInput, match=r"positions has shape \(5,\), expected \(3,\) or \(1, 3\)"):
        model(ids, positions=torch.arange(5))
    with pytest.raises(BadInput, match=r"positions must be integers, got torch\.float32"):
        model(torch.zeros(1, 3, dtype=torch.long), positions=torch.tensor([0, 0.5, 1]))
    with pytest.raises(BadInput, match="cache and key_positions must be passed together"):
        model(ids, key_positions=torch.arange(3))
    with pytest.raises(BadInput, match=r"token ids must be integers of shape \(batch, tokens\)"):
        model(ids[0])
    with pytest.raises(BadInput, match="embeddings must have shape"):
        model(embeddings_BTD=torch.zeros(1, 3, 31))
    with pytest.raises(BadInput, match="exactly one of token ids and embeddings"):
        model(ids, embeddings_BTD=model.embed(ids))
    with pytest.raises(BadInput, match="window must be at least 1, got 0"):
        model(ids, window=0)
