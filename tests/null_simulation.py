"""How often `fieldlens extend` reports a difference to the crop where there is none, by simulation.

Every data set has several methods and lengths whose expected difference to the crop is 0. Differences are correlated
within a document, because its text is, and between methods, because they share the losses of the crop. A data set
counts as wrong if any method *uses* or *breaks* at any length.

Run: PYTHONPATH=tests python tests/null_simulation.py [number of data sets per row]
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from fieldlens.evaluation.extension_verdict import judge_methods

Draw = Callable[[np.random.Generator, int], np.ndarray]

SPREAD = 0.3
"""Standard deviation of the difference of a target, in nats."""


def normal(rng: np.random.Generator, count: int) -> np.ndarray:
    """Normal differences."""
    return rng.normal(0, SPREAD, count)


def heavy(rng: np.random.Generator, count: int) -> np.ndarray:
    """Most targets are predicted alike and a few very differently: Student's t with 3 degrees of freedom."""
    return SPREAD * rng.standard_t(3, count) / np.sqrt(3)


def skewed(rng: np.random.Generator, count: int) -> np.ndarray:
    """A method that is a little better on most targets and much worse on few: a shifted exponential distribution."""
    return SPREAD * (rng.exponential(1, count) - 1)


SHAPES: dict[str, Draw] = {"normal": normal, "heavy tails": heavy, "skewed": skewed}


def data_set(
    rng: np.random.Generator, draw: Draw, documents: int, methods: int
) -> tuple[dict[str, dict[int, np.ndarray]], np.ndarray]:
    """Differences by method and length, and the document of each target; 2 to about 100 targets per document."""
    sizes_G = 1 + rng.geometric(1 / 16, documents)
    units_N = np.repeat(np.arange(documents), sizes_G)

    def part() -> np.ndarray:
        """One draw: half of its variance lies between documents."""
        return (draw(rng, documents)[units_N] + draw(rng, len(units_N))) / np.sqrt(2)

    shared_N = part()
    return {
        f"method {number}": {length: (shared_N + part()) / np.sqrt(2) for length in (128, 256)}
        for number in range(methods)
    }, units_N


def outcomes(
    shape: str, documents: int, methods: int, count: int, *, seed: int = 0, resamples: int = 999
) -> Iterator[Counter[str]]:
    """How often each outcome occurs in each of `count` data sets."""
    rng = np.random.default_rng([seed, documents, methods])
    for _ in range(count):
        losses, units_N = data_set(rng, SHAPES[shape], documents, methods)
        rows = judge_methods(losses, np.zeros(len(units_N)), units_N, resamples=resamples)
        yield Counter(row["outcome"] for row in rows)


def wrong(counts: Counter[str]) -> bool:
    """Whether a data set shows a difference that does not exist."""
    return bool(counts["uses"] + counts["breaks"])


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print("| differences | documents | methods × lengths | uses or breaks | data sets |\n|---|--:|--:|--:|--:|")
    for shape in SHAPES:
        for documents in (15, 30, 60):
            for methods in (1, 7):
                rate = sum(map(wrong, outcomes(shape, documents, methods, count))) / count
                print(f"| {shape} | {documents} | {methods} × 2 | {rate:.1%} | {count:,} |", flush=True)


if __name__ == "__main__":
    main()
