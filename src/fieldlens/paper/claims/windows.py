"""Claims about windows, receptive fields and what they predict."""

import math

from fieldlens.evaluation import Evaluation
from fieldlens.paper.artifacts.arxiv_openwebtext2 import MODELS, SHIFTS, WINDOWS
from fieldlens.paper.artifacts.extended_training_length import FIXED
from fieldlens.paper.claims import SEEDS, Outcome, agreed, claim, over, settled
from fieldlens.paper.evidence import SMALL, Answer, Evidence, plateau, times
from fieldlens.paper.scale import TRAINED
from fieldlens.paper.shelf import MOST
from fieldlens.receptive import ReceptiveField
from fieldlens.schemes import parse


def _said(evidence: Evidence, model: str, corpus: str) -> str:
    ends = {True: "breaks", False: "stays", None: "uncertain"}[evidence.breaks(model, corpus)]
    field = evidence.field(model, corpus)
    return f"{evidence.shelf.spec(model)}: ERF {field.bounded()}, {ends} ({times(evidence.worst(model, corpus))})"


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
        agree = settled([None if a is None or b is None else a != b for a, b in pairs])
        both = True in covered and False in covered
        return agree if both or agree is False else None, [_said(evidence, model, corpus) for model in WINDOWS]

    return over(evidence, MOST, test)


@claim(
    "erf-predicts", 7,
    "A window whose theoretical reach exceeds L_tr still extrapolates when its ERF does not.",
    "There are windows with w·R > L_tr and ERF ≤ L_tr, and each of them is surely not worse past L_tr by 1 % or more.",
)  # fmt: skip
def erf_predicts(evidence: Evidence) -> Outcome:
    layers = evidence.shelf.study.whole[0].recipe.layers

    def test(corpus: str) -> tuple[Answer, list[str]]:
        shelf = evidence.shelf
        beyond = [model for model in WINDOWS if layers * parse(shelf.spec(model))[1]["window"] > shelf.trained]
        fitting = [model for model in beyond if evidence.covered(model, corpus)]
        said = [_said(evidence, model, corpus) for model in beyond]
        broken = [evidence.breaks(model, corpus) for model in fitting]
        return settled([None if one is None else not one for one in broken]) if fitting else None, said

    return over(evidence, MOST, test)


@claim(
    "constant-or-explodes", 5,
    "Past some length perplexity either stays the same or has exploded.",
    "For each of the three experiments' models: perplexity at 16 L_tr is within 1 % of that at 8 L_tr, or × 1.5 of "
    "that at L_tr or more, either surely.",
)  # fmt: skip
def constant_or_explodes(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        found, odd = [], []
        for model in MODELS:
            one = evidence.each(model, corpus)
            moved, exploded = evidence.gap(one, one, [8192], [4096]), evidence.explodes(model, corpus)
            rests = moved.rests(SMALL)
            found.append(True if rests or exploded else False if rests is False and exploded is False else None)
            if found[-1] is not True:
                what = "moves by" if found[-1] is False else "uncertain:"
                odd.append(f"{evidence.shelf.spec(model)} {what} {times(math.exp(moved.found.difference))}")
        return settled(found), odd or [f"all of {len(MODELS)} models"]

    return over(evidence, MOST, test)


@claim(
    "plateau-at-erf", 6,
    "Perplexity becomes constant where the length reaches the ERF.",
    "For each window and shift whose ERF is bounded, and whose perplexity moves past L_tr and then settles: the first "
    "length of the plateau (within 1 % of the last) is the first one measured that holds the ERF, with each seed.",
)  # fmt: skip
def plateau_at_erf(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        found: list[Answer] = []
        said = []
        for model in (*WINDOWS, *SHIFTS):
            fields, losses = evidence.fields(model, corpus), evidence.each(model, corpus)
            pairs = [_onset(evidence, fields[seed], losses[seed]) for seed in sorted(fields.keys() & losses.keys())]
            if not pairs or None in pairs:
                continue
            known = [pair for pair in pairs if pair is not None]
            found.append(agreed([there for *_, there in known]))
            words = ", ".join(f"ERF {erf}, constant from {onset}" for erf, onset, _ in known)
            said.append(f"{evidence.shelf.spec(model)}: {words}")
        return settled(found) if found else None, said

    return over(evidence, MOST, test, "a window or shift whose perplexity moves past L_tr and then settles")


def _onset(evidence: Evidence, field: ReceptiveField, one: Evaluation) -> tuple[int, int, bool] | None:
    """One model's ERF, where its plateau begins, and whether there; None where nothing can be told."""
    lengths = [length for length in sorted(one.losses) if length >= evidence.shelf.trained]
    onset = plateau({length: one.quantities(length) for length in lengths})
    holding = [length for length in lengths if length >= field.erf(0.99)]
    if field.saturated() or onset in (lengths[0], lengths[-1]) or not holding:
        return None
    return field.erf(0.99), onset, onset == holding[0]


@claim(
    "longer-training-repairs", 9,
    "What failed is repaired by a training length that covers the ERF.",
    "Both cases explode at the usual L_tr and not at the longer one.",
)  # fmt: skip
def longer_training_repairs(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        found, said = [], []
        for model, longer in FIXED.items():
            before, after = (evidence.worst(model, corpus, trained) for trained in (TRAINED, longer))
            failed, repaired = evidence.explodes(model, corpus), evidence.explodes(model, corpus, longer)
            found.append(None if not failed or repaired is None else not repaired)
            lengths = [evidence.shelf.length(n) for n in (TRAINED, longer)]
            spec = evidence.shelf.spec(model)
            said.append(f"{spec}: at most {times(before)} trained on {lengths[0]}, {times(after)} on {lengths[1]}")
        return settled(found), said

    return over(evidence, MOST, test, "a case that fails at the usual L_tr in the first place, for each")


@claim(
    "coverage-necessary", 8,
    "Models whose ERF exceeds the training length fail to extrapolate: windows, shifted slopes.",
    "Every window or shift with ERF > L_tr is significantly worse past L_tr by 1 % or more; one that surely is not "
    "decides against it.",
)  # fmt: skip
def coverage_necessary(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        beyond = [model for model in (*WINDOWS, *SHIFTS) if evidence.covered(model, corpus) is False]
        said = [_said(evidence, model, corpus) for model in beyond]
        return settled([evidence.breaks(model, corpus) for model in beyond]) if beyond else None, said

    return over(evidence, MOST, test)


@claim(
    "narrow-windows", 3,
    "A small window predicts worse at L_tr: attention needs room.",
    "The loss of the smallest window is higher than that of the four that follow it: significantly (documents "
    "flipped, Holm), and with each of two or more seeds. Lower than theirs, likewise, decides against it.",
)  # fmt: skip
def narrow_windows(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        found, said = evidence.lower(corpus, [(wider, WINDOWS[0]) for wider in WINDOWS[1:5]], [TRAINED])
        return settled(found), said

    return over(evidence, MOST, test, SEEDS)
