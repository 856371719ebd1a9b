"""The evaluation protocol: the same five targets, with different numbers of input tokens."""

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
        # In the paper a length includes the target; here it counts input tokens, so that L_ex = L_tr matches training.
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
