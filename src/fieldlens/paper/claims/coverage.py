"""Claims about what the empirical receptive field (ERF) predicts."""

from itertools import pairwise
from math import log

from fieldlens.paper.artifacts.arxiv_openwebtext2 import MODELS, SHIFTS, WINDOWS
from fieldlens.paper.claims import Finding, claim
from fieldlens.paper.evidence import Comparison, Evidence, NotTestable, Run
from fieldlens.receptive.field import ReceptiveField

WIDE = (WINDOWS[-1], SHIFTS[-1])


def _fields(evidence: Evidence, models: tuple[str, ...], corpus: str) -> tuple[dict[str, ReceptiveField], list[str]]:
    fields = {model: evidence.field(Run(model), corpus) for model in models}
    return fields, [f"{evidence.results.label(model)}: ERF {field.bounded()}" for model, field in fields.items()]


@claim(
    "erf-grows",
    "The ERF grows with the window and with Δ.",
    "From each window or shift to the next the ERF falls by at most 5 %, and those of the widest window and the "
    "flattest slopes are at least × 1.5 those of the narrowest and the steepest. Where the smallest is saturated it "
    "is not testable.",
    runs=(*WINDOWS, *SHIFTS), uses=WIDE,
)  # fmt: skip
def erf_grows(evidence: Evidence, corpus: str) -> Finding:
    answers: list[bool | None] = []
    lines: list[str] = []
    for models in (WINDOWS, SHIFTS):
        fields, more = _fields(evidence, models, corpus)
        lines += more
        if fields[models[0]].saturated():
            raise NotTestable("saturated", *lines)
        erfs = [field.erf(0.99) for field in fields.values()]
        answers += [erfs[-1] >= 1.5 * erfs[0], all(after >= 0.95 * before for before, after in pairwise(erfs))]
    return Finding((), answers, lines)


@claim(
    "coverage-necessary",
    "Models whose ERF exceeds the training length fail to extrapolate: windows, shifted slopes.",
    "Every window or shift with ERF > L_tr has at 4 L_tr at least 1 % more perplexity than at L_tr. Without one it is "
    "not testable.",
    runs=(*WINDOWS, *SHIFTS), uses=WIDE,
)  # fmt: skip
def coverage_necessary(evidence: Evidence, corpus: str) -> Finding:
    fields, lines = _fields(evidence, (*WINDOWS, *SHIFTS), corpus)
    beyond = [model for model, field in fields.items() if field.erf(0.99) > evidence.results.trained]
    if not beyond:
        raise NotTestable("no ERF exceeds L_tr", *lines)
    comparisons = [evidence.change(Run(model), corpus, 1, 4, bound=log(1.01), at_most=False) for model in beyond]
    return Finding(comparisons, (), lines)


@claim(
    "constant-or-explodes",
    "Past some length perplexity either stays the same or has exploded.",
    "For each model of the three experiments: at 16 L_tr perplexity is at least × 1.5 that at L_tr, or else it changes "
    "by at most 1 % from 8 to 16 L_tr.",
    runs=MODELS, uses=WIDE,
)  # fmt: skip
def constant_or_explodes(evidence: Evidence, corpus: str) -> Finding:
    comparisons: list[Comparison] = []
    for model in MODELS:
        exploded = evidence.change(Run(model), corpus, 1, 16, bound=log(1.5), at_most=False)
        grown = exploded.difference >= log(1.5)
        comparisons += [exploded] if grown else evidence.steady(Run(model), corpus, 8, 16, log(1.01))
    return Finding(comparisons)


@claim(
    "plateau-at-erf",
    "Perplexity becomes constant where the length reaches the ERF.",
    "For each window and shift whose ERF is not saturated and exceeds L_tr/2: from the first measured length that "
    "holds the ERF to 16 L_tr perplexity changes by at most 2 %, and from half that length to 16 L_tr by more. Without "
    "such a model it is not testable: saturated.",
    runs=(*WINDOWS, *SHIFTS), uses=WIDE,
)  # fmt: skip
def plateau_at_erf(evidence: Evidence, corpus: str) -> Finding:
    fields, lines = _fields(evidence, (*WINDOWS, *SHIFTS), corpus)
    comparisons: list[Comparison] = []
    for model, field in fields.items():
        relative = field.erf(0.99) / evidence.results.trained
        if field.saturated() or relative <= 0.5:
            continue
        holding = next(multiple for multiple in (1, 2, 4) if multiple >= relative)
        comparisons += evidence.steady(Run(model), corpus, holding, 16, log(1.02))
        before = evidence.change(Run(model), corpus, holding / 2, 16, bound=log(1.02), at_most=False)
        falls = before.difference < 0
        limit = -log(1.02) if falls else log(1.02)
        comparisons.append(evidence.change(Run(model), corpus, holding / 2, 16, bound=limit, at_most=falls))
    if not comparisons:
        raise NotTestable("saturated", *lines)
    return Finding(comparisons, (), lines)
