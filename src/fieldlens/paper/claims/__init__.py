"""Claims of the paper, each with a test that computes its verdict from results.

A claim is a function from evidence to an outcome, defined in a module of this package. A missing result makes it
undecided, and the outcome lists the runs that would decide it.
"""

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fieldlens.paper.evidence import Answer, Evidence, Missing
from fieldlens.paper.results import PaperResults

Verdict = Literal["holds", "does not hold", "undecided"]
VERDICTS: tuple[Verdict, ...] = ("holds", "does not hold", "undecided")
VERDICT: dict[Answer, Verdict] = {True: "holds", False: "does not hold", None: "undecided"}

SEEDS = "differences that are significant, and alike with each of two or more seeds"
"""What decides a comparison between models."""

FULL_SIZE = "the same test at the paper's own size: fieldlens paper claims --study paper-full"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a test."""

    verdict: Verdict
    evidence: Sequence[str] = ()
    needs: Sequence[str] = ()
    """Results that are missing."""
    wants: Sequence[str] = ()
    """What the available results do not show, so that the claim stays undecided."""


@dataclass(frozen=True)
class Claim:
    """One claim and its test."""

    name: str
    says: str
    """The claim in our words."""
    rule: str
    """The condition under which it holds."""
    ours: bool
    """Whether it is our finding instead of a claim of the paper."""
    decides: str
    """The scale or change that would decide it where it does not hold here."""
    order: int
    test: Callable[[Evidence], Outcome]


@dataclass(frozen=True)
class Judged:
    """A claim with its outcome."""

    name: str
    says: str
    rule: str
    ours: bool
    verdict: Verdict
    evidence: Sequence[str]
    needs: Sequence[str]
    wants: Sequence[str]
    decides: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


REGISTERED: dict[str, Claim] = {}


def claim(
    name: str, order: int, says: str, rule: str, ours: bool = False, decides: str = FULL_SIZE
) -> Callable[[Callable[[Evidence], Outcome]], Callable[[Evidence], Outcome]]:
    """Register a claim; `order` is its position on the page."""

    def declare(test: Callable[[Evidence], Outcome]) -> Callable[[Evidence], Outcome]:
        assert name not in REGISTERED, f"{name} is declared twice"
        REGISTERED[name] = Claim(name, says, rule, ours, decides, order, test)
        return test

    return declare


def registry() -> dict[str, Claim]:
    """Every claim by name, in the order of the page."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(REGISTERED.items(), key=lambda pair: (pair[1].ours, pair[1].order)))


def judge_one(claim: Claim, evidence: Evidence) -> Judged:
    """Test a claim."""
    try:
        outcome = claim.test(evidence)
    except Missing as missing:
        outcome = Outcome("undecided", (), (str(missing),))
    lines, needs, wants = tuple(outcome.evidence), tuple(outcome.needs), tuple(outcome.wants)
    tested = outcome.verdict == "does not hold" or (outcome.verdict == "undecided" and outcome.evidence)
    decides = claim.decides if tested and evidence.results.factor != 1 else ""
    return Judged(claim.name, claim.says, claim.rule, claim.ours, outcome.verdict, lines, needs, wants, decides)


def judged(results: PaperResults) -> list[Judged]:
    """Test every claim on the results of a study."""
    evidence = Evidence(results)
    return [judge_one(claim, evidence) for claim in registry().values()]


def settled(answers: Sequence[Answer]) -> Answer:
    """Combine answers: False if any is False, True if all are True, else None."""
    return False if False in answers else True if all(answers) else None


def agreed(answers: Sequence[Answer]) -> Answer:
    """The answer of all seeds if they agree, else None."""
    return answers[0] if len(set(answers)) == 1 else None


def over(
    evidence: Evidence,
    corpora: Sequence[str],
    test: Callable[[str], tuple[Answer, Sequence[str]]],
    needs: str = "more targets or seeds",
) -> Outcome:
    """Test a claim on each corpus: it must hold on every corpus with results; missing results are listed.

    The test returns an answer (None if undecided) and evidence lines; `needs` is what would decide an undecided corpus.
    """
    lines: list[str] = []
    missing_runs: list[str] = []
    wants: list[str] = []
    answers: list[Answer] = []
    for corpus in corpora:
        name = evidence.results.corpus(corpus)
        try:
            answer, corpus_lines = test(corpus)
        except Missing as missing:
            missing_runs.append(str(missing) if evidence.results.has(corpus) else f"all runs on {name}")
            continue
        lines += [f"{name}: {line}" for line in corpus_lines]
        answers.append(answer)
        if answer is None:
            wants.append(f"{name}: {needs}")
    return Outcome(VERDICT[settled(answers) if answers else None], lines, missing_runs, wants)
