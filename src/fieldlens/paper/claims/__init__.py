"""Claims: what the paper says, each with a test on results and a verdict that the test alone decides.

A claim is a function from evidence to an outcome, in one of the files of this folder. What it needs and is not there
makes it undecided, with the runs that would decide it.
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
"""What a comparison between models needs."""

FULL_SIZE = "the same test at the paper's own size: fieldlens paper claims --study paper-full"


@dataclass(frozen=True)
class Outcome:
    """What a test found."""

    verdict: Verdict
    evidence: Sequence[str] = ()
    needs: Sequence[str] = ()
    """Which results are missing."""
    wants: Sequence[str] = ()
    """What the results that are there do not show, so that nothing is decided."""


@dataclass(frozen=True)
class Claim:
    """One claim and its test."""

    name: str
    says: str
    """What is claimed, in our words."""
    rule: str
    """When it holds."""
    ours: bool
    """Whether it is a finding of ours, not a claim of the paper."""
    decides: str
    """Which scale or change would decide it where it does not hold here."""
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
    """Declare a claim: `order` is its place on the page."""

    def declare(test: Callable[[Evidence], Outcome]) -> Callable[[Evidence], Outcome]:
        assert name not in REGISTERED, f"{name} is declared twice"
        REGISTERED[name] = Claim(name, says, rule, ours, decides, order, test)
        return test

    return declare


def registry() -> dict[str, Claim]:
    """Every claim there is, in the order of the page."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(REGISTERED.items(), key=lambda pair: (pair[1].ours, pair[1].order)))


def judge_one(one: Claim, evidence: Evidence) -> Judged:
    """Put a claim to its test."""
    try:
        found = one.test(evidence)
    except Missing as missing:
        found = Outcome("undecided", (), (str(missing),))
    said, needs, wants = tuple(found.evidence), tuple(found.needs), tuple(found.wants)
    seen = found.verdict == "does not hold" or (found.verdict == "undecided" and found.evidence)
    decides = one.decides if seen and evidence.results.factor != 1 else ""
    return Judged(one.name, one.says, one.rule, one.ours, found.verdict, said, needs, wants, decides)


def judged(results: PaperResults) -> list[Judged]:
    """All claims, put to their tests on one shelf."""
    evidence = Evidence(results)
    return [judge_one(one, evidence) for one in registry().values()]


def settled(found: Sequence[Answer]) -> Answer:
    """Of several answers: no if one is no, yes if all are yes, else nothing is decided."""
    return False if False in found else True if all(found) else None


def agreed(found: Sequence[Answer]) -> Answer:
    """The answer that all seeds give, if they give one."""
    return found[0] if len(set(found)) == 1 else None


def over(
    evidence: Evidence,
    corpora: Sequence[str],
    test: Callable[[str], tuple[Answer, Sequence[str]]],
    needs: str = "more targets or seeds",
) -> Outcome:
    """A claim that must hold on each corpus: those that were run decide, what is missing is named.

    The test gives True, False, or None where its results decide nothing, with its evidence; `needs` says what would
    then decide.
    """
    said: list[str] = []
    needed: list[str] = []
    wanted: list[str] = []
    found: list[Answer] = []
    for corpus in corpora:
        named = evidence.results.corpus(corpus)
        try:
            holds, words = test(corpus)
        except Missing as missing:
            needed.append(str(missing) if evidence.results.has(corpus) else f"all runs on {named}")
            continue
        said += [f"{named}: {word}" for word in words]
        found.append(holds)
        if holds is None:
            wanted.append(f"{named}: {needs}")
    return Outcome(VERDICT[settled(found) if found else None], said, needed, wanted)
