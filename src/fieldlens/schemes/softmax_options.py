"""Options that every scheme accepts beside `window`: a scale of the logits and a sink in the softmax."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from fieldlens.core.errors import BadInput

LogitScaling = Literal["none", "ssmax", "logn"]
Sink = Literal["none", "learned"]

UNKNOWN_LENGTH = 1024
"""Stands in for a training length that is not known where SSMax starts."""


class SoftmaxOptions(nn.Module):
    """logits=ssmax: q·s_h·ln n, s_h learned;  logits=logn: q·max(1, ln n / ln L);  sink=learned: Σ exp(…) + exp(b_h).

    n is the number of keys that the query sees and L the training length. Published implementations of SSMax start from
    s = 1 or 0.43; here s starts from 1 / the mean of ln n over n = 1 … L, so that factors are 1 on average.
    Sources: Nakanishi 2025, arXiv:2501.19399; Su 2021, kexue.fm/archives/8823; gpt-oss, arXiv:2508.10925.
    """

    def __init__(self, heads: int, logits: LogitScaling, sink: Sink, train_length: int | None) -> None:
        super().__init__()
        self.logits, self.train_length = logits, train_length
        if logits == "logn" and (train_length is None or train_length < 2):
            raise BadInput(f"logits=logn needs a training length of at least 2, got {train_length}")
        self.ssmax_H = nn.Parameter(torch.full((heads,), ssmax_start(train_length))) if logits == "ssmax" else None
        self.sink_H = nn.Parameter(torch.zeros(heads)) if sink == "learned" else None

    def query_scale(self, visible_B1T: Tensor) -> Tensor | None:
        """Factor of each query, from the number of keys it sees: (B or 1, H or 1, T)."""
        if self.ssmax_H is not None:
            return self.ssmax_H.to(visible_B1T.dtype)[:, None] * visible_B1T.log()
        if self.logits == "logn":
            assert self.train_length is not None
            return (visible_B1T.log() / math.log(self.train_length)).clamp(min=1)
        return None


def ssmax_start(train_length: int | None) -> float:
    """1 / the mean of ln n over the queries of a text of this length: ln L! = Σ ln n."""
    length = max(2, train_length or UNKNOWN_LENGTH)
    return length / math.lgamma(length + 1)


def needs_copies(logits: str, sink: str) -> bool:
    """Whether these options have learned parameters, which every layer has on its own."""
    return logits == "ssmax" or sink == "learned"
