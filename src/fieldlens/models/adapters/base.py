"""A causal language model as evaluation and measurement see it: token ids in, next-token logits out."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fieldlens.core.errors import BadInput
from fieldlens.schemes.window import check_window, min_window

CLOSE = 1e-4
"""Two computations of the same logits differ by less, relative to the largest logit."""


class ModelAdapter(ABC):
    """A model to be examined."""

    name: str
    vocab_size: int
    device: torch.device
    dtype: torch.dtype = torch.float32
    named_dtype: torch.dtype | None = None
    """What its folder says it is to be run in, if it says so; we may have loaded it in another."""
    ours = False
    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    parameters: int = 0
    """Those that every token meets: all but the embedding's."""
    scores = False
    """Whether its attention holds a score for every pair of tokens."""
    train_length: int | None = None
    limit: int | None = None
    """Positions that the model has one by one, learned or in a table: it cannot take more tokens than that."""
    windows: tuple[int | None, ...] = (None,)
    """The window of each layer."""

    @abstractmethod
    def logits(self, ids_BT: Tensor, keep: int, window: int | None, first: int) -> Iterator[Tensor]:
        """Logits after the last `keep` tokens, in pieces (B, t, V). `first` is the first token's position."""

    def cache_size(self, tokens: int, window: int | None = None) -> int | None:
        """Bytes of a cache after so many tokens of one text: Σ fixed + each · min(tokens, w) over its layers.

        None if not known.
        """
        return None

    def fits_cropped(self, tokens: int, reach: int, window: int | None) -> bool:
        """Whether a text of so many tokens, cut down to what its end can see, gives the end's own logits."""
        return True

    def check_window(self, window: int | None) -> None:
        """Refuse a window that the model cannot be given."""
        check_window(window)

    def reach(self, window: int | None = None) -> int | None:
        """How many of the most recent tokens can move the last logits: Σ(w - 1) + 1 over layers; None for all."""
        widths = [min_window(own, window) for own in self.windows]
        return None if None in widths else sum(width - 1 for width in widths if width) + 1

    def noise(self, tokens: int) -> Tensor:
        """Two texts of so many random tokens, always the same."""
        chance = torch.Generator().manual_seed(0)
        return torch.randint(self.vocab_size, (2, tokens), generator=chance).to(self.device)

    def check_ids(self, low: int, high: int) -> None:
        """Refuse the smallest and the largest id of a text that are outside the vocabulary."""
        if low < 0 or high >= self.vocab_size:
            wrong = low if low < 0 else high
            raise BadInput(f"token id {wrong} is outside the vocabulary of {self.vocab_size} of {self.name}")

    def needed(self, tokens: int, keep: int, window: int | None) -> int:
        """How many of the last tokens are needed for the last `keep` logits."""
        reach = self.reach(window)
        if reach is None or tokens <= reach + keep - 1 or not self.fits_cropped(tokens, reach, window):
            return tokens
        return reach + keep - 1

    @torch.no_grad()
    def losses(self, ids_BT: Tensor, keep: int = 1, window: int | None = None) -> Tensor:
        """Negative log-likelihood of the last `keep` tokens, each given all before it, in nats: (B, keep) float64."""
        inputs_BT, targets_Bk = ids_BT[:, :-1].to(self.device), ids_BT[:, -keep:].to(self.device)
        tokens = inputs_BT.shape[1]
        needed = self.needed(tokens, keep, window)
        found, start = [], 0
        for logits_BtV in self.logits(inputs_BT[:, -needed:], keep, window, tokens - needed):
            wide = logits_BtV.to(torch.promote_types(logits_BtV.dtype, torch.float32))
            stop = start + wide.shape[1]
            picked_Bt = wide.gather(2, targets_Bk[:, start:stop, None])[..., 0]
            found.append(wide.logsumexp(2).double() - picked_Bt.double())
            start = stop
        assert start == keep
        return torch.cat(found, 1).cpu()


def weights_hash(module: nn.Module) -> str:
    """Names a model by its weights."""
    found = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        flat = value.detach().cpu().contiguous()
        found.update(f"{name} {flat.dtype} {tuple(flat.shape)}".encode())
        found.update(flat.view(torch.uint8).numpy().data if flat.numel() and flat.ndim else str(flat.tolist()).encode())
    return found.hexdigest()


def check_causal(adapter: ModelAdapter) -> None:
    """Refuse a model whose logits change when a later token does."""
    tokens = min(8, adapter.limit or 8)
    ids_BT = adapter.noise(tokens)[:1].repeat(2, 1)
    ids_BT[1, -1] = (ids_BT[0, -1] + 1) % adapter.vocab_size
    if tokens < 2:
        return
    with torch.no_grad():
        logits_BTV = torch.cat(list(adapter.logits(ids_BT, tokens, None, 0)), 1)[:, :-1]
    if not close(logits_BTV[0], logits_BTV[1]):
        raise BadInput(f"{adapter.name} is not causal: its prediction changes with a token that comes later")


def count_parameters(model: nn.Module, embedding: nn.Module) -> int:
    tokens = {id(parameter) for parameter in embedding.parameters()}
    return sum(parameter.numel() for parameter in model.parameters() if id(parameter) not in tokens)


def close(a: Tensor, b: Tensor, slack: float = CLOSE) -> bool:
    """Whether two computations of the same logits agree; what is no number in both agrees too."""
    a, b = a.double().nan_to_num(), b.double().nan_to_num()
    return bool((a - b).abs().max() <= slack * a.abs().max())


@contextmanager
def eval_mode(model: Any) -> Iterator[None]:
    """While this holds a module is in evaluation mode; afterwards as it was."""
    modes = {module: module.training for module in model.modules()} if isinstance(model, nn.Module) else {}
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
