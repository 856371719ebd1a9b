"""The claims page: every claim with its test, evidence and verdict, as HTML and as Markdown."""

from collections.abc import Sequence
from pathlib import Path

from fieldlens.paper.artifact import CAVEAT, cut
from fieldlens.paper.claims import VERDICTS, Judged
from fieldlens.paper.results import PaperResults
from fieldlens.reporting import blocks as report
from fieldlens.reporting.table import Table
from fieldlens.storage.atomic import replace_file

TITLE = "What the paper claims, and what our results say"
HOW = (
    "Every verdict is computed from results by the test that stands beside it; none is written by hand. Seeds are "
    "pooled: the loss of a target is its mean over seeds. Where several corpora are asked, those that were run decide, "
    "and each must agree. A claim that does not hold is a finding about this size of model and text, not the last "
    "word. L_tr is the training length, L_ex the length that is evaluated, × 2 … × 16 their ratio. A difference is "
    "*significant* if flipping the signs of whole documents at random makes one as large in less than 5 % of cases, "
    "after Holm's correction for the number of tests; something is *surely* so if it is in all of the 95 % interval "
    "over documents, or with every single document; no correction is made for how often that is asked. Seeds must "
    "agree, all that there are: by chance two of two do in one case of two, five of five in one of 16, so few seeds "
    "guard little against how training happened to go. Models go by the paper's distances; behind a bar stand ours: "
    "Δ 2 | 0 is the paper's shift of 2, which is 0 at our training length."
)

SECTIONS = {False: "The paper's claims", True: "Findings of our own"}
"""Section headings, by whether the claims are ours."""

REVISED = (
    "The rules were not fixed before the results: they were mended while the first two seeds of latex were being "
    "read, the third of Sandwich being there already. With the last of these changes five verdicts moved on the same "
    "results: slope-values (does not hold → holds), large-slopes and constant-or-explodes (does not hold → undecided), "
    "plateau-at-erf (holds → does not hold; its rule has changed three times) and longer-training-repairs (undecided "
    "→ does not hold). With the third seed, their first real test, these five stayed as they were, and of the others "
    "learned-costs alone moved (undecided → holds). Then two rules were found to claim more than they test, and both "
    "verdicts became undecided: longer-training-repairs (does not hold → undecided) did not ask whether the longer "
    "training length holds the ERF, and learned-costs (holds → undecided) took times for different that differ less "
    "than those of equal models. The other corpora are the next test."
)


def sheet_of(claims: Sequence[Judged]) -> Table:
    """A table with one row per claim."""
    rows = [["ours" if claim.ours else "paper", claim.name, claim.verdict, claim.says] for claim in claims]
    counts = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in VERDICTS}
    title = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return Table(["whose", "claim", "verdict", "what it says"], rows, title)


def write_pages(results: PaperResults, claims: Sequence[Judged], out: Path) -> list[Path]:
    """Write claims.html and claims.md into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in (("claims.html", html(results, claims)), ("claims.md", markdown(results, claims))):
        replace_file(out / name, text.encode())
        written.append(out / name)
    return written


def markdown(results: PaperResults, claims: Sequence[Judged]) -> str:
    """The page in Markdown."""
    lines = [f"# {TITLE}", "", HOW, "", *(f"{note}\n" for note in _notes(results))]
    lines += [f"{sheet_of(claims).title}.", ""]
    for ours, heading in SECTIONS.items():
        section = [claim for claim in claims if claim.ours == ours]
        lines += [f"## {heading}", "", "| claim | verdict | what it says |", "|---|---|---|"]
        lines += [
            f"| [{claim.name}](#{_anchor(claim)}) | {claim.verdict} | {claim.says.replace('|', '/')} |"
            for claim in section
        ]
        lines += [""]
        for claim in section:
            lines += [f"### {claim.name}: {claim.verdict}", "", claim.says, "", f"*Test:* {claim.rule}", ""]
            lines += [f"- {text}" for text in (*claim.evidence, *_open_questions(claim))]
            lines += [""]
    return "\n".join(lines).rstrip() + "\n"


def html(results: PaperResults, claims: Sequence[Judged]) -> str:
    """The page as one HTML file."""
    counts = [(verdict, sum(claim.verdict == verdict for claim in claims)) for verdict in VERDICTS]
    blocks: list[report.Block] = [
        report.cards(*(report.Card(str(count), verdict) for verdict, count in counts)),
        report.text(HOW),
        report.note("info", *_notes(results)),
    ]
    for ours, heading in SECTIONS.items():
        section = [claim for claim in claims if claim.ours == ours]
        rows = [[claim.name, claim.verdict, claim.says] for claim in section]
        blocks += [report.heading(heading), report.table(["claim", "verdict", "what it says"], rows)]
        for claim in section:
            evidence = [[text] for text in (*claim.evidence, *_open_questions(claim))]
            inner = [report.text(claim.says, f"**Test:** {claim.rule}"), report.table(["evidence"], evidence)]
            blocks.append(report.details(f"{claim.name}: {claim.verdict}", inner))
    study = results.study
    return report.page(TITLE, study.title, blocks, {"from the results of": study.name})


def _anchor(claim: Judged) -> str:
    """The anchor of a claim's heading."""
    return f"{claim.name}-{claim.verdict.replace(' ', '-')}"


def _open_questions(claim: Judged) -> list[str]:
    """Missing results, undecided points, and what would decide the claim."""
    lines = [f"not there yet: {', '.join(claim.needs)}"] if claim.needs else []
    lines += [f"not shown: {', '.join(claim.wants)}"] if claim.wants else []
    return lines + ([f"what would decide: {claim.decides}"] if claim.decides else [])


def _notes(results: PaperResults) -> list[str]:
    """The notes above the claims: runs, diverged runs, corpora and revised rules."""
    notes = [
        f"From {cut(results.study.whole, results)} of study `{results.study.name}`, "
        f"trained on {results.trained} tokens."
    ]
    diverged = results.diverged()
    notes += [f"Diverged, and counted as no number: {', '.join(diverged)}."] if diverged else []
    return notes + ([CAVEAT, REVISED] if results.corpus("arxiv") != "arxiv" else [])
