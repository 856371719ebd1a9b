"""The claim of the Limitations."""

import statistics as plain

from fieldlens.paper.artifacts.parity import found, inside
from fieldlens.paper.claims import Outcome, claim
from fieldlens.paper.evidence import Evidence, shares
from fieldlens.paper.parity import RECENT

LEARNT, LOST = 0.9, 0.6
FAR = (100, 150, 200)


@claim(
    "parity-fails", 27,
    "A bias towards recent tokens fails where every token matters as much: parity of long bit strings.",
    f"Of the models with such a bias each that learns 1 to 20 bits ({LEARNT:.0%} right or more) answers at most "
    f"{LOST:.0%} of strings of 100 to 200 bits; what learns nothing decides nothing.",
    decides="longer training, so that every scheme learns 1 to 20 bits",
)  # fmt: skip
def parity_fails(evidence: Evidence) -> Outcome:
    said, fails = [], []
    for scheme, by_seed in found(evidence.shelf).items():
        some = list(by_seed.values())
        if not some:
            continue
        near, far = list(map(inside, some)), [plain.fmean(one[bits] for bits in FAR) for one in some]
        said.append(f"{scheme}: {shares(near)} of 1 to 20 bits, {shares(far)} of 100 to 200, {len(some)} seeds")
        if scheme in RECENT:
            fails += [lost <= LOST for learnt, lost in zip(near, far, strict=True) if learnt >= LEARNT]
    if not fails:
        return Outcome(
            "undecided", said, ("a scheme with a recency bias that learnt 1 to 20 bits: fieldlens paper parity --run",)
        )
    return Outcome("holds" if all(fails) else "does not hold", said)
