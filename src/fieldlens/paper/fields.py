"""Receptive fields as in the paper's figures: labelled curves, and a table of the values read from them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fieldlens.paper.printed import CORPORA, receptive_fields
from fieldlens.paper.results import PaperResults
from fieldlens.paper.scale import TRAINED
from fieldlens.receptive.field import ReceptiveField
from fieldlens.receptive.gradient_advice import coverage
from fieldlens.reporting.plots import Curve
from fieldlens.reporting.table import Table
from fieldlens.schemes.spec import parse


def curves(results: PaperResults, models: Sequence[str], corpus: str, trained: int = TRAINED) -> list[Curve]:
    """One curve per measured model; the label has the paper's value, ours, and the ERF."""
    curves = []
    for model in models:
        field = results.field(model, corpus, trained)
        if field is not None:
            curves.append(
                field.curve(results.spec(model))._replace(label=f"{results.label(model)}: ERF {field.bounded()}")
            )
    return curves


def reading(
    results: PaperResults, models: Sequence[str], corpus: str, trained: int = TRAINED, printed_on: str | None = None
) -> tuple[Table, list[dict[str, Any]]]:
    """A table of the curves, and its records: ERF / L_tr, coverage, and the theoretical receptive field.

    `printed_on` is the corpus of the paper's figure, if it is another.
    """
    printed, rows, records = receptive_fields(), [], []
    printed_on = printed_on or corpus
    for model in models:
        field, spec = results.field(model, corpus, trained), results.spec(model)
        paper = printed.get((printed_on, model))
        window = parse(spec)[1].get("window")
        layers = results.study.whole[0].recipe.layers
        share = coverage(field)["share"] if field is not None else None
        reach = f"{layers * (window - 1) + 1:,} ({layers * window:,})" if window else "–"
        length = results.length(trained)
        rows.append([
            results.label(model),
            f"{paper / TRAINED:.2f}" if paper else "–",
            "–" if field is None else f"{'> ' if field.saturated() else ''}{field.erf(0.99) / length:.2f}",
            "–" if field is None else field.bounded(),
            "–" if share is None else f"{share:.1%}",
            reach,
        ])  # fmt: skip
        records.append({
            "corpus": corpus, "model": model, "spec": spec, "trained": length, "paper_corpus": printed_on,
            "paper_erf": paper,
            "erf": field and field.erf(0.99), "saturated": field and field.saturated(), "coverage": share,
            "segments": field and len(field.norms_NT), "exact_trf": layers * (window - 1) + 1 if window else None,
        })  # fmt: skip
    source = "paper" if printed_on == corpus else f"paper on {CORPORA[printed_on]}"
    columns = ["model", f"ERF / L_tr, {source}", "ours", "ERF", "coverage", "TRF exact (paper's formula)"]
    return Table(columns, rows, f"{results.corpus_label(corpus)}: what the curves say"), records


def distance(a: ReceptiveField, b: ReceptiveField) -> float:
    """The largest gap between two cumulative curves, from 0 to 1."""
    first, second = (np.cumsum(field.shares()[::-1]) for field in (a, b))
    length = min(len(first), len(second))
    return float(abs(first[:length] - second[:length]).max())
