"""Claims about the biases themselves, which need no trained model."""

from itertools import pairwise

import torch

from fieldlens.paper.artifacts.different_d import MODELS as DIMENSIONS
from fieldlens.paper.artifacts.heatmap_8 import HEADS, biases
from fieldlens.paper.claims import Finding, claim
from fieldlens.paper.evidence import Evidence
from fieldlens.paper.scale import TRAINED
from fieldlens.reporting.plots import bias_by_distance
from fieldlens.schemes.kerple import Kerple
from fieldlens.schemes.smoothed import PRINTED
from fieldlens.schemes.spec import scheme


@claim(
    "dims-window",
    "A larger d̄ makes the windowing stronger.",
    "Of the softmax of the bias alone (h = 8, 8,192 tokens), the most recent 512 tokens hold more with each doubling "
    "of d̄.",
)  # fmt: skip
def dims_window(evidence: Evidence, corpus: str) -> Finding:
    recent = [float(torch.softmax(bias_HN[HEADS - 1], 0)[:TRAINED].sum()) for _, bias_HN in biases(*DIMENSIONS)]
    lines = [f"{model}: {share:.2%}" for model, share in zip(DIMENSIONS, recent, strict=True)]
    return Finding((), [all(a < b for a, b in pairwise(recent))], lines)


@claim(
    "case-of-kerple",
    "The log curve through Sandwich is a case of KERPLE.",
    "With p = 0.825 · 8/h and a = 1, KERPLE's bias is the printed curve plus one constant for each head, within 1e-9.",
)  # fmt: skip
def case_of_kerple(evidence: Evidence, corpus: str) -> Finding:
    smoothed = scheme("smoothed", HEADS, 64)
    kerple = scheme("kerple", HEADS, 64).double()
    assert isinstance(kerple, Kerple)
    ratios_H = 8 * torch.arange(1, HEADS + 1, dtype=torch.float64) / HEADS
    with torch.no_grad():
        kerple.p_H.copy_(-PRINTED[0] * 8 / ratios_H)
        kerple.a_H.fill_(1.0)
        gap_HN = bias_by_distance(smoothed, 8192).double() - bias_by_distance(kerple, 8192).double()
    spread = float((gap_HN.amax(1) - gap_HN.amin(1)).max())
    return Finding((), [spread < 1e-9], [f"the difference varies by at most {spread:.1e} over 8,192 distances"])
