"""The top layer of a transformers model, told that only its last position is asked for.

Logits of the last position need the attention of one query there, in forward and in backward. The other rows are left
at zero: nothing above the top layer's attention mixes positions, which the seam verifies on the logits.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class LastQuery(TorchFunctionMode):
    """While this holds, scaled dot product attention computes its last query alone."""

    def __torch_function__(self, call: Any, types: Any, given: tuple[Any, ...] = (), named: Any = None) -> Any:
        named = named or {}
        if call is functional.scaled_dot_product_attention and len(given) == 3 and not named.get("dropout_p"):
            return _last(call, *given, **named)
        return call(*given, **named)


def _last(call: Callable[..., Tensor], q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, **named: Any) -> Tensor:
    mask, queries, keys = named.pop("attn_mask", None), q_BHTK.shape[-2], k_BHSK.shape[-2]
    if named.pop("is_causal", False) and queries != keys:
        raise RuntimeError(f"causal attention of {queries} queries to {keys} keys has no last query here")
    if mask is not None and mask.shape[-2] == queries:
        mask = mask[..., -1:, :]
    out_BH1K = call(q_BHTK[..., -1:, :], k_BHSK, v_BHSK, attn_mask=mask, **named)
    return functional.pad(out_BH1K, (0, 0, queries - 1, 0))


@contextmanager
def last_query(layer: nn.Module) -> Iterator[None]:
    """While this holds, the layer computes the attention of its last position alone."""
    mode = LastQuery()
    with ExitStack() as stack:
        enter = layer.register_forward_pre_hook(lambda *_: mode.__enter__() and None)
        leave = layer.register_forward_hook(lambda *_: mode.__exit__(None, None, None), always_call=True)
        stack.callback(enter.remove)
        stack.callback(leave.remove)
        yield
