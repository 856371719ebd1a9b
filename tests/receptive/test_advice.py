"""The advice of a measurement: what the gradient predicts, what a check decides, and what noise must not decide."""

import numpy as np
import pytest
from small_measurements import evaluation, field, sentences

from fieldlens.receptive.advice import advise
from fieldlens.receptive.charts.perplexity import comparison
from fieldlens.receptive.charts.profile import profile
from fieldlens.receptive.check import Check
from fieldlens.receptive.field import ReceptiveField
from fieldlens.receptive.gradient_advice import coverage


def test_coverage_and_its_principle() -> None:
    recent = [0.0] * 50 + [1.0] * 50
    assert coverage(field(recent, 60)) == {"share": pytest.approx(1.0), "predicts": "extrapolates", "reason": ""}
    assert coverage(field(recent, 25)) == {"share": pytest.approx(0.5), "predicts": "nothing", "reason": ""}
    assert coverage(field(recent, 100))["reason"] == "measured at 100 tokens, not beyond the training length 100"
    assert "not known" in coverage(field(recent))["reason"]


def test_advice_states_spread_coverage_and_reach() -> None:
    advice = " ".join(advise(field([0.0] * 50 + [1.0] * 50, 60), {"exact": 50, "paper": 52}, None))
    assert "50% in the last 26, 90% in the last 46, 95% in the last 48, 99% in the last 50 of 100 tokens" in advice
    assert "covers 100.0%" in advice
    assert "reach exactly 50 tokens" in advice
    advice = " ".join(advise(field([300.0] + [1.0] * 99, 60), None, None))
    assert "Not bounded at this length: 99% of the gradient needs 100 of 100 tokens" in advice
    assert (
        "The first token holds 75%, more than five times a uniform share: an attention sink, if the model is trained"
        in advice
    )
    assert "not more than 99%: this makes no prediction for longer contexts" in advice
    lost = ReceptiveField(np.array([[np.nan] * 4, [0.0, 0.0, 0.0, 1.0]]), reason="it is broken", train_length=2)
    assert "1 of 2 segments have no receptive field (it is broken)" in " ".join(advise(lost, None, None))


def test_an_unbounded_field_predicts_nothing() -> None:
    prediction = coverage(field([1.0] * 1030, 1024))
    assert prediction["share"] > 0.99
    assert prediction["predicts"] is None
    assert "should hold" not in " ".join(advise(field([1.0] * 1030, 1024), None, None))


def test_bos_does_not_add_coverage() -> None:
    field_with_bos = ReceptiveField(np.ones((1, 513)), train_length=512, bos=True)
    assert coverage(field_with_bos)["reason"] == "measured at 512 tokens, not beyond the training length 512"


def test_the_smallest_context_and_window_within_the_margin_of_the_full_length() -> None:
    contexts = evaluation({32: 0.2, 64: 0.009, 128: 0.0, 256: 0.0})
    sizes = {"context 64": 6400, "context 256": 25600, "window 16": 1600}
    check = Check(contexts, {8: evaluation({256: 0.041}), 16: evaluation({256: 0.005})}, sizes, "bfloat16")
    context, window = check.smallest("context"), check.smallest("window")
    assert context is not None
    assert window is not None
    assert (check.reference, context.tokens, window.tokens) == (256, 64, 16)
    assert context.contrast.low < context.contrast.difference < context.contrast.high
    assert (check.saved(window), window.cache_bytes) == (1 - 16 / 256, 1600)
    advice = sentences(check)
    assert "The smallest sliding window shown to be within 2% of the perplexity with 256 tokens is 16 tokens" in advice
    assert "a cache of that size, 1.56 KiB in bfloat16, saves 94% of the cache of 256 tokens." in advice
    assert " over documents); a cache" in advice
    assert "saves" not in sentences(Check(contexts, {16: evaluation({256: 0.005})}, {}, "float32"))
    assert "No sliding window was evaluated." in sentences(Check(contexts, {}, sizes, "float32"))
    full = Check(contexts, {256: evaluation({256: 0.0})}, sizes, "float32")
    assert "No sliding window below 256 tokens was evaluated." in sentences(full)
    worse = Check(contexts, {8: evaluation({256: 0.5})}, {}, "float32")
    assert worse.smallest("window") is None
    assert "No sliding window is within 2% of the perplexity with 256 tokens: 8 tokens already" in sentences(worse)


def test_noise_is_no_advice() -> None:
    """An estimate within the margin does not suffice: the interval must be, too."""
    contexts = evaluation({64: 0.01, 128: 0.0}, noise=0.01)
    window = evaluation({128: 0.0}, noise=0.02)
    check = Check(contexts, {16: window}, {"window 16": 100, "context 128": 1000}, "float32")
    assert check.of("window")[0].contrast.difference < np.log(1.02)
    assert check.smallest("window") is None
    advice = sentences(check)
    assert "Undecided whether any sliding window is within 2% of the perplexity with 128 tokens: 16 tokens" in advice
    assert "targets are needed to decide, if the estimate stays the same" in advice
    assert "No sliding window is recommended." in advice
    assert "saves" not in advice
    assert "undecided from 128 tokens on (up to × " in advice


def test_a_small_context_that_passes_by_luck_is_not_advised() -> None:
    """Candidates are tested from the largest down to the first that fails."""
    check = Check(evaluation({32: 0.0, 64: 0.3, 128: 0.0, 256: 0.0}), {}, {}, "float32")
    smallest = check.smallest("context")
    assert smallest is not None
    assert smallest.tokens == 128


def test_a_model_that_explodes_is_compared_with_its_training_length() -> None:
    check = Check(evaluation({16: 0.5, 32: 0.001, 64: 0.0, 128: 1.0, 256: 2.0}), {}, {}, "float32")
    assert (check.verdict["verdict"], check.reference) == ("explodes", 64)
    advice = sentences(check)
    assert "perplexity explodes from 128 tokens on: × 2.7" in advice
    assert advice.startswith("Use at most 64 tokens: perplexity explodes from 128 tokens on. A context of 32 tokens")
    assert advice.count("Use at most") == 1
    assert "All contexts and windows are compared with a context of 64 tokens, the training length." in advice
    assert "The smallest context shown to be within 2% of the perplexity with 64 tokens is 32 tokens" in advice


def test_windows_of_the_training_length_are_candidates_and_longer_rows_are_shown() -> None:
    contexts = evaluation({32: 0.3, 64: 0.0, 128: 1.0, 256: 2.0})
    windows = {width: evaluation({256: loss}) for width, loss in ((32, 0.4), (64, 0.001), (128, 1.1))}
    check = Check(contexts, windows, {}, "float32")
    assert check.reference == 64
    assert [(row.kind, row.tokens) for row in check.candidates] == [("context", 32), ("window", 64), ("window", 32)]
    assert "The smallest sliding window shown to be within 2% of the perplexity with 64 tokens is 64" in sentences(
        check
    )
    rows = comparison(check, "x").rows
    assert [row[0] + row[1] for row in rows] == [
        "context256", "context128", "context64", "context32", "window128", "window64", "window32"
    ]  # fmt: skip
    assert [row[-1] for row in rows] == ["worse", "worse", "reference", "worse", "worse", "not worse", "worse"]
    longer = [(row["kind"], row["tokens"]) for row in check.to_json()["past_reference"]]
    assert longer == [("context", 256), ("context", 128), ("window", 128)]
    too_long = sentences(Check(contexts, {128: windows[128]}, {}, "float32"))
    assert "No sliding window up to 64 tokens was evaluated." in too_long


def test_counts_name_targets_segments_and_documents() -> None:
    check = Check(evaluation({32: 0.3, 64: 0.0, 128: 0.0}), {}, {}, "float32")
    check.contexts.about["segments"] = 20
    assert check.contexts.counts == {"targets": 60, "segments": 20, "documents": 12} == check.to_json()["counts"]
    assert "Precision: with 60 targets in 20 segments of 12 documents, the change" in sentences(check)


def test_the_gradient_proposes_nothing_against_the_decision() -> None:
    """A model that explodes past its training length is not to be measured at a larger length."""
    whole = field([1.0] * 256, 64)
    check = Check(evaluation({32: 0.3, 64: 0.0, 256: 2.0}), {}, {}, "float32")
    assert "Measure at a larger" not in " ".join(advise(whole, None, check))
    assert "Measure at a larger" not in " ".join(advise(whole, None, None))  # it is past the training length
    assert "Measure at a larger" in " ".join(advise(field([1.0] * 256, 1024), None, None))


def test_the_verdict_stands_with_the_use_of_context() -> None:
    advice = sentences(Check(evaluation({16: 0.3, 64: 0.0, 128: 0.0}), {}, {}, "float32"))
    assert "perplexity holds" in advice
    assert "Uses context: loss from 16 to 64 tokens falls by 9.1% (perplexity -25.9%, 95% interval -2" in advice
    advice = sentences(Check(evaluation({16: 0.0, 64: 0.0, 128: 0.0}, noise=0), {}, {}, "float32"))
    assert "Context use not shown: loss from 16 to 64 tokens falls by 0.0%" in advice


def test_the_profile_is_an_average_over_growing_bins() -> None:
    distances, means = profile(np.full(100, 0.01))
    assert means == pytest.approx([0.01] * len(means))
    assert distances[0] == 1
    assert distances == sorted(distances)
