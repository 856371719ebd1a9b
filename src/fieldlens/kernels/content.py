"""Biases of keys and features that schemes compute from the input of a layer, kept in the cache with the keys."""

from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.schemes.base import KEY_METHODS, Scheme, widest_float

Update = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Appends new keys and values to a cache; returns all of them."""


class KeyColumns:
    """What a scheme computes from the input of each key; in a cache, further dimensions of the keys: (B, H, S, E)."""

    def __init__(self, scheme: Scheme, x_BSD: Tensor, padding_BS: Tensor | None = None) -> None:
        results = {method: _call(scheme, method, x_BSD) for method in KEY_METHODS if scheme.overrides(method)}
        self.parts = {method: part for method, part in results.items() if part is not None}
        """The columns that each method returned: (B, H, S, e)."""
        if "log_decay" in self.parts and padding_BS is not None:  # padding must not separate tokens
            self.parts["log_decay"] = self.parts["log_decay"].masked_fill(padding_BS[:, None, :, None], 0)

    @property
    def widths(self) -> list[int]:
        return [part.shape[-1] for part in self.parts.values()]

    def update(self, k: Tensor, v: Tensor, update: Update | None) -> tuple[Tensor, Tensor]:
        """Append keys, with these columns, and values to a cache; return all keys and values, and keep all columns."""
        if update is None:
            return k, v
        widths = [k.shape[-1], *self.widths]
        k, v = update(torch.cat([k, *(part.to(k.dtype) for part in self.parts.values())], -1), v)
        k, *columns = k.split(widths, -1)
        self.parts = dict(zip(self.parts, columns, strict=True))
        return k, v


def _call(scheme: Scheme, method: str, x_BSD: Tensor) -> Tensor | None:
    """The result of a method, with an axis for its columns, computed outside of autocast."""
    kind = x_BSD.device.type
    with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
        result = getattr(scheme, method)(x_BSD)
    if result is None:
        return None
    features = method.endswith("features")
    expected = (len(x_BSD), scheme.heads, x_BSD.shape[1])
    if result.shape[: 3 if features else None] != expected or result.ndim != 3 + features:
        shape = f"({', '.join(map(str, expected))}{', F' if features else ''})"
        raise BadInput(f"{method}() of scheme '{scheme.name}' returned shape {tuple(result.shape)}, expected {shape}")
    return result if features else result[..., None]


def query_features(scheme: Scheme, x_BTD: Tensor) -> Tensor | None:
    return _call(scheme, "query_features", x_BTD) if scheme.overrides("query_features") else None


def key_bias(columns: KeyColumns, k_positions_BS: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Biases of keys, and running sums of decays up to each key, both (B, H, S) and in the widest dtype.

    Decays between key j and query i are c_i - c_j with running sums c; c_i is the same for all keys of a query, and so
    without effect on a softmax over keys alone. Without positions, keys are in order.
    """
    bias, decay = columns.parts.get("key_bias"), columns.parts.get("log_decay")
    bias_BHS = None if bias is None else widest_float(bias[..., 0])
    if decay is None:
        return bias_BHS, None
    decay_BHS = widest_float(decay[..., 0])
    if k_positions_BS is None:
        sums_BHS = decay_BHS.cumsum(2)
    else:
        order_BHS = k_positions_BS.argsort(stable=True, dim=-1)[:, None].expand(decay_BHS.shape)
        sums_BHS = decay_BHS.gather(2, order_BHS).cumsum(2)
        sums_BHS = torch.empty_like(sums_BHS).scatter(2, order_BHS, sums_BHS)
    return -sums_BHS if bias_BHS is None else bias_BHS - sums_BHS, sums_BHS


def sums_at_queries(sums_BHS: Tensor, q_positions_BT: Tensor, k_positions_BS: Tensor) -> Tensor:
    """The running sum of the last key that is not after each query, 0 without one: (B, H, T)."""
    sorted_BS, order_BS = k_positions_BS.sort(stable=True, dim=-1)
    sums_BHS = sums_BHS.gather(2, order_BS[:, None].expand(sums_BHS.shape))
    last_BT = torch.searchsorted(sorted_BS, q_positions_BT.expand(len(sorted_BS), -1).contiguous(), right=True)
    return F.pad(sums_BHS, (1, 0)).gather(2, last_BT[:, None].expand(*sums_BHS.shape[:2], -1))
