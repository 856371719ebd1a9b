"""Today's designs under the paper's protocol: which of them extrapolates, and does coverage say so?

Exploratory: one seed, nothing registered. By the paper's principle a model extrapolates if more than 99 % of its
gradient falls on the last L_tr tokens; the converse is not claimed.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fieldlens.evaluation.result import Evaluation
from fieldlens.evaluation.verdict import describe
from fieldlens.receptive.field import ReceptiveField
from fieldlens.receptive.gradient_advice import coverage
from fieldlens.reporting.table import Table
from fieldlens.study.plan import Job, Study
from fieldlens.study.results import Result, read_result
from fieldlens.study.state import StudyPaths, state_of

COMPARED = ("sandwich", "alibi:shift=-3", "kerple", "rotary")
"""Models of the study `paper` that the table also shows."""
MULTIPLES = (2, 4, 16)
FAILS = ("drifts", "explodes")
MISSING = "–"


def modern_table(study: Study, folder: Path, paper: Study, paper_folder: Path) -> Table:
    """One row for each design, and for each extension method that it was evaluated with."""
    shared = [job for job in paper.whole if _is_compared(job, study)]
    pairs = [(job, _result(job, paper, paper_folder)) for job in shared]
    pairs += [(job, _result(job, study, folder)) for job in study.whole if job.name not in {job.name for job in shared}]
    extended = [(job, _result(job, study, folder)) for job in study.whole if _methods(job)]
    rows = [_row(job.recipe.scheme, result, 0) for job, result in pairs]
    for job, result in extended:
        rows += [_row(f"{job.recipe.scheme} + {method}", result, number) for number, method in _methods(job)]
    lengths = [f"{multiple} L_tr" for multiple in MULTIPLES]
    columns = ["design", "perplexity at L_tr", *lengths, "past L_tr", "ERF at 4 L_tr", "coverage", "coverage says so"]
    return Table(columns, rows, "", (_NOTE,))


_NOTE = (
    "Perplexities past L_tr are relative to that at L_tr, on the same targets of the test split. ERF: number of most "
    "recent of 4 L_tr tokens that hold 99 % of the gradient. Coverage: share of the gradient on the last L_tr tokens. "
    "By the paper's principle a coverage of more than 99 % predicts that perplexity does not rise past L_tr; yes: "
    "predicted, and so it is; no: predicted, and it rises; a smaller coverage predicts nothing. Gradients were not "
    "measured with extension methods."
)


def _is_compared(job: Job, study: Study) -> bool:
    """Whether a job of the study `paper` has the corpus, the seed and the recipe of this study."""
    ours, recipe = study.whole[0].recipe, job.recipe
    same = (recipe.corpus, recipe.seed, recipe.length) == (ours.corpus, ours.seed, ours.length)
    return same and recipe.scheme in COMPARED


def _result(job: Job, study: Study, folder: Path) -> Result | None:
    """The result of a job; None unless it is done and current."""
    if state_of(job, StudyPaths(folder, folder), study.pins, locks=False) != "done":
        return None
    return read_result(folder / job.name)


def _methods(job: Job) -> list[tuple[int, str]]:
    """The evaluations of a job with an extension method: number and method."""
    return [(number, request["method"]) for number, request in enumerate(job.evaluations) if request.get("method")]


def _row(name: str, result: Result | None, number: int) -> list[str]:
    if result is None:
        return [name, *[MISSING] * (len(MULTIPLES) + 5)]
    if result.diverged:
        return [name, "diverged", *[MISSING] * (len(MULTIPLES) + 4)]
    evaluation, trained = result.evaluations[number], result.recipe["length"]
    own = evaluation.score(trained)
    ratios = [f"× {evaluation.score(trained * multiple) / own:.3f}" for multiple in MULTIPLES]
    fields = [MISSING] * 3
    if number == 0 and result.measurement is not None and not result.measurement.field.status:
        fields = list(_field_cells(result.measurement.field, evaluation))
    return [name, f"{own:.2f}", *ratios, describe(evaluation.verdict), *fields]


def _field_cells(field: ReceptiveField, evaluation: Evaluation) -> Iterator[str]:
    """ERF, coverage, and whether what coverage predicts is so."""
    prediction = coverage(field)
    yield field.bounded()
    yield MISSING if prediction["share"] is None else f"{prediction['share']:.1%}"
    if prediction["predicts"] != "extrapolates":
        yield "predicts nothing"
    else:
        yield "no" if evaluation.verdict["verdict"] in FAILS else "yes"


def done(study: Study, folder: Path) -> Sequence[str]:
    """The names of the finished runs."""
    return [job.name for job in study.whole if _result(job, study, folder) is not None]
