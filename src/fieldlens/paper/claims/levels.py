"""Claims that compare models with each other; seeds are the units."""

from math import log

from fieldlens.paper.claims import Finding, claim
from fieldlens.paper.evidence import Evidence, Run

FREE = ("alibi", "sinusoidal", "rotary")
PAST, ALL = (2, 4, 8, 16), (1, 2, 4, 8, 16)


@claim(
    "sandwich-best",
    "On ArXiv and GitHub Sandwich is better than every other scheme without parameters at each length past L_tr.",
    "At each of 2, 4, 8 and 16 L_tr its loss is lower than those of ALiBi, Sinusoidal and Rotary.",
    runs=["sandwich", *FREE], corpora=("github", "arxiv"),
)  # fmt: skip
def sandwich_best(evidence: Evidence, corpus: str) -> Finding:
    return Finding([
        evidence.contrast(Run("sandwich"), Run(rival), corpus, [length]) for rival in FREE for length in PAST
    ])  # fmt: skip


@claim(
    "sandwich-comparable",
    "At L_tr itself Sandwich is comparable to the other schemes without parameters.",
    "Its perplexity at L_tr is at most 5 % above those of ALiBi, Sinusoidal and Rotary.",
    runs=["sandwich", *FREE],
)  # fmt: skip
def sandwich_comparable(evidence: Evidence, corpus: str) -> Finding:
    return Finding([evidence.contrast(Run("sandwich"), Run(rival), corpus, [1], bound=log(1.05)) for rival in FREE])


@claim(
    "sandwich-behind-on-openwebtext2",
    "On OpenWebText2 Sandwich is marginally worse than ALiBi from 8 L_tr on.",
    "At 8 and 16 L_tr its loss is higher than ALiBi's, by at most 10 % of perplexity.",
    runs=["sandwich", "alibi"], corpora=("openwebtext2",),
)  # fmt: skip
def sandwich_behind_on_openwebtext2(evidence: Evidence, corpus: str) -> Finding:
    models = Run("sandwich"), Run("alibi")
    bounds = ((0.0, False), (log(1.1), True))
    return Finding([
        evidence.contrast(*models, corpus, [length], bound=bound, at_most=at_most)
        for length in (8, 16)
        for bound, at_most in bounds
    ])  # fmt: skip


@claim(
    "rotary-ahead-on-openwebtext2",
    "At L_tr Rotary is a bit better than Sandwich on OpenWebText2.",
    "Its loss at L_tr is lower.",
    runs=["rotary", "sandwich"], corpora=("openwebtext2",),
)  # fmt: skip
def rotary_ahead_on_openwebtext2(evidence: Evidence, corpus: str) -> Finding:
    return Finding([evidence.contrast(Run("rotary"), Run("sandwich"), corpus, [1])])


@claim(
    "learned-better",
    "Schemes with learned parameters, KERPLE and T5, reach lower perplexities than Sandwich.",
    "Their mean losses over 1, 2 and 4 L_tr are lower.",
    runs=["sandwich", "kerple", "t5"],
)  # fmt: skip
def learned_better(evidence: Evidence, corpus: str) -> Finding:
    return Finding([evidence.contrast(Run(model), Run("sandwich"), corpus, ALL[:3]) for model in ("kerple", "t5")])


@claim(
    "t5-extrapolates-worse",
    "ALiBi and KERPLE extrapolate better than T5.",
    "From L_tr to 16 L_tr their losses grow less than that of T5.",
    runs=["alibi", "kerple", "t5"],
)  # fmt: skip
def t5_extrapolates_worse(evidence: Evidence, corpus: str) -> Finding:
    return Finding([evidence.growth(Run(model), Run("t5"), corpus, 1, 16) for model in ("alibi", "kerple")])


@claim(
    "smoothed-alike",
    "The log curve through Sandwich predicts as well as Sandwich.",
    "Perplexities differ by at most 5 % at each of 1 to 16 L_tr.",
    runs=["smoothed", "sandwich"],
)  # fmt: skip
def smoothed_alike(evidence: Evidence, corpus: str) -> Finding:
    models = Run("smoothed"), Run("sandwich")
    bounds = ((log(1.05), True), (-log(1.05), False))
    return Finding([
        evidence.contrast(*models, corpus, [length], bound=bound, at_most=at_most)
        for length in ALL
        for bound, at_most in bounds
    ])  # fmt: skip


@claim(
    "dims-128",
    "d̄ = 128 is the best; smaller and larger are worse.",
    "Its mean loss over 1 to 16 L_tr is lower than those of 32, 64 and 256.",
    runs=["sandwich", "sandwich:dims=32", "sandwich:dims=64", "sandwich:dims=256"],
)  # fmt: skip
def dims_128(evidence: Evidence, corpus: str) -> Finding:
    others = [Run(f"sandwich:dims={dims}") for dims in (32, 64, 256)]
    return Finding([evidence.contrast(Run("sandwich"), other, corpus, ALL) for other in others])
