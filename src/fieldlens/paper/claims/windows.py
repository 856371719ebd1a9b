"""Claims about windowed attention."""

from math import log

from fieldlens.paper.artifacts.arxiv_openwebtext2 import WINDOWS
from fieldlens.paper.claims import Finding, claim
from fieldlens.paper.evidence import Evidence, NotTestable, Run
from fieldlens.schemes.spec import parse

NARROWEST, WIDEST = WINDOWS[0], WINDOWS[-1]


@claim(
    "narrow-windows",
    "A small window predicts worse at L_tr: attention needs room.",
    "At L_tr the loss of the widest window (320) is below that of the narrowest (40).",
    runs=[WIDEST, NARROWEST], uses=[WIDEST], primary=1,
)  # fmt: skip
def narrow_windows(evidence: Evidence, corpus: str) -> Finding:
    return Finding([evidence.contrast(Run(WIDEST), Run(NARROWEST), corpus, [1])])


@claim(
    "wide-windows-fail",
    "A large window diverges past L_tr.",
    "At 4 L_tr the perplexity of the widest window (320) is at least 5 % above that at L_tr.",
    runs=[WIDEST], primary=1,
)  # fmt: skip
def wide_windows_fail(evidence: Evidence, corpus: str) -> Finding:
    return Finding([evidence.change(Run(WIDEST), corpus, 1, 4, bound=log(1.05), at_most=False)])


@claim(
    "longer-training-repairs-windows",
    "A window that fails is repaired by a training length that covers its receptive field.",
    "Trained on 4 L_tr, the widest window (320) has at 16 L_tr at most 2 % more perplexity than at 4 L_tr, and a lower "
    "loss there than the same window trained on L_tr.",
    runs=[WIDEST, Run(WIDEST, 4)], primary=2,
)  # fmt: skip
def longer_training_repairs_windows(evidence: Evidence, corpus: str) -> Finding:
    longer = Run(WIDEST, 4)
    return Finding([
        evidence.change(longer, corpus, 4, 16, bound=log(1.02), at_most=True),
        evidence.contrast(longer, Run(WIDEST), corpus, [16]),
    ])  # fmt: skip


@claim(
    "longer-training-repairs-w160",
    "The paper's own case: w = 160 is repaired by a training length of 2 L_tr.",
    "Trained on L_tr, it has at 4 L_tr at least 5 % more perplexity than at L_tr. Trained on 2 L_tr, it has at 16 L_tr "
    "at most 2 % more than at 4 L_tr, and a lower loss there than the same window trained on L_tr.",
    runs=["window:160", Run("window:160", 2)],
)  # fmt: skip
def longer_training_repairs_w160(evidence: Evidence, corpus: str) -> Finding:
    usual, longer = Run("window:160"), Run("window:160", 2)
    return Finding([
        evidence.change(usual, corpus, 1, 4, bound=log(1.05), at_most=False),
        evidence.change(longer, corpus, 4, 16, bound=log(1.02), at_most=True),
        evidence.contrast(longer, usual, corpus, [16]),
    ])  # fmt: skip


@claim(
    "trf-suffices",
    "A window whose theoretical receptive field lies within L_tr extrapolates.",
    "R(w - 1) + 1 ≤ L_tr for w = 40, and from L_tr to 16 L_tr its perplexity changes by at most 1 %.",
    runs=[NARROWEST], uses=[],
)  # fmt: skip
def trf_suffices(evidence: Evidence, corpus: str) -> Finding:
    results = evidence.results
    reach = results.layers * (parse(results.spec(NARROWEST))[1]["window"] - 1) + 1
    lines = [f"reach {reach}, L_tr {results.trained}"]
    return Finding(evidence.steady(Run(NARROWEST), corpus, 1, 16, log(1.01)), [reach <= results.trained], lines)


@claim(
    "windows-covered",
    "Windowed models keep their perplexity while the training length covers their ERF, and lose it beyond.",
    "For each of six windows: if ERF ≤ L_tr, the perplexity at 4 L_tr is at most 1 % above that at L_tr, and if ERF > "
    "L_tr it is at least 1 % above it. Without windows on both sides of L_tr it is not testable.",
    runs=WINDOWS, uses=[WIDEST],
)  # fmt: skip
def windows_covered(evidence: Evidence, corpus: str) -> Finding:
    fields = {model: evidence.field(Run(model), corpus) for model in WINDOWS}
    covered = {model: field.erf(0.99) <= evidence.results.trained for model, field in fields.items()}
    lines = [f"{evidence.results.label(model)}: ERF {field.bounded()}" for model, field in fields.items()]
    if len(set(covered.values())) == 1:
        raise NotTestable("all windows on one side of L_tr", *lines)
    return Finding([
        evidence.change(Run(model), corpus, 1, 4, bound=log(1.01), at_most=inside) for model, inside in covered.items()
    ], (), lines)  # fmt: skip


@claim(
    "erf-predicts",
    "A window whose theoretical reach exceeds L_tr still extrapolates when its ERF does not.",
    "Each window with R·w > L_tr and ERF ≤ L_tr has at 4 L_tr at most 1 % more perplexity than at L_tr. Without such a "
    "window it is not testable.",
    runs=WINDOWS, uses=WINDOWS[1:3],
)  # fmt: skip
def erf_predicts(evidence: Evidence, corpus: str) -> Finding:
    results = evidence.results
    beyond = [model for model in WINDOWS if results.layers * parse(results.spec(model))[1]["window"] > results.trained]
    fields = {model: evidence.field(Run(model), corpus) for model in beyond}
    lines = [f"{results.label(model)}: ERF {field.bounded()}" for model, field in fields.items()]
    covered = [model for model, field in fields.items() if field.erf(0.99) <= results.trained]
    if not covered:
        raise NotTestable("no window whose reach exceeds L_tr and whose ERF does not", *lines)
    comparisons = [evidence.change(Run(model), corpus, 1, 4, bound=log(1.01), at_most=True) for model in covered]
    return Finding(comparisons, (), lines)


@claim(
    "windows-erf",
    "Windows of 120, 160 and 320 keys have ERFs of 1.5, 2 and 3 L_tr; those up to 100 keys have at most L_tr.",
    "Each is within 0.25 L_tr of that, half a tick of the paper's axis. A saturated field is not testable.",
    runs=WINDOWS, uses=[WIDEST],
)  # fmt: skip
def windows_erf(evidence: Evidence, corpus: str) -> Finding:
    fields = {model: evidence.field(Run(model), corpus) for model in WINDOWS}
    lines = [
        f"{evidence.results.label(model)}: ERF {field.bounded()}, {field.erf(0.99) / evidence.results.trained:.2f} L_tr"
        for model, field in fields.items()
    ]
    if any(field.saturated() for field in fields.values()):
        raise NotTestable("saturated", *lines)
    relative = [field.erf(0.99) / evidence.results.trained for field in fields.values()]
    answers = [erf <= 1 for erf in relative[:3]]
    answers += [abs(erf - printed) <= 0.25 for erf, printed in zip(relative[3:], (1.5, 2, 3), strict=True)]
    return Finding((), answers, lines)
