"""The interface of causal language models for evaluation and measurement: token ids in, next-token logits out."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fieldlens.core.errors import BadInput
from fieldlens.schemes.window import check_window, min_window, window_reach

CLOSE = 1e-4
"""Tolerance between two computations of the same logits, relative to the largest logit."""


class ModelAdapter(ABC):
    """A causal language model under evaluation."""

    name: str
    vocab_size: int
    device: torch.device
    dtype: torch.dtype = torch.float32
    named_dtype: torch.dtype | None = None
    """The dtype in the configuration of the model, if any; the model may be loaded in another."""
    is_decoder = False
    """Whether the model is a decoder of this library."""
    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    parameters: int = 0
    """Number of parameters without the token embedding."""
    scores = False
    """Whether attention materialises the score of every pair of tokens."""
    train_length: int | None = None
    limit: int | None = None
    """Number of positions in a learned or fixed table: the maximum number of tokens."""
    windows: tuple[int | None, ...] = (None,)
    """The window of each layer."""
    find_tokenizer: Callable[[], Path] | None = None
    """Finds the folder of the model's tokenizer, if the model was loaded by name."""

    def __repr__(self) -> str:
        count = self.parameters or 0
        number = f"{count / 1e6:,.1f} M" if count >= 1e5 else f"{count:,}"
        size = f"{number} parameters" if count else "parameters unknown"
        trained = f", trained at {self.train_length:,} tokens" if self.train_length else ""
        return f"{type(self).__name__}({self.name}, {size}{trained}, {self.dtype}, {self.device})"

    def kernel(self, gradient: bool = False) -> str:
        """The attention kernel and why it is used, as results record it."""
        return "the model's own"

    @abstractmethod
    def logits(self, ids_BT: Tensor, keep: int, window: int | None, first: int) -> Iterator[Tensor]:
        """Logits after the last `keep` tokens, in chunks (B, t, V). `first` is the position of the first token."""

    def cache_size(self, tokens: int, window: int | None = None) -> int | None:
        """Bytes of the cache after `tokens` tokens of one text: Σ fixed + per_token · min(tokens, w) over its layers.

        None if unknown.
        """
        return None

    def fits_cropped(self, tokens: int, reach: int, window: int | None) -> bool:
        """Whether a text of `tokens` tokens, cropped to the last `reach`, gives the same last logits."""
        return True

    def check_window(self, window: int | None) -> None:
        """Raise `BadInput` for a window that the model does not support."""
        check_window(window)

    def reach(self, window: int | None = None) -> int | None:
        """Number of most recent tokens that the last logits can depend on: Σ(w - 1) + 1 over layers; None for all."""
        return window_reach([min_window(own, window) for own in self.windows])

    def noise(self, tokens: int) -> Tensor:
        """Two texts of random tokens with a fixed seed."""
        generator = torch.Generator().manual_seed(0)
        return torch.randint(self.vocab_size, (2, tokens), generator=generator).to(self.device)

    def check_ids(self, low: int, high: int) -> None:
        """Raise `BadInput` if the smallest or the largest token id of a text is outside the vocabulary."""
        if low < 0 or high >= self.vocab_size:
            wrong = low if low < 0 else high
            raise BadInput(f"token id {wrong} is outside the vocabulary of {self.vocab_size} tokens of {self.name}")

    def needed(self, tokens: int, keep: int, window: int | None) -> int:
        """Number of last tokens that are needed for the last `keep` logits."""
        reach = self.reach(window)
        if reach is None or tokens <= reach + keep - 1 or not self.fits_cropped(tokens, reach, window):
            return tokens
        return reach + keep - 1

    @torch.no_grad()
    def losses(self, ids_BT: Tensor, keep: int = 1, window: int | None = None) -> Tensor:
        """Negative log-likelihood in nats of the last `keep` tokens given all earlier ones: (B, keep), float64."""
        inputs_BT, targets_Bk = ids_BT[:, :-1].to(self.device), ids_BT[:, -keep:].to(self.device)
        tokens = inputs_BT.shape[1]
        needed = self.needed(tokens, keep, window)
        chunks, start = [], 0
        for logits_BtV in self.logits(inputs_BT[:, -needed:], keep, window, tokens - needed):
            wide_BtV = logits_BtV.to(torch.promote_types(logits_BtV.dtype, torch.float32))
            stop = start + wide_BtV.shape[1]
            target_logits_Bt = wide_BtV.gather(2, targets_Bk[:, start:stop, None])[..., 0]
            chunks.append(wide_BtV.logsumexp(2).double() - target_logits_Bt.double())
            start = stop
        assert start == keep
        return torch.cat(chunks, 1).cpu()


def weights_hash(module: nn.Module) -> str:
    """SHA-256 of the names, dtypes, shapes and values of all weights."""
    sha256 = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        flat = value.detach().cpu().contiguous()
        sha256.update(f"{name} {flat.dtype} {tuple(flat.shape)}".encode())
        sha256.update(
            flat.view(torch.uint8).numpy().data if flat.numel() and flat.ndim else str(flat.tolist()).encode()
        )
    return sha256.hexdigest()


def check_causal(adapter: ModelAdapter) -> None:
    """Raise `BadInput` if logits change when a later token changes."""
    tokens = min(8, adapter.limit or 8)
    ids_BT = adapter.noise(tokens)[:1].repeat(2, 1)
    ids_BT[1, -1] = (ids_BT[0, -1] + 1) % adapter.vocab_size
    if tokens < 2:
        return
    with torch.no_grad():
        logits_BTV = torch.cat(list(adapter.logits(ids_BT, tokens, None, 0)), 1)[:, :-1]
    if not close(logits_BTV[0], logits_BTV[1]):
        raise BadInput(f"{adapter.name} is not causal: its logits depend on later tokens")


def count_parameters(model: nn.Module, embedding: nn.Module) -> int:
    """Number of parameters without those of the token embedding."""
    excluded = {id(parameter) for parameter in embedding.parameters()}
    return sum(parameter.numel() for parameter in model.parameters() if id(parameter) not in excluded)


def close(a: Tensor, b: Tensor, slack: float = CLOSE) -> bool:
    """Whether two computations of the same logits agree up to the tolerance `slack`; NaN counts as 0."""
    a, b = a.double().nan_to_num(), b.double().nan_to_num()
    return bool((a - b).abs().max() <= slack * a.abs().max())


@contextmanager
def eval_mode(model: Any) -> Iterator[None]:
    """Context manager: restore the training mode of every module on exit."""
    modes = {module: module.training for module in model.modules()} if isinstance(model, nn.Module) else {}
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
