"""The claim in the paper's Limitations section."""

import statistics

from fieldlens.paper.artifacts.parity import found, inside
from fieldlens.paper.claims import Outcome, claim
from fieldlens.paper.evidence import Evidence, shares
from fieldlens.paper.parity import RECENT, SEEDS

MIN_LEARNT, MAX_FAILED = 0.9, 0.6
FAR = (100, 150, 200)


@claim(
    "parity-fails", 27,
    "A bias towards recent tokens fails where every token matters as much: parity of long bit strings.",
    f"Every scheme with such a bias has a model that learns 1 to 20 bits ({MIN_LEARNT:.0%} right or more), each of "
    f"these answers at most {MAX_FAILED:.0%} of strings of 100 to 200 bits, and one without such a bias that learnt "
    "answers more. One with the bias that does, too, decides against it; what learns nothing decides nothing.",
    decides="longer training, so that every scheme learns 1 to 20 bits; a model without such a bias that succeeds",
)  # fmt: skip
def parity_fails(evidence: Evidence) -> Outcome:
    lines, fails, needs = [], {name: list[bool]() for name in RECENT}, []
    succeeds = False
    for scheme, by_seed in found(evidence.results).items():
        models = list(by_seed.values())
        if len(models) < len(SEEDS):
            needs.append(f"{scheme}, {len(SEEDS) - len(models)} of {len(SEEDS)} seeds: fieldlens paper parity --run")
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
    if any(False in failed for failed in fails.values()):
        return Outcome("does not hold", lines, needs)
    return Outcome("holds" if succeeds and all(fails.values()) else "undecided", lines, needs)
