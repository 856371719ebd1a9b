"""Claims about what things cost: learned parameters, a sliding cache, another protocol."""

import math
import statistics as plain

from fieldlens.advice import CLOSE_ENOUGH
from fieldlens.paper.artifacts.efficient_inference import CACHE, LENGTHS, cached
from fieldlens.paper.artifacts.openweb_github_arxiv import LEARNED
from fieldlens.paper.claims import Outcome, claim, over, settled
from fieldlens.paper.evidence import Evidence, sure
from fieldlens.paper.scale import TRAINED
from fieldlens.paper.shelf import ALL
from fieldlens.statistics import Paired, sign_flip

LITTLE, NOTHING = 0.05, 0.005
SLOWER = 0.05
CURSED = ("window:80", "alibi")


def _small(found: Paired) -> bool:
    """Whether a difference is as good as none."""
    return abs(found.difference) <= math.log1p(NOTHING)


def _p(value: float | None) -> str:
    return "no test" if value is None else f"p = {value:.2g}"


@claim(
    "learned-costs", 20,
    "Learned schemes are larger and slower; T5 takes some 10 % more time to train than Sandwich.",
    f"KERPLE and T5 have more parameters, and T5 trained at least {SLOWER:.0%} longer with each of two or more seeds; "
    "shorter with each decides against it.",
    decides="the time of a step on a GPU with attention that writes the bias out, as the authors' code did",
)  # fmt: skip
def learned_costs(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[bool | None, list[str]]:
        shelf, sizes = evidence.shelf, {}
        for model in ("sandwich", *LEARNED):
            results = shelf.results(model, corpus)
            if not results:
                raise evidence.missing(model, corpus)
            sizes[model] = next(iter(results.values())).about["parameters"]
        seconds = {model: shelf.seconds(model, corpus) for model in ("sandwich", "t5")}
        shared = sorted(seconds["sandwich"].keys() & seconds["t5"].keys())
        if len(shared) < 2:
            raise evidence.missing("t5", corpus, why=": the time that two seeds took, and Sandwich's")
        ratios = [seconds["t5"][seed] / seconds["sandwich"][seed] for seed in shared]
        slower = [ratio >= 1 + SLOWER for ratio in ratios]
        more = {model: sizes[model] - sizes["sandwich"] for model in LEARNED}
        said = [f"T5 trains × {plain.fmean(ratios):.2f} as long, from × {min(ratios):.2f} to × {max(ratios):.2f}"]
        said += [", ".join(f"{model} {count:+,} parameters" for model, count in more.items())]
        if not all(count > 0 for count in more.values()):
            return False, said
        return all(slower) if len(set(slower)) == 1 else None, said

    return over(evidence, ALL, test)


@claim(
    "sliding-cache", 23,
    "A sliding cache of 4 L_tr costs Sandwich a little, and ALiBi nothing.",
    f"At 8 L_tr and on the same targets: Sandwich is significantly worse, by less than {LITTLE:.0%}; ALiBi changes by "
    f"at most {NOTHING:.1%}. A change of Sandwich as small as that decides against it.",
)  # fmt: skip
def sliding_cache(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[bool | None, list[str]]:
        said, found = [], {}
        for model in ("sandwich", "alibi"):
            with_it, without = (
                evidence.losses(model, corpus, **cached(evidence.shelf, window)) for window in (True, False)
            )
            found[model] = evidence.difference(with_it, without, LENGTHS[0])
            said.append(f"{model} × {math.exp(found[model].difference):.4f} ({_p(found[model].p)})")
        own, alibi = found["sandwich"], found["alibi"]
        little = 0 < own.difference < math.log1p(LITTLE) if sure(own) else False if _small(own) else None
        nothing = True if _small(alibi) else False if sure(alibi) else None
        return settled([little, nothing]), said

    return over(evidence, ALL, test)


@claim(
    "early-tokens", 24,
    "Evaluating consecutive pieces that do not overlap flatters long lengths: tokens early in a piece see too little.",
    "A window and ALiBi seem to gain by 1 % or more, and significantly, from L_tr to 8 L_tr by that protocol, and gain "
    "less by the paper's.",
)  # fmt: skip
def early_tokens(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[bool | None, list[str]]:
        found: list[bool | None] = []
        said = []
        short, long = (evidence.shelf.length(n) for n in (TRAINED, 2 * CACHE))
        for model in CURSED:
            pieces = evidence.losses(model, corpus, protocol="non-overlapping")
            last = evidence.losses(model, corpus)
            gain = sign_flip(pieces.quantities(short) - pieces.quantities(long), pieces.units()[0])
            honest = float((last.quantities(short) - last.quantities(long)).mean())
            gains = gain.difference >= math.log1p(CLOSE_ENOUGH) and honest < gain.difference
            found.append(False if not gains else True if sure(gain) else None)
            said.append(
                f"{evidence.shelf.spec(model)}: {gain.difference:+.4f} nats in pieces, {honest:+.4f} by the paper's"
            )
        return settled(found), said

    return over(evidence, ALL, test)
