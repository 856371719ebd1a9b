"""ALiBi and windowed attention as matrices."""

from fieldlens.paper.artifact import Artifact, Drawn
from fieldlens.paper.diagrams import small_matrices
from fieldlens.paper.results import PaperResults
from fieldlens.reporting.plots import bias_by_distance
from fieldlens.schemes.spec import scheme

TOKENS = 5


class ALiBi(Artifact):
    name, kind, stand_ins = "alibi", "figure", False
    title = "ALiBi: scores, and the temporal biases of its first and last head"

    def draw(self, results: PaperResults) -> Drawn:
        bias_HN = bias_by_distance(scheme("alibi", 12, 64), TOKENS)
        panels = {"self-attention": (bias_HN[0], True)}
        for head in (1, 12):
            panels[f"temporal biases, h = {8 * head / 12:.3g} (head {head} of 12)"] = (bias_HN[head - 1], False)
        return Drawn(figures={"": small_matrices(panels)})


class Window(Artifact):
    name, kind, stand_ins = "window", "figure", False
    title = "Windowed attention: a query sees w = 2 keys, itself included"

    def draw(self, results: PaperResults) -> Drawn:
        (bias_N,) = bias_by_distance(scheme("none:window=2", 1, 64), TOKENS)
        panels = {"self-attention, w = 2": (bias_N, True), "temporal biases": (bias_N, False)}
        return Drawn(figures={"": small_matrices(panels)})
