"""The datasets: the paper's, and the ones that replace them here."""

from fieldlens.paper.artifact import Artifact, Drawn
from fieldlens.paper.printed import CORPORA, facts
from fieldlens.paper.results import ALL_CORPORA, PaperResults
from fieldlens.reporting.table import Table

SIZES = {
    "905802471c5a21fdcc842bc371df3dc04f28e17b41be88bfe38476c7298d53d8": (
        "LaTeX sources: textbooks, the Stacks project, specifications, papers",
        ((430, 20_562_004), (31, 1_361_515), (65, 3_046_631)),
    ),
    "bd35535deb1865aa4724e7e7b2713ff26b5a21939275b7536283ac8fd95de330": (
        "English prose: books, government pages, proposals, essays",
        ((683, 20_449_799), (61, 1_524_747), (85, 2_966_256)),
    ),
    "0ff661963d6144d8f64c2f83af6243f46f10f605879864b0c40680057d0eeb5f": (
        "library source code in seven languages",
        ((759, 20_081_461), (62, 1_652_853), (88, 3_250_240)),
    ),
}
"""Description, and documents and bytes of each split, by fingerprint; counted with `fieldlens corpus`."""


class Dataset(Artifact):
    name, kind = "dataset", "table"
    title = "The datasets, and what stands for them"

    def draw(self, results: PaperResults) -> Drawn:
        printed, rows, records = facts(f"tab:{self.name}"), [], []
        for corpus in ALL_CORPORA:
            name = CORPORA[corpus]
            ours = results.corpus(corpus)
            description, splits = SIZES.get(results.study.pins.get(ours, ""), ("–", ()))
            sizes = [f"{size / 1e6:.1f} MB, {count} documents" for count, size in splits] or ["–"] * 3
            row = [name, printed["Raw Size", name], printed["Type", name], ours, description, *sizes]
            rows.append(row)
            records.append(dict(zip(_COLUMNS, row, strict=True)))
        return Drawn([Table(_COLUMNS, rows)], records=records)


_COLUMNS = ["paper", "raw size", "type", "ours", "what it is", "train", "validation", "test"]
