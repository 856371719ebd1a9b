"""The claim of the Limitations."""

import statistics as plain

from fieldlens.paper.artifacts.parity import found, inside
from fieldlens.paper.claims import Outcome, claim
from fieldlens.paper.evidence import Evidence, shares
from fieldlens.paper.parity import RECENT, SEEDS

LEARNT, LOST = 0.9, 0.6
FAR = (100, 150, 200)


@claim(
    "parity-fails", 27,
    "A bias towards recent tokens fails where every token matters as much: parity of long bit strings.",
    f"Every scheme with such a bias has a model that learns 1 to 20 bits ({LEARNT:.0%} right or more), each of these "
    f"answers at most {LOST:.0%} of strings of 100 to 200 bits, and one without such a bias that learnt answers more. "
    "One with the bias that does, too, decides against it; what learns nothing decides nothing.",
    decides="longer training, so that every scheme learns 1 to 20 bits; a model without such a bias that succeeds",
)  # fmt: skip
def parity_fails(evidence: Evidence) -> Outcome:
    said, fails, needs = [], {name: list[bool]() for name in RECENT}, []
    succeeds = False
    for scheme, by_seed in found(evidence.results).items():
        some = list(by_seed.values())
        if len(some) < len(SEEDS):
            needs.append(f"{scheme}, {len(SEEDS) - len(some)} of {len(SEEDS)} seeds: fieldlens paper parity --run")
        if not some:
            continue
        near, far = list(map(inside, some)), [plain.fmean(one[bits] for bits in FAR) for one in some]
        said.append(f"{scheme}: {shares(near)} of 1 to 20 bits, {shares(far)} of 100 to 200, {len(some)} seeds")
        lost = [share <= LOST for learnt, share in zip(near, far, strict=True) if learnt >= LEARNT]
        if scheme in RECENT:
            fails[scheme] = lost
        else:
            succeeds = succeeds or False in lost
    if any(False in lost for lost in fails.values()):
        return Outcome("does not hold", said, needs)
    return Outcome("holds" if succeeds and all(fails.values()) else "undecided", said, needs)
