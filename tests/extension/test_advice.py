"""The advice of `fieldlens extend`, from results of every kind."""

from typing import Any

import pytest

from fieldlens.receptive.extension_advice import advice


def about(outcomes: dict[str, str], **changes: Any) -> dict[str, Any]:
    """A result at 128, 256 and 512 tokens: u, c, b or ? for the outcome of each method at each length."""
    words = {"u": "uses", "c": "crops", "b": "breaks", "?": "undecided"}
    ratios = {"u": 0.9, "c": 1.0, "b": 1.5, "?": 0.99}
    rows = [
        {"method": method, "length": length, "outcome": words[letter], "ratio": ratios[letter], "targets_needed": 1200}
        for method, letters in outcomes.items()
        for length, letter in zip((128, 256, 512), letters, strict=False)
    ]
    costs = {method: {"seconds": 3.0, "cache_bytes": 3072, "configuration": None} for method in outcomes}
    costs["crop"] = {"seconds": 1.0, "cache_bytes": 1024, "configuration": None}
    return {"results": rows, "methods": costs, "train_length": 64, "limit": None, "refused": [], **changes}


@pytest.mark.parametrize(
    ("letters", "sentence"),
    [
        ("uuu", "trust the model up to 512 tokens: it uses the context there (× 0.900 of the crop's perplexity)."),
        ("ucb", "up to 256 tokens: it predicts as well as a crop there, not better; at 512 it breaks (× 1.500)."),
        ("bbb", "up to its training length, 64 tokens; at 128 it breaks (× 1.500)."),
        ("?uu", "64 tokens; at 128 it is undecided (an estimated 1,200 targets are needed)."),
    ],
)
def test_how_far_the_model_can_be_trusted(letters: str, sentence: str) -> None:
    assert advice(about({"stock": letters}))[0].endswith(sentence)


def test_a_model_without_positions_past_its_limit() -> None:
    assert (
        advice(about({"window": "ccc"}, limit=64))[0] == "Without a method the model has no positions past 64 tokens."
    )


def test_methods_that_help_come_first_with_their_cost() -> None:
    result = about({"stock": "bbb", "window": "ccc", "rerope": "uc?", "yarn": "uuu"})
    result["results"][-1]["ratio"] = 0.8
    parameters = {"rope_parameters": {"rope_type": "yarn", "factor": 8.0}}
    result["methods"]["yarn"]["configuration"] = parameters
    _, yarn, how, rerope, generate, window = advice(result)
    assert yarn == (
        "yarn uses the context from 128 tokens on: perplexity × 0.900 at 128, × 0.900 at 256, × 0.800 at 512 against "
        "the crop. At 512 tokens a forward pass takes 3.0 times as long as the crop's, with a cache of 3 KiB "
        "(crop: 1 KiB)."
    )
    assert how == 'To get yarn, put into config.json: {"rope_parameters": {"rope_type": "yarn", "factor": 8.0}}'
    assert "uses the context at 128 tokens: perplexity × 0.900 at 128 against the crop; at 256 it equals" in rerope
    assert "at 512 it is undecided (an estimated 1,200 targets are needed)" in rerope
    assert generate == "To get rerope: fieldlens generate … --method rerope; config.json has no setting for it."
    assert window == "window equals the crop at 128, 256 and 512 tokens, and it needs a cache of 3 KiB (crop: 1 KiB)."


def test_methods_that_do_not_help_are_named() -> None:
    sentences = advice(about({"stock": "bbb", "yarn": "cb?"}, refused=["rerope needs rotary positions"]))
    assert sentences[1:] == [
        "No method is shown to use context past 64 tokens, but not all are decided.",
        "yarn equals the crop at 128 tokens, is worse than the crop at 256 tokens, "
        "is undecided at 512 tokens (an estimated 1,200 targets are needed).",
        "Not tried: rerope needs rotary positions.",
    ]


def test_only_decided_methods_are_called_no_better_than_a_crop() -> None:
    assert advice(about({"stock": "bbb", "yarn": "cbb"}))[1] == (
        "No method uses context past 64 tokens: a crop is at least as good."
    )


def test_undecided_lengths_are_counted_together() -> None:
    result = about({"stock": "bbb", "yarn": "???", "rerope": "b??"})
    for row, needed in zip(result["results"], [None] * 3 + [1200, 55000, 8000, None, None, None], strict=True):
        row["targets_needed"] = needed
    assert advice(result)[2:] == [
        "yarn is undecided at 128, 256 and 512 tokens (an estimated 1,200, 55,000 and 8,000 targets are needed).",
        "rerope is worse than the crop at 128 tokens, is undecided at 256 and 512 tokens (more documents are needed).",
    ]
