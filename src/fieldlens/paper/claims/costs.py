"""Claims about the costs of learned parameters."""

import statistics

from fieldlens.paper.claims import Finding, claim
from fieldlens.paper.evidence import Answer, Evidence, Missing, NotTestable, Run

EQUAL_COST = ("sandwich", "smoothed", "alibi")
"""Fixed biases: a training step costs the same with each, so their times differ only by noise."""


@claim(
    "learned-costs",
    "Learned schemes are larger and slower; T5 takes some 10 % more time to train than Sandwich.",
    "KERPLE and T5 have more parameters than Sandwich; with each shared seed KERPLE trained longer, and T5 by at least "
    "5 %, both by more than Sandwich, Smoothed and ALiBi, whose steps cost the same, differ. One that is not larger, "
    "or that trained shorter by as much with each seed, decides against it.",
    runs=["sandwich", "smoothed", "alibi", "kerple", "t5"], uses=[],
)  # fmt: skip
def learned_costs(evidence: Evidence, corpus: str) -> Finding:
    sizes = {model: _size(evidence, model, corpus) for model in ("sandwich", "kerple", "t5")}
    noise = _noise(evidence, corpus)
    answers: list[Answer] = []
    lines = [f"of models whose steps cost the same, one takes up to × {noise:.2f} as long as another"]
    for model, minimum in (("kerple", 1.0), ("t5", 1.05)):
        more, ratios = sizes[model] - sizes["sandwich"], _time_ratios(evidence, model, corpus)
        longer, shorter = min(ratios) > max(minimum, noise), max(ratios) < 1 / noise
        answers += [more > 0, True if longer else False if shorter else None]
        by_seed = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        lines.append(f"{model}: {more:+,} parameters, × {statistics.fmean(ratios):.2f} as long (seeds {by_seed})")
    return Finding((), answers, lines)


def _size(evidence: Evidence, model: str, corpus: str) -> int:
    sizes = evidence.results.parameters(model, corpus)
    if not sizes:
        raise evidence.missing(Run(model), corpus)
    return next(iter(sizes.values()))


def _noise(evidence: Evidence, corpus: str) -> float:
    """The largest ratio of training times of two models of equal cost with the same seed."""
    times = [evidence.results.seconds(name, corpus) for name in EQUAL_COST]
    by_seed = [[seconds[seed] for seconds in times if seed in seconds] for seed in set().union(*times)]
    ratios = [max(seconds) / min(seconds) for seconds in by_seed if len(seconds) > 1]
    if not ratios:
        raise Missing("the training times of models whose steps cost the same")
    return max(ratios)


def _time_ratios(evidence: Evidence, model: str, corpus: str) -> list[float]:
    """Training time relative to Sandwich, for each seed."""
    seconds, sandwich = (evidence.results.seconds(name, corpus) for name in (model, "sandwich"))
    shared = sorted(seconds.keys() & sandwich.keys())
    if not shared:
        raise Missing(f"the training times of {model} and of Sandwich with the same seed")
    return [seconds[seed] / sandwich[seed] for seed in shared]


@claim(
    "learned-memory",
    "Learned schemes often consume more GPU memory.",
    "Peak memory of training KERPLE and T5 exceeds Sandwich's. The study runs on CPUs: not testable.",
)  # fmt: skip
def learned_memory(evidence: Evidence, corpus: str) -> Finding:
    raise NotTestable("no GPU")
