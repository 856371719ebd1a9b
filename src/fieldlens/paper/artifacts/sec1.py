"""Cumulative gradients by the shift of ALiBi's slopes."""

from fieldlens.paper.artifacts.arxiv_openwebtext2 import SHIFTS
from fieldlens.paper.artifacts.sec3 import CumulativeGradients
from fieldlens.paper.printed import CORPORA


class ArXivShifts(CumulativeGradients):
    name, corpus, models = "arxiv_sec1", "arxiv", SHIFTS
    title = f"Cumulative gradient by Δ on {CORPORA['arxiv']}"


class OpenWebText2Shifts(CumulativeGradients):
    name, corpus, models = "openwebtext2_sec1", "openwebtext2", SHIFTS
    title = f"Cumulative gradient by Δ on {CORPORA['openwebtext2']}"
