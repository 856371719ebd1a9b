"""Claims about ALiBi's slopes: shifted by Δ, or the same h for all heads."""

from math import log

from fieldlens.paper.artifacts.arxiv_openwebtext2 import SAME, SHIFTS
from fieldlens.paper.claims import Finding, claim
from fieldlens.paper.evidence import Evidence, Run, agreed, shares

STEEPEST, FLATTEST = SAME[0], SAME[-1]
FLAT_SHIFT = SHIFTS[-1]


@claim(
    "steep-slopes",
    "Steep slopes predict worse at L_tr, as small windows do.",
    "With one slope for all heads, the loss at L_tr of the flattest (h = 8) is below that of the steepest (h = 0).",
    runs=[FLATTEST, STEEPEST], uses=[FLATTEST], primary=1,
)  # fmt: skip
def steep_slopes(evidence: Evidence, corpus: str) -> Finding:
    return Finding([evidence.contrast(Run(FLATTEST), Run(STEEPEST), corpus, [1])])


@claim(
    "flat-slopes-fail",
    "ALiBi with flat slopes fails to extrapolate.",
    "At 4 L_tr the perplexity of the flattest shift (Δ = 8) is at least 5 % above that at L_tr.",
    runs=[FLAT_SHIFT], primary=1,
)  # fmt: skip
def flat_slopes_fail(evidence: Evidence, corpus: str) -> Finding:
    return Finding([evidence.change(Run(FLAT_SHIFT), corpus, 1, 4, bound=log(1.05), at_most=False)])


@claim(
    "longer-training-repairs-slopes",
    "Slopes that fail are repaired by a training length that covers their receptive field.",
    "Trained on 4 L_tr, the flattest shift (Δ = 8) has at 16 L_tr at most 2 % more perplexity than at 4 L_tr, and a "
    "lower loss there than the same slopes trained on L_tr.",
    runs=[FLAT_SHIFT, Run(FLAT_SHIFT, 4)], primary=2,
)  # fmt: skip
def longer_training_repairs_slopes(evidence: Evidence, corpus: str) -> Finding:
    longer = Run(FLAT_SHIFT, 4)
    return Finding([
        evidence.change(longer, corpus, 4, 16, bound=log(1.02), at_most=True),
        evidence.contrast(longer, Run(FLAT_SHIFT), corpus, [16]),
    ])  # fmt: skip


@claim(
    "longer-training-repairs-d6",
    "The paper's own case: Δ = 6 is repaired by a training length of 4 L_tr.",
    "Trained on L_tr, it has at 4 L_tr at least 5 % more perplexity than at L_tr. Trained on 4 L_tr, it has at 16 L_tr "
    "at most 2 % more than at 4 L_tr, and a lower loss there than the same slopes trained on L_tr.",
    runs=["shift:6", Run("shift:6", 4)],
)  # fmt: skip
def longer_training_repairs_d6(evidence: Evidence, corpus: str) -> Finding:
    usual, longer = Run("shift:6"), Run("shift:6", 4)
    return Finding([
        evidence.change(usual, corpus, 1, 4, bound=log(1.05), at_most=False),
        evidence.change(longer, corpus, 4, 16, bound=log(1.02), at_most=True),
        evidence.contrast(longer, usual, corpus, [16]),
    ])  # fmt: skip


@claim(
    "slope-values",
    "Whether ALiBi extrapolates depends on how steep its slopes are, not on each head having a slope of its own.",
    "At 4 L_tr the flattest shift (Δ = 8), as diverse as ALiBi, has at least 5 % more perplexity than at L_tr; the "
    "steepest single slope (h = 0) has at most 1 % more.",
    runs=[FLAT_SHIFT, STEEPEST], uses=[FLAT_SHIFT],
)  # fmt: skip
def slope_values(evidence: Evidence, corpus: str) -> Finding:
    return Finding([
        evidence.change(Run(FLAT_SHIFT), corpus, 1, 4, bound=log(1.05), at_most=False),
        evidence.change(Run(STEEPEST), corpus, 1, 4, bound=log(1.01), at_most=True),
    ])  # fmt: skip


@claim(
    "large-slopes",
    "With one slope for all heads, only steep slopes extrapolate.",
    "At 4 L_tr the steepest (h = 0) has at most 1 % more perplexity than at L_tr, and h = 6 and h = 8 at least 5 % "
    "more.",
    runs=[STEEPEST, *SAME[-2:]], uses=SAME[-2:],
)  # fmt: skip
def large_slopes(evidence: Evidence, corpus: str) -> Finding:
    flat = [evidence.change(Run(model), corpus, 1, 4, bound=log(1.05), at_most=False) for model in SAME[-2:]]
    return Finding([evidence.change(Run(STEEPEST), corpus, 1, 4, bound=log(1.01), at_most=True), *flat])


@claim(
    "alibi-covered",
    "The training length covers most of ALiBi's receptive field.",
    "More than 90 % of its gradient at 4 L_tr lies within the most recent L_tr tokens, with each seed.",
    runs=["alibi"],
)  # fmt: skip
def alibi_covered(evidence: Evidence, corpus: str) -> Finding:
    inside = evidence.inside("alibi", corpus)
    return Finding((), [agreed([share > 0.9 for share in inside])], [f"{shares(inside)} inside"])


@claim(
    "shifts-not-covered",
    "No shift of ALiBi's slopes reaches 99 % of the gradient within L_tr.",
    "ERF > L_tr for each of Δ = -3, 0, 2, 4, 6, 8.",
    runs=SHIFTS, uses=["alibi", FLAT_SHIFT],
)  # fmt: skip
def shifts_not_covered(evidence: Evidence, corpus: str) -> Finding:
    fields = {model: evidence.field(Run(model), corpus) for model in SHIFTS}
    lines = [f"{evidence.results.label(model)}: ERF {field.bounded()}" for model, field in fields.items()]
    return Finding((), [field.erf(0.99) > evidence.results.trained for field in fields.values()], lines)
