"""Tests and intervals against SciPy, enumeration and simulation: 5 % false positives for any kind of document."""

import itertools
import math
import subprocess
import sys
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from fieldlens.core.errors import BadInput
from fieldlens.evaluation import statistics
from fieldlens.evaluation.statistics import (
    Interval,
    Paired,
    bootstrap_difference,
    bootstrap_mean,
    differences,
    holm,
    paired_t,
    sign_flip,
    smallest_p,
)

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Floats]

# All have mean 0 and variance 1; "skewed" has skewness 1.
SHAPES: dict[str, Draw] = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "heavy": lambda rng, size: rng.laplace(size=size) / math.sqrt(2),
    "skewed": lambda rng, size: (rng.gamma(4, size=size) - 4) / 2,
    "exponential": lambda rng, size: rng.exponential(size=size) - 1,
}


def draw(
    rng: np.random.Generator, documents: int, effect: str, noise: str = "heavy", share: float = 0.5
) -> tuple[Floats, NDArray[np.int64]]:
    """Differences of mean 0 in documents of 5 to 60 targets, with a random effect per document."""
    counts_G = rng.integers(5, 61, documents)
    labels_N = np.repeat(np.arange(documents), counts_G)
    return share * SHAPES[effect](rng, documents)[labels_N] + SHAPES[noise](rng, len(labels_N)), labels_N


def rejects(test: Paired) -> bool:
    return test.p is not None and test.p <= 0.05


# ---- over seeds


@given(st.integers(2, 12), st.integers(0, 10**6))
def test_paired_t_is_scipys(seeds: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, reference = 3 + rng.standard_normal(seeds), 3 + rng.standard_normal(seeds)
    test, expected = paired_t(values, reference), stats.ttest_rel(values, reference)
    assert test.statistic == pytest.approx(expected.statistic, rel=1e-12)
    assert test.p == pytest.approx(expected.pvalue, rel=1e-12)
    assert test.difference == pytest.approx(np.mean(values - reference), abs=1e-12)
    assert test.reason == ""
    assert paired_t(list(reference), list(values)).p == pytest.approx(test.p, rel=1e-12)


def test_five_seeds_need_a_t_of_2_776445() -> None:
    assert stats.t.ppf(0.975, 4) == pytest.approx(2.776445, abs=1e-6)
    base = np.array([-2.0, -1, 0, 1, 2])
    for t, significant in ((2.776444, False), (2.776446, True)):
        test = paired_t(base + t * base.std(ddof=1) / math.sqrt(5), np.zeros(5))
        assert test.statistic == pytest.approx(t, rel=1e-12)
        assert rejects(test) == significant


def test_copies_of_one_run_get_no_p() -> None:
    reference = np.array([3.1, 3.7, 2.9, 3.3, 0.1])
    assert paired_t(reference, reference) == Paired(0.0, 0.0, 1.0, "identical")
    assert paired_t(np.full(5, 3.2), np.full(5, 3.1)).reason == statistics.CONSTANT
    for shift in (0.1, -0.1, 1e-3, 7.0):
        test = paired_t(reference + shift, reference)
        assert np.ptp(reference + shift - reference) > 0  # constant but for round-off
        assert test[1:] == (math.copysign(math.inf, shift), None, "constant difference: nothing to test against")
        assert test.difference == pytest.approx(shift)
    assert paired_t(reference * (1 + 2e-16), reference)[1:] == (0.0, 1.0, "identical")


def test_single_precision_has_a_coarser_round_off() -> None:
    reference = np.array([3.1, 3.7, 2.9, 3.3, 0.1], dtype=np.float32)
    assert np.ptp((reference + np.float32(0.1)).astype(float) - reference.astype(float)) > 1e-8
    assert paired_t(reference + np.float32(0.1), reference).reason == statistics.CONSTANT


def test_small_differences_are_still_tested() -> None:
    reference = np.array([3.1, 3.7, 2.9, 3.3, 3.0])
    test = paired_t(reference + 1e-6 * np.array([1, 2, 1, 2, 1.5]), reference)
    assert test.reason == ""
    assert rejects(test)


def test_one_seed_is_no_test() -> None:
    test = paired_t([3.0], [2.5])
    assert (test.difference, test.p, test.reason) == (0.5, None, "fewer than 2 seeds")
    assert math.isnan(test.statistic)


def test_holm_by_hand() -> None:
    assert holm([0.01, None, 0.04, 0.03, 0.04, 0.5]) == [
        pytest.approx(0.05),
        None,
        pytest.approx(0.12),
        pytest.approx(0.12),  # 4 × .03
        pytest.approx(0.12),  # 3 × .04; the tie's second half would be 2 × .04 and may not be less
        0.5,
    ]
    assert holm([0.4, 0.6]) == [0.8, 0.8]
    assert holm([0.9, 0.7]) == [1.0, 1.0]
    assert holm([None, 0.03]) == [None, 0.03]
    assert holm([None]) == [None]
    assert holm([]) == []


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=9))
def test_holm_corrects_upwards_and_keeps_the_order(ps: list[float | None]) -> None:
    pairs = [(p, q) for p, q in zip(ps, holm(ps), strict=True) if p is not None or q is not None]
    assert all(p is not None and q is not None and p <= q <= 1 for p, q in pairs)
    for (p, q), (other, corrected) in itertools.product(pairs, pairs):
        assert p is None or other is None or p > other or (q or 0) <= (corrected or 0)


# ---- over documents


def test_sign_flips_are_enumerated() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        labels_N = np.repeat(np.arange(6), rng.integers(1, 9, 6))
        differences_N = rng.standard_normal(len(labels_N)) + 0.4
        means = [
            np.mean(np.array(signs)[labels_N] * differences_N) for signs in itertools.product((1.0, -1.0), repeat=6)
        ]
        expected = np.mean(np.abs(means) >= abs(differences_N.mean()) - 1e-12)
        test = sign_flip(differences_N, labels_N)
        assert test.p == expected
        assert test.difference == pytest.approx(differences_N.mean(), rel=1e-12)
        assert test.statistic == pytest.approx(differences_N.mean() / np.std(means), rel=1e-12)


def test_tied_flips_count() -> None:
    assert sign_flip([0.1, 0.2, 0.3], [0, 1, 2]).p == 0.25
    assert sign_flip([0.3, -0.1, -0.2], [0, 1, 2]).p == 1.0
    assert sign_flip([0.1, 0.2, 0.0], [0, 1, 2]).p == 0.5


def test_drawn_flips_agree_with_enumerated_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    differences_N, labels_N = draw(rng, 12, "normal")
    for shift in (0.0, 0.2, 0.4):
        exact = sign_flip(differences_N + shift, labels_N)
        monkeypatch.setattr(statistics, "EXACT", 0)
        drawn = sign_flip(differences_N + shift, labels_N)
        monkeypatch.undo()
        assert exact.p is not None
        assert drawn.p == pytest.approx(exact.p, abs=4 * math.sqrt(exact.p / 10_000) + 1e-4)
        assert drawn[:2] == exact[:2]


def test_few_documents_cannot_reach_a_small_p() -> None:
    assert smallest_p(5) == 0.0625
    for documents in range(2, 16):
        values = np.arange(1.0, documents + 1)
        p = sign_flip(values, np.arange(documents)).p
        assert p == (smallest_p(documents) if documents <= 14 else pytest.approx(1e-4, abs=3e-4))
    assert smallest_p(1) == 1.0
    assert smallest_p(10**6) == 1e-4  # of all resamples one, the data themselves


def test_round_off_is_no_difference() -> None:
    """A model whose window is shorter than both lengths gives the same losses, but for the order of additions."""
    losses = np.random.default_rng(0).gamma(2, 1, 60)
    other = losses.copy()
    other[7] += 9.5e-7
    assert not differences(other, losses).any()
    assert bootstrap_difference(differences(other, losses), np.arange(60) // 3)[0] == (0.0, 0.0)
    assert differences([2.0], [1.9]) == pytest.approx(0.1)


def test_the_bootstrap_resamples_whole_documents() -> None:
    rng = np.random.default_rng(3)
    differences_N, labels_N = draw(rng, 8, "normal")
    interval, test = bootstrap_difference(differences_N, labels_N, resamples=4999)
    sums_G, counts_G = np.bincount(labels_N, differences_N), np.bincount(labels_N)

    def mean_and_error(picks: NDArray[np.int64]) -> tuple[float, float]:
        some_N = np.concatenate([differences_N[labels_N == pick] for pick in picks])
        mean = float(some_N.mean())
        spread = float(sum((sums_G[pick] - mean * counts_G[pick]) ** 2 for pick in picks))
        return mean, math.sqrt(spread * 8 / 7) / len(some_N)

    mean, error = mean_and_error(np.arange(8))
    ts = [abs(m - mean) / e for m, e in (mean_and_error(rng.integers(8, size=8)) for _ in range(5000))]
    assert test.statistic == pytest.approx(mean / error, rel=1e-12)
    assert test.p == pytest.approx(np.mean(np.array(ts) >= abs(mean / error)), abs=0.03)
    assert interval.high - mean == pytest.approx(float(np.quantile(ts, 0.95)) * error, rel=0.08)
    assert interval.high - mean == pytest.approx(mean - interval.low)


exact_documents = st.lists(st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=1, max_size=5), min_size=1)


@given(exact_documents, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_names_and_order_of_documents_do_not_matter(documents: list[list[float]], random) -> None:
    pairs = [(value, at) for at, values in enumerate(documents) for value in values]
    names = [f"document {at}" for at in range(len(documents))]
    random.shuffle(names)
    shuffled = random.sample(pairs, len(pairs))
    values_N, labels_N = zip(*pairs, strict=True)
    others_N, other_labels_N = [value for value, _ in shuffled], [names[at] for _, at in shuffled]
    for test in (sign_flip, bootstrap_difference, bootstrap_mean):
        # nan is not nan: compare what is printed
        assert repr(test(values_N, labels_N, resamples=199)) == repr(test(others_N, other_labels_N, resamples=199))


@given(exact_documents, st.sampled_from([0.1, 3.0, -1.0, -1e6, 1e-9]))
@settings(deadline=None)
def test_the_unit_does_not_matter(documents: list[list[float]], scale: float) -> None:
    labels_N = np.repeat(np.arange(len(documents)), [len(values) for values in documents])
    values_N = np.concatenate([np.array(values) for values in documents])
    (low, high), test = bootstrap_difference(values_N, labels_N, resamples=199)
    assume(scale > 0 or test.difference != 0)  # a mean of 0 has no side to put documents in order by
    interval, scaled = bootstrap_difference(values_N * scale, labels_N, resamples=199)
    assert interval == pytest.approx(sorted((scale * low, scale * high)), rel=1e-9, abs=1e-9 * abs(scale), nan_ok=True)
    pairs = [(test, scaled), (sign_flip(values_N, labels_N, 199), sign_flip(values_N * scale, labels_N, 199))]
    for original, rescaled in pairs:
        assert original.p == rescaled.p
        assert original.reason == rescaled.reason
        sign = math.copysign(1, scale)
        assert rescaled.statistic == pytest.approx(sign * original.statistic, rel=1e-9, abs=1e-9, nan_ok=True)
        assert rescaled.difference == pytest.approx(scale * original.difference, rel=1e-9, abs=1e-9 * abs(scale))


def test_a_shift_moves_the_interval_along() -> None:
    values_N, labels_N = draw(np.random.default_rng(0), 30, "skewed")
    original, shifted = bootstrap_mean(values_N + 1, labels_N), bootstrap_mean(values_N + 9, labels_N)
    assert shifted == pytest.approx((original.low + 8, original.high + 8), rel=1e-9)


@given(st.integers(0, 10**6), st.sampled_from([(0.95, 199), (0.9, 99), (0.99, 999), (0.95, 1234)]))
@settings(deadline=None)
def test_interval_and_p_agree(seed: int, setting: tuple[float, int]) -> None:
    level, resamples = setting
    rng = np.random.default_rng(seed)
    differences_N, labels_N = draw(rng, 15, "normal")
    interval, test = bootstrap_difference(differences_N + rng.uniform(0, 0.6), labels_N, level, resamples)
    assert test.p is not None
    assert (interval.low > 0 or interval.high < 0) == (test.p <= 1 - level + 1e-9)
    assert interval.low <= test.difference <= interval.high


def test_the_same_seed_gives_the_same_result() -> None:
    differences_N, labels_N = draw(np.random.default_rng(0), 30, "heavy")
    for test in (sign_flip, bootstrap_difference, bootstrap_mean):
        assert test(differences_N, labels_N) == test(differences_N, labels_N, seed=0)
        assert test(differences_N, labels_N, seed=0) != test(differences_N, labels_N, seed=1)


def test_one_document_is_not_resampled() -> None:
    interval, test = bootstrap_difference([1.0, 2.0, 4.5], ["a", "a", "a"])
    for result in (test, sign_flip([1.0, 2.0, 4.5], ["a", "a", "a"])):
        assert (result.difference, result.p, result.reason) == (2.5, None, "one document: nothing to resample")
        assert math.isnan(result.statistic)
    assert np.isnan([*interval, *bootstrap_mean([1.0, 1.0], [0, 0])]).all()


@pytest.mark.parametrize("value", [0.1, -0.3, 1e-7])
def test_documents_that_agree_give_no_p(value: float) -> None:
    values_N, labels_N = np.full(70, value), np.arange(70) // 9
    low, high = bootstrap_mean(values_N, labels_N)
    assert low == high == pytest.approx(value)
    interval, test = bootstrap_difference(values_N, labels_N)
    assert interval == (low, high)
    assert test == sign_flip(values_N, labels_N)
    assert test[1:] == (math.copysign(math.inf, value), None, statistics.CONSTANT)


def test_no_difference_at_all() -> None:
    values_N, labels_N = np.zeros(70), np.arange(70) // 9
    assert bootstrap_difference(values_N, labels_N) == (Interval(0.0, 0.0), Paired(0.0, 0.0, 1.0, "identical"))
    assert sign_flip(values_N, labels_N) == Paired(0.0, 0.0, 1.0, "identical")
    cancel = np.tile([0.1, 0.2, -0.3], 5)
    assert sign_flip(cancel, np.arange(15) // 3)[1:] == (0.0, 1.0, "identical")


def test_two_documents_bound_nothing() -> None:
    interval, test = bootstrap_difference([1.0, 2.0, 3.0], [0, 1, 1])
    assert interval == (-math.inf, math.inf)
    assert test.p is not None
    assert test.p > 0.4
    assert test.reason == ""


def test_bad_input_is_named() -> None:
    bad = [
        (lambda: paired_t([1.0, 2, 3], [1.0, 2]), "values and reference must have the same length, got 3 and 2"),
        (lambda: paired_t([], []), r"got shape \(0,\)"),
        (lambda: paired_t([1.0, math.nan, math.inf], [1.0, 2, 3]), "values must be finite, but 2 of 3 are NaN or inf"),
        (lambda: holm([0.1, math.nan, None]), "p-values must be between 0 and 1, got nan"),
        (lambda: holm([1.5]), "p-values must be between 0 and 1, got 1.5"),
        (lambda: smallest_p(0), "documents must be at least 1, got 0"),
        (lambda: sign_flip([1.0, 2], [0, 1], resamples=0), "resamples must be at least 1, got 0"),
        (lambda: bootstrap_mean([1.0, 2], [0, 1], level=1.5), "level must be between 0 and 1, got 1.5"),
        (lambda: bootstrap_mean([1.0, 2], [0, 1], resamples=18), "level 0.95 needs at least 19 resamples, got 18"),
    ]
    for test in (sign_flip, bootstrap_mean, bootstrap_difference):
        bad += [
            (lambda test=test: test([1.0, 2, 3], [0, 1]), r"documents must have the same shape, got \(3,\) and \(2,\)"),
            (lambda test=test: test([], []), r"got shape \(0,\)"),
            (lambda test=test: test([[1.0]], [[0]]), r"got shape \(1, 1\)"),
            (lambda test=test: test([1.0, -math.inf], [0, 1]), "values must be finite, but 1 of 2 are NaN or inf"),
        ]
    for call, message in bad:
        with pytest.raises(BadInput, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert bootstrap_mean([1.0, 2, 4, 3, 2], range(5), resamples=19).low < 2.4


def test_importing_leaves_scipy_alone() -> None:
    program = "import sys, fieldlens.evaluation.statistics; print('scipy' in sys.modules)"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "False"


def test_resampling_takes_little_memory() -> None:
    rng = np.random.default_rng(0)
    for tokens, documents in ((1000, 1000), (100_000, 50)):  # resamples × tokens would be 8 GB
        values_N, labels_N = rng.laplace(size=tokens), np.arange(tokens) * documents // tokens
        for test in (sign_flip, bootstrap_difference):
            tracemalloc.start()
            test(values_N, labels_N, resamples=10_000)
            assert tracemalloc.get_traced_memory()[1] < 32 * 2**20
            tracemalloc.stop()


# ---- by simulation


def false_positives(simulations: int, documents: int, effect: str, noise: str, seed: int) -> tuple[float, float]:
    """How often the bootstrap and the sign flip find a difference where there is none."""
    rng = np.random.default_rng(seed)
    rejected = np.zeros(2)
    for at in range(simulations):
        data = draw(rng, documents, effect, noise)
        rejected += rejects(bootstrap_difference(*data, resamples=499, seed=at)[1]), rejects(sign_flip(*data, 499, at))
    bootstrap, flip = rejected / simulations
    return float(bootstrap), float(flip)


@pytest.mark.parametrize(
    ("documents", "effect", "noise"),
    [
        (20, "normal", "heavy"),
        (20, "skewed", "heavy"),
        (30, "normal", "exponential"),
        (30, "skewed", "exponential"),
        (60, "heavy", "heavy"),
        (60, "skewed", "heavy"),
    ],
)
def test_one_in_twenty_is_found_without_a_difference(documents: int, effect: str, noise: str) -> None:
    bootstrap, flip = false_positives(4000, documents, effect, noise, seed=1)
    assert 0.04 <= bootstrap <= 0.06
    assert 0.04 <= flip <= (0.07 if effect == "skewed" else 0.06)  # flips suppose symmetry: 5.9 % of 10,000 at worst


def test_heavy_tails_make_the_bootstrap_careful_not_bold() -> None:
    bootstrap, flip = false_positives(2000, 20, "heavy", "heavy", seed=0)
    assert 0.025 <= bootstrap <= 0.06
    assert 0.04 <= flip <= 0.06


def test_resampling_tokens_would_be_badly_wrong() -> None:
    rng = np.random.default_rng(0)
    rejected = np.zeros(2)
    for at in range(300):
        differences_N, _ = draw(rng, 30, "normal")
        tokens_N = np.arange(len(differences_N))
        test = bootstrap_difference(differences_N, tokens_N, resamples=199, seed=at)[1]
        rejected += rejects(test), rejects(sign_flip(differences_N, tokens_N, 199, at))
    assert (rejected / 300 > 0.10).all()


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_one_in_twenty_is_found_over_seeds(seeds: int) -> None:
    rng = np.random.default_rng(0)
    runs = 3 + rng.standard_normal((4000, 2, seeds))
    assert 0.04 <= np.mean([rejects(paired_t(*run)) for run in runs]) <= 0.06


@pytest.mark.parametrize("level", [0.9, 0.95])
def test_intervals_cover_the_mean(level: float) -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for at in range(3000):
        values_N, labels_N = draw(rng, 40, "skewed", "exponential")
        low, high = bootstrap_mean(3 + values_N, labels_N, level, resamples=499, seed=at)
        covered += low <= 3 <= high
    assert level - 0.012 <= covered / 3000 <= level + 0.012


def test_a_real_difference_is_found() -> None:
    rng = np.random.default_rng(0)
    rejected = np.zeros(3)
    for at in range(200):
        differences_N, labels_N = draw(rng, 40, "heavy")
        interval, test = bootstrap_difference(differences_N - 0.35, labels_N, resamples=499, seed=at)
        flip = sign_flip(differences_N - 0.35, labels_N, 499, at)
        seeds = paired_t(2.9 + 0.03 * rng.standard_normal(5), 3 + 0.03 * rng.standard_normal(5))
        rejected += rejects(test) and interval.high < 0, rejects(flip), rejects(seeds)
    assert (rejected / 200 > 0.9).all()
