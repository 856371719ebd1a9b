"""The claim in the paper's Limitations section."""

import statistics

from fieldlens.paper.artifacts.parity import found, inside
from fieldlens.paper.claims import Finding, claim
from fieldlens.paper.evidence import Evidence, Missing, NotTestable, shares
from fieldlens.paper.parity import RECENT

MIN_LEARNT, MAX_FAILED = 0.9, 0.6
FAR = (100, 150, 200)


@claim(
    "parity-fails",
    "A bias towards recent tokens fails where every token matters as much: parity of long bit strings.",
    f"Every scheme with such a bias has a model that learns 1 to 20 bits ({MIN_LEARNT:.0%} right or more), and each of "
    f"these answers at most {MAX_FAILED:.0%} of strings of 100 to 200 bits. It is testable if a scheme without such a "
    "bias learns them and answers more.",
)  # fmt: skip
def parity_fails(evidence: Evidence, corpus: str) -> Finding:
    lines, fails = [], {name: list[bool]() for name in RECENT}
    succeeds = False
    for scheme, by_seed in found(evidence.results).items():
        models = list(by_seed.values())
        if not models:
            continue
        near = list(map(inside, models))
        far = [statistics.fmean(accuracy[bits] for bits in FAR) for accuracy in models]
        lines.append(f"{scheme}: {shares(near)} of 1 to 20 bits, {shares(far)} of 100 to 200, {len(models)} seeds")
        failed = [share <= MAX_FAILED for learnt, share in zip(near, far, strict=True) if learnt >= MIN_LEARNT]
        if scheme in RECENT:
            fails[scheme] = failed
        else:
            succeeds = succeeds or False in failed
    if not lines:
        raise Missing("parity: fieldlens paper parity --run")
    if any(False in failed for failed in fails.values()):
        return Finding((), [False], lines)
    if not succeeds:
        raise NotTestable("no scheme succeeds past the training length", *lines)
    return Finding((), [True if all(fails.values()) else None], lines)
