"""Claims about one model as the context grows past L_tr."""

from math import log

from fieldlens.paper.claims import Finding, claim
from fieldlens.paper.evidence import Evidence, Run


@claim(
    "sandwich-improves",
    "Sandwich predicts better from more than L_tr tokens: it uses what lies beyond.",
    "At 2 L_tr its perplexity is at least 1 % below that at L_tr.",
    runs=["sandwich"], headroom=True, primary=1,
)  # fmt: skip
def sandwich_improves(evidence: Evidence, corpus: str) -> Finding:
    return Finding([evidence.change(Run("sandwich"), corpus, 1, 2, bound=log(0.99), at_most=True)])


@claim(
    "alibi-does-not-improve",
    "ALiBi does not use what lies beyond L_tr.",
    "At 4 L_tr its perplexity is not below that at L_tr by more than 0.5 %.",
    runs=["alibi"], headroom=True, primary=1,
)  # fmt: skip
def alibi_does_not_improve(evidence: Evidence, corpus: str) -> Finding:
    return Finding([evidence.change(Run("alibi"), corpus, 1, 4, bound=log(0.995), at_most=False)])


@claim(
    "rotary-explodes",
    "Rotary fails to extrapolate.",
    "At 4 L_tr its perplexity is at least × 1.5 that at L_tr.",
    runs=["rotary"], primary=1,
)  # fmt: skip
def rotary_explodes(evidence: Evidence, corpus: str) -> Finding:
    return Finding([evidence.change(Run("rotary"), corpus, 1, 4, bound=log(1.5), at_most=False)])


@claim(
    "sinusoidal-explodes",
    "Sinusoidal fails to extrapolate.",
    "At 4 L_tr its perplexity is at least × 1.5 that at L_tr.",
    runs=["sinusoidal"], primary=1,
)  # fmt: skip
def sinusoidal_explodes(evidence: Evidence, corpus: str) -> Finding:
    return Finding([evidence.change(Run("sinusoidal"), corpus, 1, 4, bound=log(1.5), at_most=False)])


@claim(
    "t5-falls",
    "Perplexity of T5 falls past L_tr: it uses what lies beyond.",
    "At 2 L_tr it is at least 1 % below that at L_tr.",
    runs=["t5"], headroom=True, primary=1,
)  # fmt: skip
def t5_falls(evidence: Evidence, corpus: str) -> Finding:
    return Finding([evidence.change(Run("t5"), corpus, 1, 2, bound=log(0.99), at_most=True)])


@claim(
    "t5-rises",
    "Perplexity of T5 rises again at very long lengths.",
    "At 16 L_tr it is at least 1 % above that at 2 L_tr.",
    runs=["t5"], primary=1,
)  # fmt: skip
def t5_rises(evidence: Evidence, corpus: str) -> Finding:
    return Finding([evidence.change(Run("t5"), corpus, 2, 16, bound=log(1.01), at_most=False)])


@claim(
    "kerple-falls",
    "Perplexity of KERPLE falls past L_tr: it uses what lies beyond.",
    "At 2 L_tr it is at least 1 % below that at L_tr.",
    runs=["kerple"], headroom=True, primary=1,
)  # fmt: skip
def kerple_falls(evidence: Evidence, corpus: str) -> Finding:
    return Finding([evidence.change(Run("kerple"), corpus, 1, 2, bound=log(0.99), at_most=True)])


@claim(
    "kerple-rises",
    "Perplexity of KERPLE rises again at very long lengths.",
    "At 16 L_tr it is at least 1 % above that at 2 L_tr.",
    runs=["kerple"], primary=1,
)  # fmt: skip
def kerple_rises(evidence: Evidence, corpus: str) -> Finding:
    return Finding([evidence.change(Run("kerple"), corpus, 2, 16, bound=log(1.01), at_most=False)])


@claim(
    "sandwich-rises",
    "Perplexity of Sandwich rises again at very long lengths.",
    "At 16 L_tr it is at least 1 % above that at 4 L_tr.",
    runs=["sandwich"],
)  # fmt: skip
def sandwich_rises(evidence: Evidence, corpus: str) -> Finding:
    return Finding([evidence.change(Run("sandwich"), corpus, 4, 16, bound=log(1.01), at_most=False)])


@claim(
    "alibi-rises",
    "ALiBi itself does not extrapolate: its perplexity rises past L_tr.",
    "At 4 L_tr it is at least 1 % above that at L_tr. (ALiBi's own appendix B saw it flat.)",
    runs=["alibi"],
)  # fmt: skip
def alibi_rises(evidence: Evidence, corpus: str) -> Finding:
    return Finding([evidence.change(Run("alibi"), corpus, 1, 4, bound=log(1.01), at_most=False)])


@claim(
    "alibi-constant",
    "ALiBi's perplexity stays constant from 4 L_tr on, which allows a cache of that length.",
    "From 4 L_tr to 16 L_tr it changes by at most 1 %.",
    runs=["alibi"],
)  # fmt: skip
def alibi_constant(evidence: Evidence, corpus: str) -> Finding:
    return Finding(evidence.steady(Run("alibi"), corpus, 4, 16, log(1.01)))


@claim(
    "sliding-cache",
    "A sliding cache of 4 L_tr costs Sandwich a little, and ALiBi nothing.",
    "At 8 L_tr and on the same targets: Sandwich is worse with the cache than without, by at most 5 %; ALiBi changes "
    "by at most 0.5 %.",
    runs=["sandwich", "alibi"],
)  # fmt: skip
def sliding_cache(evidence: Evidence, corpus: str) -> Finding:
    lengths = [evidence.length(multiple) for multiple in (8, 16, 32)]
    criteria = ({"lengths": lengths, "window": evidence.length(4)}, {"lengths": lengths, "window": None})
    bounds = {"sandwich": ((0.0, False), (log(1.05), True)), "alibi": ((log(1.005), True), (-log(1.005), False))}
    return Finding([
        evidence.protocols(Run(model), corpus, 8, *criteria, bound, at_most)
        for model, pairs in bounds.items()
        for bound, at_most in pairs
    ])  # fmt: skip


@claim(
    "cached-flat",
    "With a sliding cache of 4 L_tr, perplexity stays the same to 32 L_tr.",
    "From 8 L_tr to 32 L_tr the perplexities of Sandwich and ALiBi with the cache change by at most 1 %.",
    runs=["sandwich", "alibi"],
)  # fmt: skip
def cached_flat(evidence: Evidence, corpus: str) -> Finding:
    cached = {"lengths": [evidence.length(multiple) for multiple in (8, 16, 32)], "window": evidence.length(4)}
    comparisons = [evidence.steady(Run(model), corpus, 8, 32, log(1.01), **cached) for model in ("sandwich", "alibi")]
    return Finding([comparison for pair in comparisons for comparison in pair])


@claim(
    "early-tokens",
    "Evaluating consecutive pieces that do not overlap flatters long lengths: tokens early in a piece see too little.",
    "By that protocol a window and ALiBi gain at least 1 % from L_tr to 8 L_tr, and more than by the paper's protocol.",
    runs=["window:80", "alibi"], uses=["alibi"],
)  # fmt: skip
def early_tokens(evidence: Evidence, corpus: str) -> Finding:
    comparisons, answers, lines = [], [], []
    for model in ("window:80", "alibi"):
        pieces = evidence.change(
            Run(model), corpus, 1, 8, bound=log(0.99), at_most=True, protocol="non-overlapping"
        )  # fmt: skip
        usual = evidence.change(Run(model), corpus, 1, 8, bound=0.0, at_most=True)
        comparisons.append(pieces)
        answers.append(pieces.difference < usual.difference)
        lines.append(f"by the paper's protocol, {usual.line()}")
    return Finding(comparisons, answers, lines)
