"""Claims about windows and receptive fields, and what these predict."""

import math

from fieldlens.evaluation.result import Evaluation
from fieldlens.paper.artifacts.arxiv_openwebtext2 import MODELS, SHIFTS, WINDOWS
from fieldlens.paper.artifacts.extended_training_length import LONGER_TRAINING
from fieldlens.paper.claims import SEEDS, Outcome, agreed, claim, over, settled
from fieldlens.paper.evidence import SMALL, Answer, Evidence, by_seed, corrected, plateau, tested, times
from fieldlens.paper.results import TWO_CORPORA
from fieldlens.paper.scale import LENGTHS, TRAINED
from fieldlens.receptive.field import ReceptiveField
from fieldlens.schemes.spec import parse


def _summary(evidence: Evidence, model: str, corpus: str) -> str:
    """Evidence line of a model: ERF, and whether perplexity rises past L_tr."""
    change = {True: "breaks", False: "stays", None: "uncertain"}[evidence.breaks(model, corpus)]
    field = evidence.field(model, corpus)
    return f"{evidence.results.label(model)}: ERF {field.bounded()}, {change} ({times(evidence.worst(model, corpus))})"


@claim(
    "windows-covered", 4,
    "Windowed models keep their perplexity while the training length covers their ERF, and lose it beyond.",
    "For each of six windows: ERF ≤ L_tr exactly where no length past L_tr is significantly worse by 1 % or more, with "
    "windows on both sides. A rise that is neither significant nor surely less than 1 % decides nothing.",
)  # fmt: skip
def windows_covered(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        covered = [evidence.covered(model, corpus) for model in WINDOWS]
        broken = [evidence.breaks(model, corpus) for model in WINDOWS]
        pairs = zip(covered, broken, strict=True)
        agree = settled([None if holds is None or fails is None else holds != fails for holds, fails in pairs])
        both = True in covered and False in covered
        return agree if both or agree is False else None, [_summary(evidence, model, corpus) for model in WINDOWS]

    return over(evidence, TWO_CORPORA, test)


@claim(
    "erf-predicts", 7,
    "A window whose theoretical reach exceeds L_tr still extrapolates when its ERF does not.",
    "There are windows with w·R > L_tr and ERF ≤ L_tr, and each of them is surely not worse past L_tr by 1 % or more.",
)  # fmt: skip
def erf_predicts(evidence: Evidence) -> Outcome:
    layers = evidence.results.study.whole[0].recipe.layers

    def test(corpus: str) -> tuple[Answer, list[str]]:
        results = evidence.results
        beyond = [model for model in WINDOWS if layers * parse(results.spec(model))[1]["window"] > results.trained]
        fitting = [model for model in beyond if evidence.covered(model, corpus)]
        lines = [_summary(evidence, model, corpus) for model in fitting]
        broken = [evidence.breaks(model, corpus) for model in fitting]
        return settled([None if breaks is None else not breaks for breaks in broken]) if fitting else None, lines

    return over(evidence, TWO_CORPORA, test)


@claim(
    "constant-or-explodes", 5,
    "Past some length perplexity either stays the same or has exploded.",
    "For each of the three experiments' models: perplexity at 16 L_tr is within 1 % of that at 8 L_tr, or × 1.5 of "
    "that at L_tr or more, either surely. One that still moves decides against it if its ERF has an end.",
    decides="fields measured at more than 4 L_tr, or the paper's own size: windows rest by construction, and what "
    "still moves has an ERF without an end here, so that nothing here can decide against it",
)  # fmt: skip
def constant_or_explodes(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        answers, exceptions = [], []
        for model in MODELS:
            evaluations = evidence.each(model, corpus)
            moved = evidence.gap(evaluations, evaluations, [8192], [4096])
            exploded = evidence.explodes(model, corpus)
            rests = moved.rests(SMALL)
            neither, field = rests is False and exploded is False, evidence.field(model, corpus)
            ends = not field.saturated()
            answers.append(True if rests or exploded else False if neither and ends else None)
            if answers[-1] is not True:
                status = "still moves," if neither else "uncertain:"
                ratio = times(math.exp(moved.paired.difference))
                exceptions.append(f"{evidence.results.label(model)} {status} {ratio}, ERF {field.bounded()}")
        return settled(answers), exceptions or [f"all of {len(MODELS)} models"]

    return over(evidence, TWO_CORPORA, test, "lengths past the field of what still moves, or more targets")


@claim(
    "plateau-at-erf", 6,
    "Perplexity becomes constant where the length reaches the ERF.",
    "For each window and shift whose ERF has an end beyond the shortest length: the plateau (perplexity within 1 % of "
    "that at 16 L_tr, from there on) begins at the first length measured that holds the ERF, with each seed. Earlier "
    "or later, with each seed, decides against it.",
)  # fmt: skip
def plateau_at_erf(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        answers: list[Answer] = []
        lines = []
        for model in (*WINDOWS, *SHIFTS):
            fields, evaluations = evidence.fields(model, corpus), evidence.each(model, corpus)
            pairs = [_onset(fields[seed], evaluations[seed]) for seed in sorted(fields.keys() & evaluations.keys())]
            plateaus = [pair for pair in pairs if pair is not None]
            if not plateaus:
                continue
            answers.append(agreed([pair and pair[2] for pair in pairs]))
            onsets = ", ".join(f"ERF {erf}, constant from {onset}" for erf, onset, _ in plateaus)
            lines.append(f"{evidence.results.label(model)}: {onsets}")
        return settled(answers) if answers else None, lines

    return over(evidence, TWO_CORPORA, test, "a window or shift whose perplexity settles, with each seed alike")


def _onset(field: ReceptiveField, evaluation: Evaluation) -> tuple[int, int, bool] | None:
    """ERF, onset of the plateau, and whether it is the first length ≥ ERF; None if ERF or onset is unknown."""
    lengths = sorted(evaluation.losses)
    onset = plateau({length: evaluation.quantities(length) for length in lengths})
    holding = [length for length in lengths if length >= field.erf(0.99)]
    if field.saturated() or onset == lengths[-1] or holding[:1] in ([], lengths[:1]):
        return None
    return field.erf(0.99), onset, onset == holding[0]


@claim(
    "longer-training-repairs", 9,
    "What failed is repaired by a training length that covers the ERF.",
    "Both cases are significantly worse past L_tr by 1 % or more; trained on a length that holds their ERF they do not "
    "explode, and their loss at the longest length is lower: significantly (documents flipped, Holm), and with each of "
    "two or more seeds. One that did not fail, or whose ERF may be longer, decides nothing.",
)  # fmt: skip
def longer_training_repairs(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        answers, lines = [], []
        gaps = corrected([evidence.repair(model, longer, corpus) for model, longer in LONGER_TRAINING.items()])
        for (model, longer), gap in zip(LONGER_TRAINING.items(), gaps, strict=True):
            before, after = (times(evidence.worst(model, corpus, trained)) for trained in (TRAINED, longer))
            explodes = evidence.explodes(model, corpus, longer)
            better = gap.agreed(gap.lower(), lambda difference: difference < 0)
            repaired = settled([None if explodes is None else not explodes, better])
            lengths = [evidence.results.length(n) for n in (TRAINED, longer, LENGTHS[-1])]
            field = evidence.field(model, corpus)
            covered = not field.saturated() and field.erf(0.99) <= lengths[1]
            answers.append(repaired if covered and evidence.breaks(model, corpus) else None)
            lines.append(
                f"{evidence.results.label(model)} (ERF {field.bounded()}): at most {before} trained on {lengths[0]}, "
                f"{after} on {lengths[1]}; "
                f"trained longer, it has {times(math.exp(gap.paired.difference))} of the perplexity at {lengths[2]} "
                f"({tested(gap)}{by_seed(gap, lambda nats: f'{math.exp(nats):.3f}')})"
            )
        return settled(answers), lines

    return over(
        evidence, TWO_CORPORA, test, "for each, a case that fails at the usual L_tr and whose ERF is known and covered"
    )


@claim(
    "coverage-necessary", 8,
    "Models whose ERF exceeds the training length fail to extrapolate: windows, shifted slopes.",
    "Every window or shift with ERF > L_tr is significantly worse past L_tr by 1 % or more; one that surely is not "
    "decides against it.",
)  # fmt: skip
def coverage_necessary(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        beyond = [model for model in (*WINDOWS, *SHIFTS) if evidence.covered(model, corpus) is False]
        lines = [_summary(evidence, model, corpus) for model in beyond]
        return settled([evidence.breaks(model, corpus) for model in beyond]) if beyond else None, lines

    return over(evidence, TWO_CORPORA, test)


@claim(
    "narrow-windows", 3,
    "A small window predicts worse at L_tr: attention needs room.",
    "The loss of the smallest window is higher than that of the four that follow it: significantly (documents "
    "flipped, Holm), and with each of two or more seeds. Lower than theirs, likewise, decides against it.",
)  # fmt: skip
def narrow_windows(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        answers, lines = evidence.lower(corpus, [(wider, WINDOWS[0]) for wider in WINDOWS[1:5]], [TRAINED])
        return settled(answers), lines

    return over(evidence, TWO_CORPORA, test, SEEDS)
