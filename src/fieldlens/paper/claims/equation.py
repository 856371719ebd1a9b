"""The claim behind the step from Sinusoidal to Sandwich."""

from fieldlens.paper.artifacts.equation_3 import SIDES, parts_of
from fieldlens.paper.claims import Finding, claim
from fieldlens.paper.evidence import Evidence, Missing

MAX_CROSS, MIN_SIMILARITY = 0.1, 0.9


@claim(
    "equation-3",
    "The scores of Sinusoidal are approximately a semantic part plus the inner product of the position embeddings.",
    f"In the first layer of the Sinusoidal model, for queries inside L_tr: the share of the cross part in the variance "
    f"of the scores is at most {MAX_CROSS:.0%} in absolute value, and the mean positional part by distance correlates "
    f"with p_m·p_n by at least {MIN_SIMILARITY}.",
)  # fmt: skip
def equation_3(evidence: Evidence, corpus: str) -> Finding:
    content = parts_of(evidence.results)
    if content is None:
        raise Missing("equation 3: fieldlens paper equation_3 --run, after the Sinusoidal run")
    lines = []
    for side, words in SIDES.items():
        shares = ", ".join(f"{part} {share:.1%}" for part, share in content[side]["shares"].items())
        lines.append(f"{words}: {shares}; correlation with p_m·p_n {content[side]['similarity']:.2f}")
    inside = content["inside"]
    answers = [abs(inside["shares"]["cross"]) <= MAX_CROSS, inside["similarity"] >= MIN_SIMILARITY]
    return Finding((), answers, lines)
