"""Claims of the paper, each a small function that compares losses or fields of one corpus, with its rule in words.

A claim names the runs it reads and those that must use their context. Rules are registered before the results that
they judge: see registration.py.
"""

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fieldlens.paper.evidence import Answer, Comparison, Evidence, Run

CORPORA = ("github", "arxiv", "openwebtext2")
"""The corpora of a claim: the first decides, the others confirm."""


@dataclass(frozen=True)
class Finding:
    """What a rule reads from the results of one corpus."""

    comparisons: Sequence[Comparison] = ()
    """Each must come out as claimed."""
    answers: Sequence[Answer] = ()
    """Answers that need no test of losses, such as those on receptive fields; each must be yes."""
    lines: Sequence[str] = ()
    """Evidence beside that of the comparisons."""


Rule = Callable[[Evidence, str], Finding]


@dataclass(frozen=True)
class Claim:
    """One claim and its rule."""

    name: str
    says: str
    """The claim in our words."""
    rule: str
    """The condition under which it holds."""
    test: Rule
    runs: tuple[Run, ...]
    """The runs that it reads; empty if it needs none."""
    uses: tuple[Run, ...]
    """The runs that must use their context."""
    headroom: bool
    """Whether it needs something to gain past L_tr."""
    primary: int
    """Number of its comparisons in the family of primary tests; 0: a secondary claim, corrected on its own."""
    corpora: tuple[str, ...]
    ours: bool
    """Whether it is our finding instead of a claim of the paper."""
    order: tuple[str, int]


REGISTERED: dict[str, Claim] = {}


def claim(
    name: str,
    says: str,
    rule: str,
    *,
    runs: Sequence[str | Run] = (),
    uses: Sequence[str | Run] | None = None,
    headroom: bool = False,
    primary: int = 0,
    corpora: Sequence[str] = CORPORA,
    ours: bool = False,
) -> Callable[[Rule], Rule]:
    """Register a claim. By default all of its runs must use their context."""

    def declare(test: Rule) -> Rule:
        assert name not in REGISTERED, f"{name} is declared twice"
        read, using = (_runs(entries) for entries in (runs, runs if uses is None else uses))
        order = (test.__module__, len(REGISTERED))
        REGISTERED[name] = Claim(
            name, says, rule, test, read, using, headroom, primary, tuple(corpora if runs else ()), ours, order
        )
        return test

    return declare


def _runs(entries: Sequence[str | Run]) -> tuple[Run, ...]:
    return tuple(Run(entry) if isinstance(entry, str) else entry for entry in entries)


def registry() -> dict[str, Claim]:
    """Every claim by name: primary ones first, then secondary ones, then our own findings."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(REGISTERED.items(), key=lambda pair: (pair[1].ours, not pair[1].primary, pair[1].order)))
