"""Claims about costs: of learned parameters, of a sliding cache, and of another protocol."""

import math
import statistics

from fieldlens.paper.artifacts.efficient_inference import CACHE, LENGTHS, cached
from fieldlens.paper.artifacts.openweb_github_arxiv import LEARNED
from fieldlens.paper.claims import Outcome, claim, over, settled
from fieldlens.paper.evidence import SMALL, Answer, Evidence, corrected, tested
from fieldlens.paper.results import ALL_CORPORA
from fieldlens.paper.scale import TRAINED

SMALL_COST, NO_COST = 0.05, 0.005
T5_SLOWDOWN = 0.05
MIN_TIME_RATIO = {"kerple": 1.0, "t5": 1 + T5_SLOWDOWN}
"""Minimum training time relative to Sandwich."""
EQUAL_COST = ("sandwich", "smoothed", "alibi", "alibi:slope_floor=0.01")
"""Fixed biases: a training step costs the same with each, so their times differ only by noise."""
EARLY_TOKEN_MODELS = ("window:80", "alibi")


@claim(
    "learned-costs", 22,
    "Learned schemes are larger and slower; T5 takes some 10 % more time to train than Sandwich.",
    "KERPLE and T5 have more parameters; with each of two or more seeds KERPLE trained longer, and T5 by at least "
    f"{T5_SLOWDOWN:.0%}, both by more than Sandwich, Smoothed and ALiBi differ with one seed, whose steps cost the "
    "same. One that is not larger, or that trained shorter by as much with each seed, decides against it. Memory is "
    "not asked.",
    decides="times on a machine that does nothing else, or on a GPU with attention that writes the bias out, as the "
    "authors' code did",
)  # fmt: skip
def learned_costs(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        results, sizes = evidence.results, {}
        for model in ("sandwich", *LEARNED):
            runs = results.results(model, corpus)
            if not runs:
                raise evidence.missing(model, corpus)
            sizes[model] = next(iter(runs.values())).about["parameters"]
        more = {model: sizes[model] - sizes["sandwich"] for model in LEARNED}
        lines = [", ".join(f"{model} {count:+,} parameters" for model, count in more.items())]
        answers: list[Answer] = [count > 0 for count in more.values()]
        noise = _noise(evidence, corpus)
        for model, minimum in MIN_TIME_RATIO.items():
            ratios = _time_ratios(evidence, model, corpus)
            by_seed = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            lines.append(f"{model} trains × {statistics.fmean(ratios):.2f} as long ({len(ratios)} seeds: {by_seed})")
            longer, shorter = min(ratios) > max(minimum, noise), max(ratios) < 1 / noise
            answers.append(True if longer else False if shorter else None)
        lines.append(f"of models whose steps cost the same, one takes up to × {noise:.2f} as long as another")
        return settled(answers), lines

    return over(evidence, ALL_CORPORA, test, "times that differ by more than those of equal models do")


def _noise(evidence: Evidence, corpus: str) -> float:
    """The largest ratio of training times of two models of equal cost with the same seed."""
    times = [evidence.results.seconds(name, corpus) for name in EQUAL_COST]
    by_seed = [[seconds[seed] for seconds in times if seed in seconds] for seed in set().union(*times)]
    ratios = [max(seconds) / min(seconds) for seconds in by_seed if len(seconds) > 1]
    if not ratios:
        raise evidence.missing(EQUAL_COST[1], corpus, reason=": the time that it took, and Sandwich's")
    return max(ratios)


def _time_ratios(evidence: Evidence, model: str, corpus: str) -> list[float]:
    """Training time relative to Sandwich, for each seed."""
    seconds, sandwich = (evidence.results.seconds(name, corpus) for name in (model, "sandwich"))
    shared = sorted(seconds.keys() & sandwich.keys())
    if len(shared) < 2:
        raise evidence.missing(model, corpus, reason=": the time that two seeds took, and Sandwich's")
    return [seconds[seed] / sandwich[seed] for seed in shared]


@claim(
    "sliding-cache", 25,
    "A sliding cache of 4 L_tr costs Sandwich a little, and ALiBi nothing.",
    f"At 8 L_tr and on the same targets: Sandwich is significantly worse, and surely by less than {SMALL_COST:.0%}; "
    f"ALiBi surely changes by at most {NO_COST:.1%}. Sandwich significantly better, or surely changed by no more than "
    "that, decides against it. Seeds must agree.",
)  # fmt: skip
def sliding_cache(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        gaps, models = [], ("sandwich", "alibi")
        for model in models:
            with_cache, without = (
                evidence.each(model, corpus, **cached(evidence.results, window)) for window in (True, False)
            )
            gaps.append(evidence.gap(with_cache, without, LENGTHS[:1]))
        sandwich, alibi = gaps = corrected(gaps)
        lines = [
            f"{model} × {math.exp(gap.paired.difference):.4f} ({tested(gap)})"
            for model, gap in zip(models, gaps, strict=True)
        ]
        better, small, none = sandwich.falls(), math.log1p(SMALL_COST), math.log1p(NO_COST)
        limited = sandwich.agreed(sandwich.at_most(small), lambda difference: difference <= small, min_seeds=1)
        costs = not better if better is not None else False if sandwich.rests(none) else None
        return settled([costs, limited, alibi.rests(none)]), lines

    return over(evidence, ALL_CORPORA, test)


@claim(
    "early-tokens", 26,
    "Evaluating consecutive pieces that do not overlap flatters long lengths: tokens early in a piece see too little.",
    "A window and ALiBi seem to gain by 1 % or more, and significantly, from L_tr to 8 L_tr by that protocol, with "
    "each seed, and gain less by the paper's. A gain that is surely smaller, or as large by the paper's, with "
    "each seed, decides against it.",
)  # fmt: skip
def early_tokens(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        answers: list[Answer] = []
        lines = []
        gaps = []
        for protocol in ("non-overlapping", "last-token"):
            evaluations = [evidence.each(model, corpus, protocol=protocol) for model in EARLY_TOKEN_MODELS]
            gaps.append(corrected([evidence.gap(by_seed, by_seed, [TRAINED], [2 * CACHE]) for by_seed in evaluations]))
        for model, pieces, last_token in zip(EARLY_TOKEN_MODELS, *gaps, strict=True):
            in_pieces, by_paper = pieces.paired.difference, last_token.paired.difference
            gains = pieces.certain and in_pieces >= SMALL
            answer = True if gains else False if pieces.interval.high < SMALL else None
            pairs = zip((in_pieces, *pieces.seeds), (by_paper, *last_token.seeds), strict=True)
            as_large = all(paper >= piece for piece, paper in pairs)
            agreed = pieces.agreed(answer, lambda difference: difference >= SMALL, min_seeds=1)
            answers.append(False if gains and as_large else agreed)
            gain = f"{in_pieces:+.4f} nats in pieces ({tested(pieces)})"
            lines.append(f"{evidence.results.label(model)}: {gain}, {by_paper:+.4f} by the paper's")
        return settled(answers), lines

    return over(evidence, ALL_CORPORA, test, "more pieces, from more documents")
