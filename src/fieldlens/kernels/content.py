"""Biases of keys and features that schemes compute from the input of a layer, kept in the cache with the keys."""

from collections.abc import Callable

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.schemes.base import KEY_METHODS, Scheme, widest_float

Update = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Appends new keys and values to a cache; returns all of them."""


class KeyColumns:
    """What a scheme computes from the input of each key, as further dimensions of the keys: (B, H, S, E)."""

    def __init__(self, scheme: Scheme, x_BSD: Tensor, padding_BS: Tensor | None = None) -> None:
        self.scheme = scheme
        parts = {method: _call(scheme, method, x_BSD) for method in KEY_METHODS if scheme.overrides(method)}
        columns = {method: part for method, part in parts.items() if part is not None}
        if "log_decay" in columns and padding_BS is not None:  # padding must not separate tokens
            columns["log_decay"] = columns["log_decay"].masked_fill(padding_BS[:, None, :, None], 0)
        self.widths = {method: part.shape[-1] for method, part in columns.items()}
        self.columns_BHSE = torch.cat(list(columns.values()), -1) if columns else None

    @property
    def width(self) -> int:
        return sum(self.widths.values())

    def update(self, k: Tensor, v: Tensor, update: Update | None) -> tuple[Tensor, Tensor]:
        """Append keys, with these columns, and values to a cache; return all keys and values, and keep all columns."""
        if update is None:
            return k, v
        if self.columns_BHSE is None:
            return update(k, v)
        k, v = update(torch.cat([k, self.columns_BHSE.to(k.dtype)], -1), v)
        k, self.columns_BHSE = k[..., : -self.width], k[..., -self.width :]
        return k, v

    def part(self, method: str) -> Tensor | None:
        """The columns that a method returned: (B, H, S, e)."""
        if method not in self.widths:
            return None
        assert self.columns_BHSE is not None
        parts = self.columns_BHSE.split(list(self.widths.values()), -1)
        return dict(zip(self.widths, parts, strict=True))[method]


def _call(scheme: Scheme, method: str, x_BSD: Tensor) -> Tensor | None:
    """The result of a method, with an axis for its columns, computed outside of autocast."""
    with torch.autocast(x_BSD.device.type, enabled=False):
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


def key_bias(
    columns: KeyColumns, q_positions_BT: Tensor, k_positions_BS: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Biases of keys, (B, H, S), and what the scores of each query lack, (B, H, T); in the widest dtype.

    Decays between key j and query i are c_i - c_j with running sums c. Since c_i is the same for all keys of a query,
    only sinks need it.
    """
    bias, decay = columns.part("key_bias"), columns.part("log_decay")
    bias_BHS = None if bias is None else widest_float(bias[..., 0])
    if decay is None:
        return bias_BHS, None
    decay_BHS = widest_float(decay[..., 0])
    k_positions_BS, order_BS = k_positions_BS.sort(stable=True, dim=-1)
    order_BHS = order_BS[:, None].expand(decay_BHS.shape)
    sums_BHS = decay_BHS.gather(2, order_BHS).cumsum(2)
    last_BT = torch.searchsorted(
        k_positions_BS, q_positions_BT.expand(len(k_positions_BS), -1).contiguous(), right=True
    )
    index_BHT = last_BT[:, None].expand(*decay_BHS.shape[:2], -1)
    padded = torch.nn.functional.pad(sums_BHS, (1, 0))
    unsorted_BHS = torch.empty_like(sums_BHS).scatter(2, order_BHS, sums_BHS)
    total_BHS = -unsorted_BHS if bias_BHS is None else bias_BHS - unsorted_BHS
    return total_BHS, padded.gather(2, index_BHT)
