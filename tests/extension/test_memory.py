"""Memory of a forward pass with a method: no tensor of heads × tokens × tokens, and growth linear in the tokens."""

from typing import Any

import families
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fieldlens.extension import attention
from fieldlens.extension.attach import attached
from fieldlens.extension.discovery import build
from fieldlens.models.adapters.adapt import adapt
from fieldlens.models.decoder import Config, Decoder

HEADS, TRAINED, TOKENS = 8, 64, 512
METHODS = ["self-extend", "rerope:leak=4", "streaming", "window", "yarn", "linear", "ntk", "dynamic-ntk"]


class Largest(TorchDispatchMode):
    """Notes the largest number of bytes that a storage made by any operation has."""

    bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        sizes = [leaf.untyped_storage().nbytes() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.bytes = max([self.bytes, *sizes])
        return result


def model(kind: str) -> Any:
    """A narrow model: tensors of heads × tokens × tokens are far larger than those of its layers."""
    torch.manual_seed(0)
    if kind == "decoder":
        sizes = {"layers": 2, "width": 32, "heads": HEADS, "vocab_size": 53}
        return Decoder(Config(scheme="rotary", train_length=TRAINED, **sizes)).eval()
    sizes = {"hidden_size": 32, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": 4}
    return families.build("llama", num_hidden_layers=1, intermediate_size=64, max_position_embeddings=TRAINED, **sizes)


def largest(adapter: Any, tokens: int, gradient: bool) -> int:
    ids_BT = adapter.noise(tokens)[:1]
    with torch.set_grad_enabled(gradient), Largest() as mode:
        logits = next(adapter.logits(ids_BT, 1, None, 0))
        if gradient:
            logits.sum().backward()
    return mode.bytes


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("spec", METHODS)
@pytest.mark.parametrize("kind", ["decoder", "llama"])
def test_memory_grows_linearly(kind: str, spec: str, gradient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "ROWS", 32)
    monkeypatch.setattr(attention, "FUSED_ROWS", 32)
    adapter = adapt(model(kind))
    with attached(adapter, build(spec, TRAINED)) as extended:
        short, long = (largest(extended, tokens, gradient) for tokens in (TOKENS // 2, TOKENS))
    assert long < 4 * HEADS * TOKENS * TOKENS / 2  # scores in float32 would have twice as many bytes
    if (kind, spec) != ("llama", "window"):  # the mask of a window in transformers is tokens × tokens, for all heads
        assert long <= 2.2 * short
