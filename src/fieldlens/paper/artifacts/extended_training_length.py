"""Failed cases trained on longer sequences that cover their receptive field: perplexity and cost."""

from fieldlens.paper.artifact import Artifact, Drawn
from fieldlens.paper.cells import both, record, row_heading, score
from fieldlens.paper.printed import cells
from fieldlens.paper.results import PaperResults
from fieldlens.paper.scale import TRAINED
from fieldlens.reporting.table import Table
from fieldlens.study.plan import Job

LONGER_TRAINING = {"shift:6": 2048, "window:160": 1024, "shift:8": 2048, "window:320": 2048}
"""Models that fail to extrapolate, and the longer training length of each; the paper prints the first two."""
LENGTHS = (2048, 4096, 8192)


class ExtendedTrainingLength(Artifact):
    name, kind = "extended_training_length", "table"
    title = "Failed cases fixed by a longer training length, and what that costs"

    def jobs(self, results: PaperResults) -> list[Job]:
        longer, first = [], []
        for model, corpus in _pairs(results):
            longer += results.jobs([model], [corpus], LONGER_TRAINING[model])
            first += results.jobs([model], [corpus])
        return longer + first

    def draw(self, results: PaperResults) -> Drawn:
        printed, records, rows = cells(f"tab:{self.name}"), [], []
        pairs = _pairs(results)
        for length in LENGTHS:
            row = [row_heading(results, length)]
            for model, corpus in pairs:
                on = _printed_on(corpus)
                paper = printed.get((on, model, length))
                ours = score(results, model, corpus, length, LONGER_TRAINING[model])
                row.append(both(paper, ours))
                cell = record(results, corpus, model, length, paper, ours, printed=on)
                records.append({**cell, "trained": results.length(LONGER_TRAINING[model])})
            rows.append(row)
        columns = [f"{results.label(model)}, {results.corpus_label(corpus)}" for model, corpus in pairs]
        beside = any(_printed_on(corpus) != corpus for _, corpus in pairs)
        notes = ["Beside our numbers on code are the paper's on ArXiv."] if beside else []
        main = Table(["L_ex / the others' L_tr", *columns], rows, "trained on longer sequences (paper · ours)", notes)
        cost = [self._cost(results, model, corpus) for model, corpus in pairs]
        headings = ["model", "L_tr", "perplexity at the longest", "longest / own L_tr", "99% within", "training time"]
        return Drawn(
            [main, Table(headings, cost, "what it repairs, and what it costs (ours)", (_COST,))], records=records
        )

    def _cost(self, results: PaperResults, model: str, corpus: str) -> list[str]:
        long = LONGER_TRAINING[model]
        seconds = [results.seconds(model, corpus, trained) for trained in (TRAINED, long)]
        shared = sorted(seconds[0].keys() & seconds[1].keys())
        ratios = [seconds[1][seed] / seconds[0][seed] for seed in shared]
        return [
            f"{results.label(model)}, {results.corpus_label(corpus)}",
            *(
                " → ".join(cell(results, model, corpus, trained) for trained in (TRAINED, long))
                for cell in (_trained, _longest, _growth, _within)
            ),
            "× " + ", ".join(f"{ratio:.2f}" for ratio in ratios) if ratios else "–",
        ]


def _pairs(results: PaperResults) -> list[tuple[str, str]]:
    """Models and corpora for which the study has runs with the longer training length."""
    corpora = (*results.corpora_beside("arxiv"), "openwebtext2")
    pairs = [(model, corpus) for model in LONGER_TRAINING for corpus in corpora]
    return [(model, corpus) for model, corpus in pairs if results.jobs([model], [corpus], LONGER_TRAINING[model])]


def _printed_on(corpus: str) -> str:
    """The corpus of the paper's number beside ours."""
    return "arxiv" if corpus == "github" else corpus


_COST = (
    "Both are trained on as many tokens as all others; memory and time of attention grow with the length. Times are "
    "each seed's, where both were noted."
)


def _trained(results: PaperResults, model: str, corpus: str, trained: int) -> str:
    return str(results.length(trained))


def _longest(results: PaperResults, model: str, corpus: str, trained: int) -> str:
    last = score(results, model, corpus, LENGTHS[-1], trained).mean
    return "–" if last is None else f"{last:.1f}"


def _growth(results: PaperResults, model: str, corpus: str, trained: int) -> str:
    """Perplexity at the longest length over that at the training length."""
    last, first = (score(results, model, corpus, length, trained).mean for length in (LENGTHS[-1], trained))
    return f"{last / first:.2f}" if last is not None and first else "–"


def _within(results: PaperResults, model: str, corpus: str, trained: int) -> str:
    field = results.field(model, corpus, trained)
    if field is None:
        return "–"
    return f"{'> ' if field.saturated() else ''}{field.erf(0.99)}"
