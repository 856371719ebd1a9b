"""The evaluation protocol: the same five targets, with different numbers of tokens before them."""

from fieldlens.evaluation.protocols import Anchor, protocol
from fieldlens.paper.artifact import Artifact, Drawn
from fieldlens.paper.diagrams import excerpt_rows
from fieldlens.paper.results import PaperResults

LENGTHS = (5, 3)
TARGETS = 5


class EvaluationProtocol(Artifact):
    name, kind, stand_ins = "evaluation", "figure", False
    title = "The evaluation protocol: the same targets at every length"

    def draw(self, results: PaperResults) -> Drawn:
        # paper: a length counts the target too; here: it counts input tokens, because L_ex = L_tr is what was trained.
        rule = protocol("last-token")
        before, _ = rule.room(max(LENGTHS))
        anchors = [Anchor(0, before + number) for number in range(TARGETS)]
        panels = {
            f"{length} tokens before each of {TARGETS} targets": [
                excerpt for anchor in anchors for excerpt in rule.excerpts(anchor, length, max(LENGTHS))
            ]
            for length in LENGTHS
        }
        return Drawn(figures={"": excerpt_rows(panels)})
