"""Claims about what things cost: learned parameters, a sliding cache, another protocol."""

import math
import statistics as plain

from fieldlens.paper.artifacts.efficient_inference import CACHE, LENGTHS, cached
from fieldlens.paper.artifacts.openweb_github_arxiv import LEARNED
from fieldlens.paper.claims import Outcome, claim, over, settled
from fieldlens.paper.evidence import SMALL, Answer, Evidence, sure
from fieldlens.paper.scale import TRAINED
from fieldlens.paper.shelf import ALL
from fieldlens.statistics import Paired, sign_flip

LITTLE, NOTHING = 0.05, 0.005
SLOWER = 0.05
LEAST = {"kerple": 1.0, "t5": 1 + SLOWER}
"""As many times as long as Sandwich each must train, at least."""
CURSED = ("window:80", "alibi")


def _small(found: Paired) -> bool:
    """Whether a difference is as good as none."""
    return abs(found.difference) <= math.log1p(NOTHING)


def _p(value: float | None) -> str:
    return "no test" if value is None else f"p = {value:.2g}"


@claim(
    "learned-costs", 22,
    "Learned schemes are larger and slower; T5 takes some 10 % more time to train than Sandwich.",
    f"KERPLE and T5 have more parameters; with each of two or more seeds KERPLE trained longer, and T5 by at least "
    f"{SLOWER:.0%}. One that is not larger, or that trained shorter with each seed, decides against it. Memory is not "
    "asked.",
    decides="the time of a step on a GPU with attention that writes the bias out, as the authors' code did",
)  # fmt: skip
def learned_costs(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        shelf, sizes = evidence.shelf, {}
        for model in ("sandwich", *LEARNED):
            results = shelf.results(model, corpus)
            if not results:
                raise evidence.missing(model, corpus)
            sizes[model] = next(iter(results.values())).about["parameters"]
        more = {model: sizes[model] - sizes["sandwich"] for model in LEARNED}
        said = [", ".join(f"{model} {count:+,} parameters" for model, count in more.items())]
        found: list[Answer] = [count > 0 for count in more.values()]
        for model, least in LEAST.items():
            ratios = _times(evidence, model, corpus)
            said.append(
                f"{model} trains × {plain.fmean(ratios):.2f} as long, from {min(ratios):.2f} to {max(ratios):.2f}"
            )
            found.append(True if min(ratios) >= least else False if max(ratios) < 1 else None)
        return settled(found), said

    return over(evidence, ALL, test, "times of training, on a machine that does nothing else")


def _times(evidence: Evidence, model: str, corpus: str) -> list[float]:
    """How many times as long as Sandwich a model trained, with each seed."""
    own, sandwich = (evidence.shelf.seconds(name, corpus) for name in (model, "sandwich"))
    shared = sorted(own.keys() & sandwich.keys())
    if len(shared) < 2:
        raise evidence.missing(model, corpus, why=": the time that two seeds took, and Sandwich's")
    return [own[seed] / sandwich[seed] for seed in shared]


@claim(
    "sliding-cache", 25,
    "A sliding cache of 4 L_tr costs Sandwich a little, and ALiBi nothing.",
    f"At 8 L_tr and on the same targets: Sandwich is significantly worse, by less than {LITTLE:.0%}; ALiBi changes by "
    f"at most {NOTHING:.1%}. A change of Sandwich as small as that decides against it.",
)  # fmt: skip
def sliding_cache(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        said, found = [], {}
        for model in ("sandwich", "alibi"):
            with_it, without = (
                evidence.losses(model, corpus, **cached(evidence.shelf, window)) for window in (True, False)
            )
            found[model] = evidence.gap(with_it, without, LENGTHS[0]).found
            said.append(f"{model} × {math.exp(found[model].difference):.4f} ({_p(found[model].p)})")
        own, alibi = found["sandwich"], found["alibi"]
        little = False if _small(own) else 0 < own.difference < math.log1p(LITTLE) if sure(own) else None
        nothing = True if _small(alibi) else False if sure(alibi) else None
        return settled([little, nothing]), said

    return over(evidence, ALL, test)


@claim(
    "early-tokens", 26,
    "Evaluating consecutive pieces that do not overlap flatters long lengths: tokens early in a piece see too little.",
    "A window and ALiBi seem to gain by 1 % or more, and significantly, from L_tr to 8 L_tr by that protocol, and gain "
    "less by the paper's.",
)  # fmt: skip
def early_tokens(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        found: list[Answer] = []
        said = []
        short, long = (evidence.shelf.length(n) for n in (TRAINED, 2 * CACHE))
        for model in CURSED:
            pieces = evidence.losses(model, corpus, protocol="non-overlapping")
            last = evidence.losses(model, corpus)
            gain = sign_flip(pieces.quantities(short) - pieces.quantities(long), pieces.units()[0])
            honest = float((last.quantities(short) - last.quantities(long)).mean())
            gains = gain.difference >= SMALL and honest < gain.difference
            found.append(False if not gains else True if sure(gain) else None)
            pieces_gain = f"{gain.difference:+.4f} nats in pieces ({_p(gain.p)})"
            said.append(f"{evidence.shelf.spec(model)}: {pieces_gain}, {honest:+.4f} by the paper's")
        return settled(found), said

    return over(evidence, ALL, test, "more pieces, from more documents")
