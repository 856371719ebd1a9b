"""Attention of the last query only, in the top layer of a transformers model.

The logits of the last position need only the last query of the top layer, in forward and backward. The other rows are
zero. This is exact if nothing above that attention mixes positions, which EmbeddingHook.check verifies on the logits.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class LastQuery(TorchFunctionMode):
    """Context in which scaled_dot_product_attention computes the last query only."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention and len(args) == 3 and not kwargs.get("dropout_p"):
            return _attend_last(func, *args, **kwargs)
        return func(*args, **kwargs)


def _attend_last(func: Callable[..., Tensor], q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, **kwargs: Any) -> Tensor:
    """The output of the last query, with zeros for the others."""
    mask, queries, keys = kwargs.pop("attn_mask", None), q_BHTK.shape[-2], k_BHSK.shape[-2]
    if kwargs.pop("is_causal", False) and queries != keys:
        raise RuntimeError(f"causal attention needs as many queries as keys, got {queries} queries and {keys} keys")
    if mask is not None and mask.shape[-2] == queries:
        mask = mask[..., -1:, :]
    out_BH1K = func(q_BHTK[..., -1:, :], k_BHSK, v_BHSK, attn_mask=mask, **kwargs)
    return functional.pad(out_BH1K, (0, 0, queries - 1, 0))


@contextmanager
def last_query(layer: nn.Module) -> Iterator[None]:
    """Context in which the layer computes the attention of its last position only."""
    mode = LastQuery()
    with ExitStack() as stack:
        enter = layer.register_forward_pre_hook(lambda *_: mode.__enter__() and None)
        leave = layer.register_forward_hook(lambda *_: mode.__exit__(None, None, None), always_call=True)
        stack.callback(enter.remove)
        stack.callback(leave.remove)
        yield
