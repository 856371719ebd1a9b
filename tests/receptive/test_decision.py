"""The decision: one sentence that the intervals allow, and the command that would tell more."""

from typing import Any

import numpy as np
import pytest
import torch
from small_measurements import evaluation, field, sentences

from fieldlens.evaluation.protocols import Anchor
from fieldlens.evaluation.result import Evaluation, merged
from fieldlens.models.adapters.base import ModelAdapter
from fieldlens.receptive.advice import advise
from fieldlens.receptive.check import Check
from fieldlens.receptive.decision import decide
from fieldlens.receptive.field import ReceptiveField
from fieldlens.receptive.measure_models import mixed_attention

COMMAND = "fieldlens measure m --length 256 --segments 4 --check --targets 60 --minutes 0"


def test_the_decision_comes_first_and_the_next_command_last() -> None:
    shares = field([0.0] * 50 + [1.0] * 50, 60)
    enough = Check(evaluation({32: 0.2, 64: 0.009, 128: 0.0, 256: 0.0}), {}, {}, "float32")
    lines = advise(shares, None, enough, None, COMMAND)
    assert lines[0] == "A context of 64 tokens is enough: perplexity is at most 2% higher than with 256 tokens."
    assert lines[-1].startswith(f"Next: `{COMMAND} --text FILE` repeats")
    assert decide(shares, enough, "fieldlens measure m --corpus c").command == "fieldlens measure m --text FILE"
    keep = decide(shares, Check(evaluation({16: 0.9, 32: 0.2, 64: 0.0}, trained=256), {}, {}, "float32"), COMMAND)
    assert keep.headline == "Keep all 64 tokens: with 32, perplexity rises by at least 22%."
    doubled = Check(evaluation({16: 0.9, 64: 0.2, 128: 0.0}, trained=256), {}, {}, "float32")
    longer = decide(ReceptiveField(np.ones((1, 128)), train_length=256), doubled, COMMAND)
    assert longer.command.endswith("--segments 4 --check --targets 60 --minutes 0 --length 256")
    worse = decide(shares, Check(evaluation({16: 0.5, 64: 0.0, 128: 1.0, 256: 2.0}), {}, {}, "float32"), COMMAND)
    assert worse.headline.startswith(
        "Use at most 64 tokens: perplexity explodes from 128 tokens on. Keep all 64 tokens"
    )
    assert decide(ReceptiveField(np.full((1, 4), np.nan)), None).to_json() == {
        "headline": "No receptive field: the gradient is not finite, zero or below rounding error.",
        "decided": False,
        "next": None,
    }


def test_an_undecided_context_is_bracketed_and_a_command_would_decide() -> None:
    contexts = evaluation({16: 2.0, 32: 1.0, 64: 0.012, 128: 0.0}, noise=0.0008, trained=128)
    contexts.about["seconds"] = 30.0
    check = Check(contexts, {}, {}, "float32")
    assert [candidate.outcome for candidate in check.of("context")] == ["undecided", "worse", "worse"]
    decision = decide(field([1.0] * 128, 128), check, COMMAND)
    assert decision.headline == "Undecided: the smallest context within 2% is between 32 and 128 tokens."
    assert not decision.decided
    needed = check.of("context")[0].contrast.targets_to_bound
    assert needed is not None
    assert needed < 1600
    assert decision.command == f"{COMMAND.replace('--targets 60 ', '')} --targets 1600"  # the default first
    assert decision.purpose == "may decide, if the estimate stays the same, in about 13 min here"


def test_an_undecided_check_asks_for_the_default_number_of_targets_first() -> None:
    contexts = evaluation({64: 0.0195, 128: 0.0}, noise=0.01, trained=128)
    contexts.about["seconds"] = 30.0
    decision = decide(field([1.0] * 128, 128), Check(contexts, {}, {}, "float32"), COMMAND)
    assert decision.command.endswith("--targets 1600")
    assert "narrows the intervals, in about 13 min here; to decide, about " in decision.purpose
    assert decision.purpose.endswith(" targets are needed if the estimate stays the same")
    many = evaluation({64: 0.0195, 128: 0.0}, documents=400, noise=0.01, trained=128)
    check = Check(many, {}, {}, "float32")
    needed = check.of("context")[0].contrast.targets_to_bound
    assert decide(field([1.0] * 128, 128), check, COMMAND).command.endswith(f"--targets {needed}")
    single = evaluation({64: 0.0195, 128: 0.0}, documents=1, trained=128)
    single.about["segments"] = 1
    without = Check(single, {}, {}, "float32")  # no interval
    assert decide(field([1.0] * 128, 128), without, COMMAND).command.endswith("--text FILE")


def test_without_a_check_the_next_command_is_a_check() -> None:
    bounded, whole = field([0.0] * 50 + [1.0] * 50, 60), field([1.0] * 100, 60)
    command = "fieldlens measure m --length 100 --minutes 0"
    assert decide(bounded, None, command).headline == "The last 50 of 100 tokens hold 99% of the gradient."
    assert decide(whole, None, command).headline == "The gradient reaches the whole context of 100 tokens."
    assert decide(whole, None, command).command == "fieldlens measure m --length 100 --check --minutes 10"


def test_the_share_by_distance_sums_to_one() -> None:
    rows = field([2.0] * 50 + [1.0] * 50, 60).by_distance()
    assert [(first, last) for first, last, _ in rows] == [(1, 16), (17, 64), (65, 100)]
    assert [share for _, _, share in rows] == pytest.approx([16 / 150, (34 + 28) / 150, 72 / 150])
    assert "By distance: 1–16: 10.7%, 17–64: 41.3%, 65–100: 48.0%." in advise(
        field([2.0] * 50 + [1.0] * 50), None, None
    )


def test_layers_that_a_window_changes_are_named() -> None:
    class Mixed(ModelAdapter):
        windows = (8, None, 8, None)

        def cache_size(self, tokens: int, window: int | None = None) -> int:
            return sum(100 * min(tokens, own or tokens, window or tokens) for own in self.windows)

        def logits(self, *_: Any) -> Any: ...

    attention = mixed_attention(Mixed(), None, 32)
    assert attention == {
        "layers": 4,
        "global_layers": [2, 4],
        "local_window": 8,
        "global_cache_share": pytest.approx(0.8),
    }
    (sentence,) = [line for line in advise(field([1.0] * 32), None, None, attention) if line.startswith("Layers")]
    assert sentence == (
        "Layers 2, 4 attend to the whole context and would hold 80% of the cache of 32 tokens; the other 2 layers "
        "attend to at most 8 tokens. A window of 8 tokens or more changes only the former, a smaller one all layers."
    )
    assert mixed_attention(Mixed(), 8, 32) is None
    assert mixed_attention(Mixed(), None, 8) is None


def test_a_window_that_keeps_the_sink_is_proposed() -> None:
    sink = field([50.0] + [0.0] * 50 + [1.0] * 49, 60)
    check = Check(evaluation({64: 0.0, 256: 0.0}), {32: evaluation({256: 0.5})}, {}, "float32")
    assert sink.has_sink
    assert any("keeps it, `--window 32 --sinks 4`." in sentence for sentence in advise(sink, None, check))
    assert "which is a sink" not in sentences(check)  # without a sink
    lost = Check(evaluation({32: 0.1, 256: 0.0}), {32: evaluation({256: 0.5})}, {}, "float32")
    assert "A window of 32 tokens is worse than a context of 32 tokens (× 1.492), which keeps" in sentences(lost)
    assert "--window 32 --sinks 4" in sentences(lost)
    equal = Check(evaluation({32: 0.5, 256: 0.0}), {32: evaluation({256: 0.5})}, {}, "float32")
    assert "--sinks" not in sentences(equal)


def test_evaluations_of_disjoint_targets_merge_in_order() -> None:
    def part(offsets: list[int]) -> Evaluation:
        losses = {8: torch.tensor([float(offset) for offset in offsets])}
        sizes = np.array(offsets, np.uint16)
        return Evaluation({"segments": 1, "seconds": 2.0, "x": 3}, losses, [Anchor(0, o) for o in offsets], sizes)

    whole = merged([part([5, 6]), part([1, 2]), part([9, 10])])
    assert whole.about == {"segments": 3, "seconds": 6.0, "x": 3}
    assert [target.offset for target in whole.targets] == [1, 2, 5, 6, 9, 10]
    assert whole.losses[8].tolist() == [1, 2, 5, 6, 9, 10]
    assert whole.sizes is not None
    assert whole.sizes.tolist() == [1, 2, 5, 6, 9, 10]


def test_a_text_that_the_model_does_not_know_gives_no_recommendation() -> None:
    contexts = evaluation({64: 0.009, 128: 0.0}, trained=128)  # perplexity 20
    known, unknown = (Check(contexts, {}, {}, "float32", size) for size in (100, 30))
    assert decide(field([1.0] * 128, 128), known, COMMAND).headline.startswith("A context of 64 tokens is enough")
    decision = decide(field([1.0] * 128, 128), unknown, COMMAND)
    assert decision.headline == (
        "No recommendation: the model does not know this kind of text. Its perplexity is 20, and that of a uniform "
        "guess 30."
    )
    assert not decision.decided
    assert decision.next_step.endswith("--text FILE` measures a text of the kind that the model was trained on.")
