"""Evaluation: known answers, the same targets at every length, independence of batching."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from families import VOCABULARY, build
from torch import Tensor

import fieldlens
from fieldlens import Config, Decoder
from fieldlens.core.errors import BadInput, NonFiniteResult, OutOfMemory
from fieldlens.core.events import Estimate, Event, Progress, Warned
from fieldlens.evaluation.evaluate import evaluate
from fieldlens.evaluation.protocols import protocol, registry
from fieldlens.evaluation.result import Plan, read_evaluation
from fieldlens.evaluation.statistics import bootstrap_mean
from fieldlens.models.adapters.decoder import DecoderAdapter
from fieldlens.models.adapters.function import FunctionAdapter
from fieldlens.models.hf_export import FieldlensForCausalLM
from fieldlens.storage.results import read_result
from fieldlens.storage.sealed import read_sealed, write_sealed

GOLDEN = Path(__file__).parents[1] / "golden"


def text(count: int, seed: int = 0, vocab_size: int = VOCABULARY) -> Tensor:
    return torch.randint(vocab_size, (count,), generator=torch.Generator().manual_seed(seed))


def decoder(spec: str = "sandwich", **changes: object) -> Decoder:
    settings = {"layers": 2, "width": 32, "heads": 4, "vocab_size": VOCABULARY, "init_std": 0.2, "train_length": 16}
    return Decoder(Config(scheme=spec, **(settings | changes)))  # type: ignore[arg-type]


def uniform(ids_BT: Tensor) -> Tensor:
    return torch.zeros(*ids_BT.shape, 512, dtype=torch.float64)


def test_a_uniform_model_gives_the_vocabulary() -> None:
    for name in registry():
        evaluation = fieldlens.perplexity(uniform, text(3000, vocab_size=512), [32, 64], 20, name)
        assert evaluation.table == pytest.approx({32: 512.0, 64: 512.0}, rel=1e-14)


def test_a_bigram_model_gives_the_closed_form() -> None:
    logits_VV = torch.randn(7, 7, dtype=torch.float64)
    logs_VV, ids_T = logits_VV.log_softmax(1), text(500, vocab_size=7)
    evaluation = fieldlens.perplexity(lambda ids: logits_VV[ids], ids_T, [4, 9], 50)
    expected = torch.stack([-logs_VV[ids_T[offset - 1], ids_T[offset]] for _, offset in evaluation.targets])
    for length in (4, 9):
        assert (evaluation.losses[length] - expected).abs().max() < 1e-12
        assert evaluation.table[length] == pytest.approx(math.exp(float(expected.mean())), rel=1e-9)


def test_targets_are_the_same_for_all_models_and_lengths() -> None:
    tokens = [text(200), text(90, 1), text(20, 2)]
    first = fieldlens.perplexity(decoder(), tokens, [8, 32], 40, target_seed=3)
    second = fieldlens.perplexity(decoder("rotary"), tokens, [16, 32, 4], 40, target_seed=3)
    other = fieldlens.perplexity(decoder("rotary"), tokens, [16, 32, 4], 40, target_seed=4)
    assert first.targets == second.targets != other.targets
    assert all(offset >= 32 and document < 2 for document, offset in first.targets)
    assert list(second.losses) == [4, 16, 32]
    assert {len(losses) for losses in second.losses.values()} == {40}


@pytest.mark.parametrize("name", registry())
@pytest.mark.parametrize("kind", ["ours", "llama"])
def test_losses_are_those_of_the_full_forward(name: str, kind: str) -> None:
    """Every loss equals that of one plain forward pass over its own context."""
    model = decoder() if kind == "ours" else build(kind)
    plain = FieldlensForCausalLM.of(model) if isinstance(model, Decoder) else model
    tokens = [text(400), text(400, 1)]
    options = {"sliding": {"stride": 6}, "last-k": {"k": 8}}.get(name, {})
    evaluation = fieldlens.perplexity(model, tokens, [8, 50], 7, name, **options)
    chosen = protocol(name, **options)
    for length in (8, 50):
        anchors = evaluation.targets if name in ("last-token", "by-position") else _anchors(tokens, chosen)
        expected = []
        for excerpt in (excerpt for anchor in anchors for excerpt in chosen.excerpts(anchor, length, 50)):
            ids_BT = tokens[excerpt.document][excerpt.start : excerpt.stop + 1][None]
            with torch.no_grad():
                logs_BTV = plain(ids_BT[:, :-1]).logits.double().log_softmax(-1)
            expected.append(-logs_BTV.gather(2, ids_BT[:, 1:, None])[0, -excerpt.scored :, 0])
        assert (evaluation.losses[length] - torch.cat(expected)).abs().max() < 1e-5


def _anchors(tokens: list[Tensor], chosen: object) -> list:  # type: ignore[type-arg]
    from fieldlens.evaluation.protocols import draw, eligible

    return draw(eligible([len(ids) for ids in tokens], chosen, 50), 7, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["sandwich", "sinusoidal", "gpt2", "bloom", "mistral"])
def test_batches_do_not_matter(kind: str) -> None:
    model = decoder(kind) if kind.startswith("s") else build(kind)
    single, batched = (fieldlens.perplexity(model, text(300), [8, 40], 20, batch=batch) for batch in (1, 7))
    for length in (8, 40):
        assert (single.losses[length] - batched.losses[length]).abs().max() < 1e-5


def test_text_after_the_target_changes_nothing() -> None:
    model, ids_T = decoder(), text(80)
    whole = fieldlens.perplexity(model, ids_T, [8, 20], 10)
    last = max(offset for _, offset in whole.targets)
    changed = ids_T.clone()
    changed[last + 1 :] = (changed[last + 1 :] + 1) % VOCABULARY
    assert all(
        torch.equal(whole.losses[n], fieldlens.perplexity(model, changed, [8, 20], 10).losses[n]) for n in (8, 20)
    )


def test_a_window_is_a_band_in_every_layer() -> None:
    free, banded = decoder("alibi"), decoder("alibi:window=5")
    banded.load_state_dict(free.state_dict())
    ids_T = text(200)
    limited = fieldlens.perplexity(free, ids_T, [8, 64], 10, window=5)
    expected = fieldlens.perplexity(banded, ids_T, [8, 64], 10)
    smaller = fieldlens.perplexity(banded, ids_T, [8, 64], 10, window=100)
    for length in (8, 64):
        assert torch.equal(limited.losses[length], expected.losses[length])
        assert torch.equal(smaller.losses[length], expected.losses[length])
    assert not torch.equal(limited.losses[64], fieldlens.perplexity(free, ids_T, [8, 64], 10).losses[64])
    assert limited.about["window"] == 5


def test_bos_is_put_before_every_context_and_not_counted() -> None:
    seen: list[Tensor] = []

    def spy(ids_BT: Tensor) -> Tensor:
        seen.append(ids_BT)
        return torch.zeros(*ids_BT.shape, VOCABULARY)

    evaluation = fieldlens.perplexity(spy, text(100), [8, 20], 5, bos=96)
    contexts = [ids for ids in seen if ids.shape[1] > 8]  # shorter: is it causal?
    assert {ids.shape[1] for ids in contexts} == {9, 21}
    assert all((ids[:, 0] == 96).all() for ids in contexts)
    assert evaluation.about["bos"] == 96


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": []}, "lengths must be integers of at least 1, got none"),
        ({"lengths": [0, 8]}, "lengths must be integers of at least 1, got 0, 8"),
        ({"segments": 0}, "segments must be at least 1, got 0"),
        ({"segments": 1000}, "segments must be at most 100, the number of eligible tokens in this text, got 1000"),
        ({"lengths": [500]}, "length 500 is too long for this text: its longest document has 108 tokens, and 501"),
        ({"window": 0}, "window"),
        ({"protocol": "first"}, "unknown protocol 'first'"),
        ({"tokens": torch.zeros(0, dtype=torch.long)}, "no text"),
        ({"tokens": torch.zeros(3, 3, dtype=torch.long)}, "1-D integer tensor"),
        ({"tokens": torch.full((100,), VOCABULARY)}, "token id 97 is outside the vocabulary of 97"),
        ({"tokens": torch.full((100,), -1)}, "token id -1 is outside"),
    ],
)
def test_bad_arguments_are_refused(changes: dict[str, object], message: str) -> None:
    arguments = {"tokens": text(108), "lengths": [4, 8], "segments": 10} | changes
    with pytest.raises(BadInput, match=message):
        fieldlens.perplexity(decoder(), **arguments)  # type: ignore[arg-type]


def test_lengths_beyond_learned_positions_are_refused_with_both_numbers() -> None:
    with pytest.raises(BadInput, match=r"length 65 exceeds the 64 positions of .*: use at most 64"):
        fieldlens.perplexity(build("gpt2"), text(200), [65], 5)
    with pytest.raises(BadInput, match=r"mpt cannot process 100 tokens; its training length is 64"):
        fieldlens.perplexity(build("mpt"), text(200), [100], 5)


def test_a_nan_loss_is_an_error() -> None:
    def broken(ids_BT: Tensor) -> Tensor:
        return torch.full((*ids_BT.shape, VOCABULARY), math.nan)

    with pytest.raises(NonFiniteResult, match="broken produced NaN or inf at length 8"):
        fieldlens.perplexity(broken, text(100), [4, 8], 5)


class Cramped(FunctionAdapter):
    """Runs out of memory above a batch of three."""

    most = 3

    def logits(self, ids_BT: Tensor, keep: int, window: int | None, first: int) -> Iterator[Tensor]:
        if len(ids_BT) > self.most:
            raise torch.OutOfMemoryError("out of memory")
        return super().logits(ids_BT, keep, window, first)


def test_batches_are_halved_when_memory_runs_out() -> None:
    events: list[Event] = []
    ids_T = text(300).numpy()
    plan = Plan(protocol("last-token"), (8, 16), 40)
    about = {"model": {"name": "x", "train_length": None}}
    evaluation = evaluate(Cramped(uniform), [ids_T], plan, about=about, watch=events.append)
    assert evaluation.table == pytest.approx({8: 512, 16: 512})
    assert any(isinstance(event, Warned) for event in events)
    cramped = Cramped(uniform)
    cramped.most = 0
    with pytest.raises(OutOfMemory, match="not enough memory for one excerpt of 16 tokens"):
        evaluate(cramped, [ids_T], plan, about=about)


class Dying(DecoderAdapter):
    """Dies after some batches."""

    left = 3
    evaluated = 0

    def losses(self, ids_BT: Tensor, keep: int = 1, window: int | None = None) -> Tensor:
        self.left, self.evaluated = self.left - 1, self.evaluated + len(ids_BT)
        if self.left < 0:
            raise KeyboardInterrupt
        return super().losses(ids_BT, keep, window)


def test_an_interrupted_evaluation_goes_on(tmp_path: Path) -> None:
    model, journal = decoder(), tmp_path / "x.part"
    plan, documents = Plan(protocol("last-token"), (8, 16), 10), [text(200).numpy()]
    about = {"model": {"name": "x", "train_length": 8}}
    whole = evaluate(DecoderAdapter(model), documents, plan, about=about)
    first, second = Dying(model), Dying(model)
    with pytest.raises(KeyboardInterrupt):
        evaluate(first, documents, plan, about=about, batch=2, journal=journal)
    assert journal.exists()
    second.left = 100
    evaluation = evaluate(second, documents, plan, about=about, batch=2, journal=journal)
    assert journal.exists()  # until the caller has saved the result
    assert second.evaluated == 20 - 5  # one alone, then two batches of two were done
    assert all(torch.allclose(evaluation.losses[n], whole.losses[n], atol=1e-5) for n in (8, 16))


def test_results_can_be_read_back_and_recomputed(tmp_path: Path) -> None:
    evaluation = fieldlens.perplexity(decoder(), [text(100, n) for n in range(12)], [8, 16, 32], 60)
    evaluation.save(tmp_path / "one.json")
    again = read_evaluation(tmp_path / "one.json")
    assert again.table == evaluation.table
    assert again.targets == evaluation.targets
    assert again.to_json() == evaluation.to_json() == read_result(tmp_path / "one.json")[0]
    written = evaluation.to_json()
    assert written["protocol"] == {"name": "last-token", "version": 1, "same_targets": True}
    assert {"torch", "transformers", "python", "fieldlens"} <= set(written["versions"])
    assert written["verdict"]["train_length"] == 16
    bytes_before = (tmp_path / "one.npz").read_bytes()
    again.save(tmp_path / "two.json")
    assert (tmp_path / "two.npz").read_bytes() == bytes_before


def test_the_figure_has_a_line_and_marks_the_training_length() -> None:
    panel = fieldlens.perplexity(decoder(), text(100), [8, 16, 32], 20).plot()
    labels = [line.get_label() for line in panel.lines]
    assert "sandwich" in labels
    assert any(line.get_linestyle() == ":" for line in panel.lines)


def test_the_golden_protocols() -> None:
    """The numbers of a committed model. Change a protocol's numbers and its version must change too."""
    import fieldlens.models.hf_export

    model = fieldlens.models.hf_export.FieldlensForCausalLM.from_pretrained(GOLDEN / "model").double()
    golden = json.loads((GOLDEN / "protocols.json").read_text())
    tokens = [text(n, n, 64) for n in (200, 700, 1000, 33)]
    for name, cls in registry().items():
        options = {"sliding": {"stride": 4}, "last-k": {"k": 4}, "consecutive": {"k": 4}}.get(name, {})
        key = f"{name} version {cls.version}"
        assert key in golden, f"write down the numbers of {key} beside the old ones"
        for window in (None, 5):
            evaluation = fieldlens.perplexity(model, tokens, [8, 16, 64], 12, name, window=window, **options)
            expected = golden[key][f"window {window}"]
            table = {str(n): evaluation.table[n] for n in (8, 16, 64)}
            assert table == pytest.approx(expected, rel=1e-9), key
            assert [list(target) for target in evaluation.targets][:12] == golden[key]["targets"], key


def test_an_undefined_interval_has_no_ends() -> None:
    (row,) = fieldlens.perplexity(decoder(), text(900), [8], 2).rows()
    assert (row["low"], row["high"]) == (None, None)


def test_a_function_that_looks_ahead_is_refused() -> None:
    def peeks(ids_BT: torch.Tensor) -> torch.Tensor:
        return 9.0 * torch.nn.functional.one_hot(ids_BT.roll(-1, 1), 60).float()

    with pytest.raises(BadInput, match="peeks is not causal"):
        fieldlens.perplexity(peeks, text(900), [8], 5)


def test_few_documents_are_reported() -> None:
    single = fieldlens.perplexity(decoder(), text(900), [8, 16, 32], 5, "last-k", k=4)
    assert single.verdict["resampled"] == "segments"
    assert single.units()[0].tolist() == np.repeat(np.arange(5), 4).tolist()
    several = fieldlens.perplexity(decoder(), [text(100, n) for n in range(12)], [8, 16, 32], 60)
    assert several.verdict["resampled"] == "documents"
    assert several.rows()[0]["resampled"] == "documents"


def test_no_target_is_drawn_twice() -> None:
    for name in registry():
        evaluation = fieldlens.perplexity(uniform, text(3000, vocab_size=512), [32, 64], 20, name)
        assert len(set(evaluation.targets)) == len(evaluation.targets)


def test_sliding_and_non_overlapping_predict_the_same_tokens() -> None:
    sliding, disjoint = (
        fieldlens.perplexity(uniform, text(3000, vocab_size=512), [32, 64], 9, name) for name in STRETCHES
    )
    assert sliding.targets == disjoint.targets


STRETCHES = ("sliding", "non-overlapping")


def test_a_hopeless_model_has_an_infinite_perplexity() -> None:
    def hopeless(ids_BT: Tensor) -> Tensor:
        logits_BTV = torch.zeros(*ids_BT.shape, VOCABULARY, dtype=torch.float64)
        logits_BTV[..., 96] = 1e4
        return logits_BTV

    evaluation = fieldlens.perplexity(hopeless, text(200) % 90, [4, 8], 10)
    assert evaluation.table == {4: math.inf, 8: math.inf}
    assert evaluation.to_json()["results"][0]["perplexity"] is None
    evaluation.plot()


def test_the_interval_is_in_perplexity_and_holds_it() -> None:
    evaluation = fieldlens.perplexity(decoder(), [text(100, n) for n in range(12)], [8, 16], 60)
    for row in evaluation.rows():
        low, high = bootstrap_mean(evaluation.losses[row["length"]].double().numpy(), evaluation.documents)
        assert (row["low"], row["high"]) == (math.exp(low), math.exp(high))
        assert row["low"] < row["perplexity"] < row["high"]


def test_a_user_gets_the_model_back_as_it_was() -> None:
    model = decoder().train()
    fieldlens.perplexity(model, text(100), [8], 5)
    assert all(module.training for module in model.modules())


def test_results_name_their_text_and_weights() -> None:
    about = [fieldlens.perplexity(decoder(), text(100, n), [8], 5).about for n in (0, 0, 1)]
    assert about[0]["data"] == about[1]["data"] != about[2]["data"]
    assert about[0]["model"]["weights"] != about[1]["model"]["weights"]  # two random decoders


def test_an_estimate_comes_after_the_first_text() -> None:
    events: list[Event] = []
    plan = Plan(protocol("last-token"), (8, 16), 40)
    evaluate(
        DecoderAdapter(decoder()),
        [text(300).numpy()],
        plan,
        about={"model": {"name": "x", "train_length": None}},
        watch=events.append,
    )
    estimate, last = events[0], events[-1]
    assert isinstance(estimate, Estimate)
    assert 0 < estimate.seconds < 60
    assert estimate.memory > 0
    assert isinstance(last, Progress)
    assert last.done == pytest.approx(last.total)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda about: about.pop("lengths"), "not a complete result"),
        (lambda about: about.pop("model"), "not a complete result"),
        (lambda about: about.update(targets=3), "expected 3 targets"),
        (lambda about: about.update(lengths=[8]), "not a complete result"),
        (lambda about: about.update(kind="x"), "not the result of an evaluation"),
        (lambda about: about["model"].update(recipe={"seed": "x"}), "not a complete result"),
    ],
)
def test_incomplete_results_are_refused(change: object, message: str, tmp_path: Path) -> None:
    fieldlens.perplexity(decoder(), text(100), [8, 16], 5).save(tmp_path / "one.json")
    about = read_sealed(tmp_path / "one.json")
    change(about)  # type: ignore[operator]
    write_sealed(tmp_path / "one.json", about)
    with pytest.raises(BadInput, match=message):
        read_evaluation(tmp_path / "one.json")


def test_integers_of_any_type_are_accepted() -> None:
    plan = Plan(protocol("last-token"), torch.tensor([8, 16]), np.int64(4), window=np.int32(3))  # type: ignore[arg-type]
    assert json.loads(json.dumps(plan.about()))["lengths"] == [8, 16]
    with pytest.raises(BadInput, match="lengths, segments, seed and window must be integers"):
        Plan(protocol("last-token"), (8.5,))  # type: ignore[arg-type]
