"""Write the pages that state results anew: docs/claims.md, and the table of README.md.

Example: python results/refresh.py    # after results were added to results/paper

Tests compare both with the committed results, so run this before committing a result.
"""

import re
from pathlib import Path

from fieldlens.paper.artifacts.openweb_github_arxiv import PRINTED
from fieldlens.paper.cells import score
from fieldlens.paper.judge import judged
from fieldlens.paper.page import write_pages
from fieldlens.paper.printed import cells
from fieldlens.paper.results import PaperResults
from fieldlens.paper.scale import LENGTHS, TRAINED
from fieldlens.schemes.spec import parse
from fieldlens.storage.atomic import replace_file
from fieldlens.study.plan import read_study

ROOT = Path(__file__).parents[1]
TABLE = re.compile(r"^\| GitHub · code.*?\n\n", re.DOTALL | re.MULTILINE)


def main() -> None:
    results = PaperResults(read_study("paper"), ROOT / "results" / "paper")
    written = write_pages(results, judged(results), ROOT / "docs")
    readme = ROOT / "README.md"
    text, count = TABLE.subn(readme_table(results) + "\n", readme.read_text())
    if count != 1:
        raise SystemExit(f"{readme} has {count} tables that begin with | GitHub · code, expected 1")
    replace_file(readme, text.encode())
    print("written:", *(path.relative_to(ROOT) for path in (*written, readme)))


def readme_table(results: PaperResults) -> str:
    """Perplexity in the paper on GitHub and ours on code, by relative length."""
    printed = cells("tab:openweb-github-arxiv")
    lines = [
        f"| GitHub · code, L_ex / L_tr | {' | '.join(f'{length // TRAINED}' for length in LENGTHS)} |",
        f"|---|{'--:|' * len(LENGTHS)}",
    ]
    for model in PRINTED:
        row = [
            f"{printed['github', model, length].value} · {three_digits(score(results, model, 'github', length).mean)}"
            for length in LENGTHS
        ]
        lines.append(f"| {parse(model)[0].label} | {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def three_digits(value: float | None) -> str:
    """A perplexity with three significant digits; a dash if there is no result."""
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


if __name__ == "__main__":
    main()
