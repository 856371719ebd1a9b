"""Claims about what things cost: learned parameters, a sliding cache, another protocol."""

import math
import statistics as plain

from fieldlens.paper.artifacts.efficient_inference import CACHE, LENGTHS, cached
from fieldlens.paper.artifacts.openweb_github_arxiv import LEARNED
from fieldlens.paper.claims import Outcome, claim, over, settled
from fieldlens.paper.evidence import SMALL, Answer, Evidence, corrected, tested
from fieldlens.paper.results import ALL
from fieldlens.paper.scale import TRAINED

LITTLE, NOTHING = 0.05, 0.005
SLOWER = 0.05
LEAST = {"kerple": 1.0, "t5": 1 + SLOWER}
"""As many times as long as Sandwich each must train, at least."""
EQUAL = ("sandwich", "smoothed", "alibi", "alibi:slope_floor=0.01")
"""Fixed biases: a step costs the same with each, so that their times differ by what the machine did."""
CURSED = ("window:80", "alibi")


@claim(
    "learned-costs", 22,
    "Learned schemes are larger and slower; T5 takes some 10 % more time to train than Sandwich.",
    "KERPLE and T5 have more parameters; with each of two or more seeds KERPLE trained longer, and T5 by at least "
    f"{SLOWER:.0%}, both by more than Sandwich, Smoothed and ALiBi differ with one seed, whose steps cost the same. "
    "One that is not larger, or that trained shorter by as much with each seed, decides against it. Memory is not "
    "asked.",
    decides="times on a machine that does nothing else, or on a GPU with attention that writes the bias out, as the "
    "authors' code did",
)  # fmt: skip
def learned_costs(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        results, sizes = evidence.results, {}
        for model in ("sandwich", *LEARNED):
            by_seed = results.results(model, corpus)
            if not by_seed:
                raise evidence.missing(model, corpus)
            sizes[model] = next(iter(by_seed.values())).about["parameters"]
        more = {model: sizes[model] - sizes["sandwich"] for model in LEARNED}
        said = [", ".join(f"{model} {count:+,} parameters" for model, count in more.items())]
        found: list[Answer] = [count > 0 for count in more.values()]
        noise = _noise(evidence, corpus)
        for model, least in LEAST.items():
            ratios = _times(evidence, model, corpus)
            each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            said.append(f"{model} trains × {plain.fmean(ratios):.2f} as long ({len(ratios)} seeds: {each})")
            longer, shorter = min(ratios) > max(least, noise), max(ratios) < 1 / noise
            found.append(True if longer else False if shorter else None)
        said.append(f"of models whose steps cost the same, one takes up to × {noise:.2f} as long as another")
        return settled(found), said

    return over(evidence, ALL, test, "times that differ by more than those of equal models do")


def _noise(evidence: Evidence, corpus: str) -> float:
    """How many times as long as another a model trained that costs the same, at most, with the same seed."""
    times = [evidence.results.seconds(name, corpus) for name in EQUAL]
    by_seed = [[some[seed] for some in times if seed in some] for seed in set().union(*times)]
    ratios = [max(some) / min(some) for some in by_seed if len(some) > 1]
    if not ratios:
        raise evidence.missing(EQUAL[1], corpus, why=": the time that it took, and Sandwich's")
    return max(ratios)


def _times(evidence: Evidence, model: str, corpus: str) -> list[float]:
    """How many times as long as Sandwich a model trained, with each seed."""
    own, sandwich = (evidence.results.seconds(name, corpus) for name in (model, "sandwich"))
    shared = sorted(own.keys() & sandwich.keys())
    if len(shared) < 2:
        raise evidence.missing(model, corpus, why=": the time that two seeds took, and Sandwich's")
    return [own[seed] / sandwich[seed] for seed in shared]


@claim(
    "sliding-cache", 25,
    "A sliding cache of 4 L_tr costs Sandwich a little, and ALiBi nothing.",
    f"At 8 L_tr and on the same targets: Sandwich is significantly worse, and surely by less than {LITTLE:.0%}; ALiBi "
    f"surely changes by at most {NOTHING:.1%}. Sandwich significantly better, or surely changed by no more than that, "
    "decides against it. Seeds must agree.",
)  # fmt: skip
def sliding_cache(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        gaps, models = [], ("sandwich", "alibi")
        for model in models:
            with_it, without = (
                evidence.each(model, corpus, **cached(evidence.results, window)) for window in (True, False)
            )
            gaps.append(evidence.gap(with_it, without, LENGTHS[:1]))
        own, alibi = gaps = corrected(gaps)
        said = [
            f"{model} × {math.exp(gap.found.difference):.4f} ({tested(gap)})"
            for model, gap in zip(models, gaps, strict=True)
        ]
        better, limit, none = own.falls(), math.log1p(LITTLE), math.log1p(NOTHING)
        little = own.agreed(own.at_most(limit), lambda difference: difference <= limit, least=1)
        costs = not better if better is not None else False if own.rests(none) else None
        return settled([costs, little, alibi.rests(none)]), said

    return over(evidence, ALL, test)


@claim(
    "early-tokens", 26,
    "Evaluating consecutive pieces that do not overlap flatters long lengths: tokens early in a piece see too little.",
    "A window and ALiBi seem to gain by 1 % or more, and significantly, from L_tr to 8 L_tr by that protocol, with "
    "each seed, and gain less by the paper's. A gain that is surely smaller, or as large by the paper's, with "
    "each seed, decides against it.",
)  # fmt: skip
def early_tokens(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        found: list[Answer] = []
        said = []
        gaps = []
        for how in ("non-overlapping", "last-token"):
            ours = [evidence.each(model, corpus, protocol=how) for model in CURSED]
            gaps.append(corrected([evidence.gap(one, one, [TRAINED], [2 * CACHE]) for one in ours]))
        for model, gain, honest in zip(CURSED, *gaps, strict=True):
            seems, is_one = gain.found.difference, honest.found.difference
            gains = gain.certain and seems >= SMALL
            answer = True if gains else False if gain.interval.high < SMALL else None
            as_large = all(b >= a for a, b in zip((seems, *gain.seeds), (is_one, *honest.seeds), strict=True))
            seen = gain.agreed(answer, lambda difference: difference >= SMALL, least=1)
            found.append(False if gains and as_large else seen)
            pieces_gain = f"{seems:+.4f} nats in pieces ({tested(gain)})"
            said.append(f"{evidence.results.label(model)}: {pieces_gain}, {is_one:+.4f} by the paper's")
        return settled(found), said

    return over(evidence, ALL, test, "more pieces, from more documents")
