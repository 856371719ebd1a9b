"""The claims page: every claim with its rule, evidence and verdict, as HTML and as Markdown."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fieldlens.paper.artifact import CAVEAT, cut
from fieldlens.paper.judge import VERDICTS, Judged, Outcome
from fieldlens.paper.registration import SEEN_BEFORE, exploratory, in_words, read_registration, summary
from fieldlens.paper.results import PaperResults
from fieldlens.reporting import blocks as report
from fieldlens.reporting.table import Table
from fieldlens.storage.atomic import replace_text

TITLE = "What the paper claims, and what our results say"
HOW = (
    "Every verdict is computed from the results by the rule printed with it; none is written by hand. L_tr is the "
    "training length. A rule compares a difference in loss (in nats, reported as a ratio of perplexities) with a "
    "bound. The claim **holds** if the difference is significantly on the claimed side of the bound (p < .05) and "
    "every seed is on that side. It **does not hold** if the same is true of the other side. Otherwise it is "
    "**undecided**. To compare two lengths of one model, we use a sign-flip permutation test over documents. To "
    "compare two models, a t-test over seeds must be significant as well; if either model has only one seed, the "
    "variance between seeds is estimated from Sandwich, ALiBi and KERPLE. p-values are Holm-corrected over all "
    "primary tests of a corpus, including tests whose results are still missing; for other claims the correction is "
    "within each claim. With three or more seeds, a paired t-test over seeds is also shown, for information only. "
    "Rules about shares of the gradient and about receptive fields have no test: they compare the values of each seed "
    "with the bounds."
)
GATES = (
    "**No context use**: some model of the claim is not shown to use its context. NLL(L_tr/2) - NLL(L_tr) must be at "
    "least 0.01 nats with every seed, and so must the lower bound of its 95 % confidence interval. In the lists "
    "below, `surely +0.135` means that the lower bound is +0.135 nats.",
    "**No headroom**: Sandwich trained on 4 L_tr is not shown to predict better from 4 L_tr tokens than from L_tr. "
    "The same bounds apply to NLL(L_tr) - NLL(4 L_tr).",
    "**Saturated**: the receptive field exceeds 0.9 of the measured context (where the rule says so).",
)
"""When a claim is not testable."""
PRACTICE = (
    "The verdict is that of the first corpus, code; if another corpus contradicts it, the claim is undecided. Models "
    "are evaluated at their last step, on the test split. They are named by the paper's settings, followed by ours "
    "after a bar: `w 320 | 80` is a window of 320 in the paper and 80 here.",
    "What was known before the rules were fixed: one Sandwich and one half-trained ALiBi with this recipe had been "
    "evaluated on the test split once, on 400 segments. The pilot had evaluated Sandwich with the same recipe and "
    "seed 1235, trained on L_tr and on 4 L_tr, on the validation split: its loss fell from L_tr to 2 L_tr, and there "
    "was headroom. For claims about this, such as `sandwich-improves`, seed 1235 is therefore no independent "
    "evidence; only further seeds are. Rotary's first seed on code had been trained, for the pilot, to step 41,000 of "
    "48,000.",
    "Controls: each rule was first run on two other sets of numbers. On the paper's printed numbers, every rule about "
    "losses or receptive fields must hold for GitHub, or for ArXiv if the paper prints nothing for GitHub; the one "
    "exception is `longer-training-repairs-d6`, whose printed numbers contradict the claim. On shuffled lengths, a "
    "rule about losses must not hold. There, most claims are already **not testable**, because no context use is "
    "shown. A test therefore runs nine main rules about lengths again without the requirements of context use and "
    "headroom, and checks that they still do not hold. Claims about formulas and costs do not depend on lengths.",
    "Reading the evidence: `a from 64 to 128: × 0.931 (0.911 to 0.951), at most × 0.990: p = …; seeds …` states the "
    "ratio of the perplexities of model a at the two lengths, its 95 % interval, the bound that the claim requires, "
    "the p-value, and the ratio of each seed. `a minus b` is the difference in loss between two models, printed as "
    "the ratio of their perplexities. Lines that begin with *review* state what an independent review found when it "
    "tried to break the verdict; they do not change it.",
    "Names: `w` is a window in tokens. `Δ s` is ALiBi with all slopes divided by 2^s (`alibi:shift=s`), and `h s` is "
    "ALiBi with the slope 2^-s in every head (`alibi:same=s`). In `dims-window` and `case-of-kerple`, h is the number "
    "of a head; in `two-fits`, Δ is the distance. d̄ is the option `dims` of Sandwich. *The three experiments* are "
    "those with windows, shifted slopes and equal slopes.",
)
NOT_TESTABLE = "A claim is **not testable** in three cases:"
REVIEWED = {
    "sandwich-improves": (
        "seed 1235 was known from the pilot (× 0.937 on the validation split). The ratio stays below "
        "0.99 in each of these analyses: segments, packages or languages are resampled instead of documents; the 20 "
        "documents that support the claim most are removed; each language is analysed separately. Few tokens carry it: "
        "54 % of the gain comes from 1 % of the targets, and the median target gains nothing"
    ),
    "rotary-explodes": (
        "all 84 documents get worse, 79 of them by more than × 1.5; no alternative analysis changed the verdict"
    ),
    "sandwich-spreads": (
        "not a firm verdict: the bound of 70 % lies inside the bootstrap intervals over documents, 69.0 to 76.7 % and "
        "65.5 to 75.4 %, and the receptive field is saturated (252 and 254 of 256 tokens)"
    ),
    "rotary-rings": (
        "the receptive field is saturated (254 and 255 of 256 tokens); the rule is met in 8 to "
        "13 % of bootstrap samples"
    ),
}
"""What an independent review of 2026-11-18 found when it tried to break verdicts, with 5 runs of the study."""
CLARIFIED = {
    "erf-grows": "the ERF must not decrease by more than 5 % from one window or shift to the next larger one.",
    "parity-fails": (
        "a bias towards recent tokens fails on tasks in which all tokens matter equally. The result of one training "
        "run (Rotary, seed 1237) was added after the registration."
    ),
    "equation-3": (
        "the share of a part is its covariance with the scores divided by the variance of the scores; shares sum to "
        "100 % and can be negative."
    ),
    "learned-costs": (
        "steps of Sandwich, Smoothed and ALiBi cost the same, so their training times differ only by noise. For each "
        "seed, divide the longest of their training times by the shortest; the noise is the largest of these ratios. "
        "Relative to Sandwich, KERPLE's training "
        "time must exceed the noise with every seed, and T5's must exceed the noise and × 1.05. The claim does not "
        "hold if KERPLE or T5 has no more parameters than Sandwich, or if its relative time is below 1 / noise with "
        "every seed."
    ),
    "sinusoidal-jumps": (
        "a span is near if it lies within L_tr / 4 of position L_tr. The claim holds if the heaviest near span has at "
        "least 2 times the mean and 1.25 times the heaviest other span. It does not hold if another span has at least "
        "1.25 times the heaviest near span, or if the heaviest near span has less than 1.6 times the mean."
    ),
    "rotary-rings": (
        "of all spans, take the heaviest, and the heaviest of those at least L_tr / 2 away from it. Each must have at "
        "least 2 times the mean, and their distance must equal one of the wavelengths to within 5 %."
    ),
    "slope-floor": "a lower limit of 0.01 on the slopes would explain it, because it makes three models identical.",
    "exact-reach": (
        "the gradient is exactly zero for tokens farther back than R(w - 1) + 1, and not zero for the token at that "
        "distance."
    ),
    "dims-window": "with a larger d̄, the softmax of the bias puts more weight on the most recent tokens.",
}
"""Rules in other words. The rules themselves are registered, so their wording is not changed."""
SECTIONS = ("Primary claims", "Further claims of the paper", "Findings of our own")


def section_of(verdict: Judged) -> str:
    return SECTIONS[2] if verdict.claim.ours else SECTIONS[0] if verdict.claim.primary else SECTIONS[1]


def table_of(verdicts: Sequence[Judged]) -> Table:
    """A table with one row per claim."""
    rows = [[verdict.claim.name, in_words(verdict), verdict.claim.says] for verdict in verdicts]
    counts = {word: sum(verdict.verdict == word for verdict in verdicts) for word in VERDICTS}
    title = ", ".join(f"{count} {word}" for word, count in counts.items())
    return Table(["claim", "verdict", "what it says"], rows, title)


def write_pages(results: PaperResults, verdicts: Sequence[Judged], out: Path) -> list[Path]:
    """Write claims.html and claims.md into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in (("claims.html", html(results, verdicts)), ("claims.md", markdown(results, verdicts))):
        replace_text(out / name, text)
        written.append(out / name)
    return written


def markdown(results: PaperResults, verdicts: Sequence[Judged]) -> str:
    """The page in Markdown."""
    registered = read_registration(results.folder)
    lines = [f"# {TITLE}", "", HOW, "", NOT_TESTABLE, "", *(f"- {gate}" for gate in GATES), ""]
    lines += [f"{text}\n" for text in (*PRACTICE, *_notes(results, registered))]
    lines += [f"{table_of(verdicts).title}.", ""]
    for heading in SECTIONS:
        section = [verdict for verdict in verdicts if section_of(verdict) == heading]
        lines += [f"## {heading}", "", "| claim | verdict | what it says |", "|---|---|---|"]
        lines += [
            f"| [{verdict.claim.name}](#{verdict.claim.name}) | "
            f"{_cell(in_words(verdict))} | {_cell(verdict.claim.says)} |"
            for verdict in section
        ]
        lines += [""]
        for verdict in section:
            lines += [f"### {verdict.claim.name}", "", f"**{in_words(verdict)}.** {verdict.claim.says}", ""]
            lines += [f"*Rule:* {verdict.claim.rule}", "", *(f"- {text}" for text in _details(verdict, registered)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _cell(text: str) -> str:
    """Text for a cell of a Markdown table, in which a bar would end the cell."""
    return text.replace("|", "\\|")


def html(results: PaperResults, verdicts: Sequence[Judged]) -> str:
    """The page as one HTML file."""
    registered = read_registration(results.folder)
    counts = [(word, sum(verdict.verdict == word for verdict in verdicts)) for word in VERDICTS]
    blocks: list[report.Block] = [
        report.Cards([report.Card(str(count), word) for word, count in counts]),
        report.Text([HOW, NOT_TESTABLE, *GATES, *PRACTICE]),
        report.Note("info", _notes(results, registered)),
    ]
    for heading in SECTIONS:
        section = [verdict for verdict in verdicts if section_of(verdict) == heading]
        rows = [[verdict.claim.name, in_words(verdict), verdict.claim.says] for verdict in section]
        blocks += [report.Heading(heading), report.DataTable(["claim", "verdict", "what it says"], rows)]
        for verdict in section:
            evidence = [[text] for text in _details(verdict, registered)]
            inner: list[report.Block] = [report.Text([verdict.claim.says, f"**Rule:** {verdict.claim.rule}"])]
            inner += [report.DataTable(["evidence"], evidence)] if evidence else []
            blocks.append(report.Details(f"{verdict.claim.name}: {in_words(verdict)}", inner))
    study = results.study
    return report.page(TITLE, study.title, blocks, {"from the results of": study.name})


def _details(verdict: Judged, registered: dict[str, Any] | None) -> list[str]:
    """The evidence of a claim by corpus, its controls, and later changes of its rule."""
    lines = [f"in other words: {CLARIFIED[verdict.claim.name]}"] if verdict.claim.name in CLARIFIED else []
    lines += [text for outcome in verdict.outcomes for text in _outcome(outcome)]
    if registered is not None:
        control = registered["controls"].get(verdict.claim.name)
        if control is not None:
            lines.append(
                f"controls: printed numbers: {_reasoned(control['printed'])}; "
                f"shuffled lengths: {_reasoned(control['shuffled'])}"
            )
        if verdict.claim.name in SEEN_BEFORE:
            lines.append(f"exploratory: {SEEN_BEFORE[verdict.claim.name]}")
        lines += [f"exploratory: {note}" for note in exploratory(registered).get(verdict.claim.name, [])]
        if verdict.claim.name in REVIEWED:
            lines.append(f"review of 2026-11-18: {REVIEWED[verdict.claim.name]}")
    return lines


def _reasoned(verdict: str) -> str:
    """A verdict with its reason in parentheses, for use inside a sentence."""
    word, _, reason = verdict.partition(": ")
    return f"{word} ({reason})" if reason else word


def _outcome(outcome: Outcome) -> list[str]:
    reason = f": {outcome.reason}" if outcome.reason else ""
    heading = [f"{outcome.corpus}: {outcome.verdict}{reason}"] if outcome.corpus else []
    return [*heading, *outcome.lines]


def _notes(results: PaperResults, registered: dict[str, Any] | None) -> list[str]:
    """The notes above the claims: registration, runs, diverged runs and corpora."""
    runs = cut(results.study.whole, results)
    notes = [summary(registered, results)]
    notes += [
        f"Results that are available: {runs} of study `{results.study.name}`. The models are trained on sequences of "
        f"{results.trained} tokens."
    ]
    diverged = results.diverged()
    notes += [f"Diverged, and counted as no number: {', '.join(diverged)}."] if diverged else []
    return notes + ([CAVEAT] if results.corpus("arxiv") != "arxiv" else [])
