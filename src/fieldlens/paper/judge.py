"""Verdicts: claims tested on results, with the gate of context use and Holm's correction over all primary tests."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from fieldlens.evaluation.statistics import holm
from fieldlens.paper.claims import CORPORA, Claim, Finding, registry
from fieldlens.paper.evidence import Evidence, Missing, NotTestable, settled
from fieldlens.paper.results import PaperResults

Verdict = Literal["holds", "does not hold", "not testable", "undecided"]
VERDICTS: tuple[Verdict, ...] = ("holds", "does not hold", "not testable", "undecided")
WORDS: dict[bool | None, Verdict] = {True: "holds", False: "does not hold", None: "undecided"}
NO_RESULTS = "no results yet"


@dataclass(frozen=True)
class Outcome:
    """A claim on one corpus."""

    corpus: str
    """The study's name of it."""
    verdict: Verdict
    reason: str = ""
    """Why it is not testable or undecided."""
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict."""

    claim: Claim
    verdict: Verdict
    reason: str
    outcomes: Sequence[Outcome]
    """By corpus; the first decides."""

    def to_json(self) -> dict[str, Any]:
        keys = ("name", "says", "rule", "ours", "primary")
        about = {key: getattr(self.claim, key) for key in keys}
        outcomes = [asdict(outcome) for outcome in self.outcomes]
        return {**about, "verdict": self.verdict, "reason": self.reason, "outcomes": outcomes}


def judged(results: PaperResults, claims: Sequence[Claim] | None = None) -> list[Judged]:
    """Test every claim on the results of a study, corpus by corpus."""
    claims = list(registry().values()) if claims is None else claims
    evidence = Evidence(results)
    by_corpus = {corpus: _on_corpus(claims, evidence, corpus) for corpus in CORPORA}
    verdicts = []
    for claim in claims:
        if not claim.corpora:
            verdicts.append(_without_results(claim, evidence))
            continue
        outcomes = [by_corpus[corpus][claim.name] for corpus in claim.corpora if claim.name in by_corpus[corpus]]
        verdicts.append(_combined(claim, outcomes))
    return verdicts


def _combined(claim: Claim, outcomes: Sequence[Outcome]) -> Judged:
    """The verdict of the first corpus; undecided if another corpus decides otherwise."""
    if not outcomes:
        return Judged(claim, "undecided", "the study does not contain its runs", ())
    first = outcomes[0]
    others = {outcome.verdict for outcome in outcomes} & {"holds", "does not hold"}
    if first.verdict in others and len(others) > 1:
        return Judged(claim, "undecided", "corpora disagree", outcomes)
    return Judged(claim, first.verdict, first.reason, outcomes)


def _without_results(claim: Claim, evidence: Evidence) -> Judged:
    """A claim that needs no runs of the study."""
    try:
        finding = claim.test(evidence, "")
        outcome = Outcome("", WORDS[settled(finding.answers)], "", finding.lines)
    except NotTestable as error:
        outcome = Outcome("", "not testable", str(error.args[0]), error.args[1:])
    except Missing as error:
        outcome = Outcome("", "undecided", f"missing: {error}")
    return Judged(claim, outcome.verdict, outcome.reason, [outcome])


def _on_corpus(claims: Sequence[Claim], evidence: Evidence, corpus: str) -> dict[str, Outcome]:
    """The outcomes on one corpus, with Holm's correction."""
    outcomes: dict[str, Outcome] = {}
    findings: dict[str, Finding] = {}
    gates: dict[str, list[str]] = {}
    absent, our_name = 0, evidence.results.corpus(corpus)
    for claim in claims:
        if corpus not in claim.corpora or not all(evidence.planned(run, corpus) for run in claim.runs):
            continue
        try:
            gates[claim.name] = _gate(claim, evidence, corpus)
            findings[claim.name] = claim.test(evidence, corpus)
        except NotTestable as error:
            outcomes[claim.name] = Outcome(our_name, "not testable", str(error.args[0]), error.args[1:])
            absent += claim.primary
        except Missing as error:
            outcomes[claim.name] = Outcome(our_name, "undecided", str(error))
            absent += claim.primary
    for name, finding in _corrected(claims, findings, absent).items():
        answer = settled([*(comparison.answer() for comparison in finding.comparisons), *finding.answers])
        lines = [*(comparison.line() for comparison in finding.comparisons), *finding.lines, *gates[name]]
        outcomes[name] = Outcome(our_name, WORDS[answer], "" if answer is not None else _open(finding), lines)
    return outcomes


def _open(finding: Finding) -> str:
    """Why a claim stays undecided."""
    undecided = [comparison for comparison in finding.comparisons if comparison.answer() is None]
    if not undecided:
        return "seeds disagree"
    return "; ".join(dict.fromkeys(comparison.open() for comparison in undecided))


def _gate(claim: Claim, evidence: Evidence, corpus: str) -> list[str]:
    """The context use and headroom that a claim needs, as lines of evidence; raises if something is missing."""
    absent = [evidence.label(run) for run in claim.runs if not evidence.available(run, corpus)]
    if len(absent) == len(claim.runs):
        raise Missing(NO_RESULTS)
    if absent:
        raise Missing(f"missing: {', '.join(absent)}")
    lines = []
    for run in claim.uses:
        enough, line = evidence.context_use(run, corpus)
        lines.append(f"context use of {line}")
        if not enough:
            raise NotTestable("no context use", *lines)
    if claim.headroom:
        enough, line = evidence.headroom(corpus)
        lines.append(f"headroom of {line}")
        if not enough:
            raise NotTestable("no headroom", *lines)
    return lines


def _corrected(claims: Sequence[Claim], findings: dict[str, Finding], absent: int) -> dict[str, Finding]:
    """Holm's correction: over all primary tests of the corpus, absent ones counted; else within a claim."""
    primary = [claim.name for claim in claims if claim.primary and claim.name in findings]
    ps = [comparison.p for name in primary for comparison in findings[name].comparisons]
    family = iter(holm([*(1.0 if p is None else p for p in ps), *[1.0] * absent]))
    corrected = {}
    for name, finding in findings.items():
        own = [comparison.p for comparison in finding.comparisons]
        new = [next(family) for _ in own] if name in primary else holm(own)
        changed = [
            replace(comparison, p=None if comparison.p is None else p)
            for comparison, p in zip(finding.comparisons, new, strict=True)
        ]
        corrected[name] = replace(finding, comparisons=changed)
    return corrected
