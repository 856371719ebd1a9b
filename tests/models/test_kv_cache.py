"""The sliding cache equals attention with a window, in buffers of constant size."""

import pytest
import torch
from conftest import DEVICES
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fieldlens import Config, Decoder
from fieldlens.generation.engine import CachedEngine, ReencodeEngine
from fieldlens.models.adapters.adapt import adapt
from fieldlens.models.kv_cache import SlidingBuffer, SlidingCache, capacity
from fieldlens.schemes.discovery import is_built_in, registry
from fieldlens.schemes.spec import parse

VOCABULARY = 60
WINDOWS = (1, 2, 8, 33)
DEPTHS = (1, 3)
EVERY = pytest.mark.parametrize("spec", registry())


def decoder(spec: str, layers: int, window: int | None = None) -> Decoder:
    """A small decoder with weights large enough that every dependence is visible."""
    shape = {"layers": layers, "width": 32, "heads": 4, "vocab_size": VOCABULARY, "init_std": 0.2, "train_length": 16}
    return Decoder(Config(scheme=spec, window=window, **shape)).eval().requires_grad_(False)  # type: ignore[arg-type]


def in_chunks(model: Decoder, ids_BT: Tensor, window: int, chunk: int) -> Tensor:
    """Logits after every token, computed with a cache in chunks of `chunk` tokens."""
    cache, logits = SlidingCache([window] * model.config.layers), []
    for positions, ids_Bt in zip(torch.arange(ids_BT.shape[1]).split(chunk), ids_BT.split(chunk, 1), strict=True):
        key_positions = cache.admit(positions)
        logits.append(model(ids_Bt, positions=positions, key_positions=key_positions, window=window, cache=cache))
    return torch.cat(logits, 1)


def prompted(reader: CachedEngine | ReencodeEngine, ids_BT: Tensor, prompt: int) -> Tensor:
    """Logits after a prompt and after each token that follows: (B, T - prompt + 1, V)."""
    logits = [reader.read(ids_BT[:, :prompt], torch.arange(prompt))]
    for at in range(prompt, ids_BT.shape[1]):
        logits.append(reader.read(ids_BT[:, at : at + 1], torch.tensor([at])))
    return torch.stack(logits, 1)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.usefixtures("float64")
def test_the_cache_equals_the_windowed_forward(every_spec: str, window: int) -> None:
    """For any chunk size: to 1e-12 in float64, to 1e-5 in float32."""
    length = 3 * window + 7
    ids_BT = torch.randint(VOCABULARY, (2, length))
    for layers in DEPTHS if window < 33 else (2,):
        model = decoder(every_spec, layers)
        expected = model(ids_BT, window=window)
        if not model.scheme.exact_with_cache:
            differs = (in_chunks(model, ids_BT, window, 5) - expected).abs().max() > 1e-6
            assert differs == (length > 16 and window > 1)  # within the original length it is exact
            continue
        for chunk in {1, 5, window, length} if window < 33 else {9, length}:
            assert (in_chunks(model, ids_BT, window, chunk) - expected).abs().max() < 1e-12
        single = model.float()
        assert (in_chunks(single, ids_BT, window, 5) - single(ids_BT, window=window)).abs().max() < 1e-5


@EVERY
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.usefixtures("float64")
def test_rows_with_prompts_of_different_lengths(spec: str, window: int) -> None:
    """Each left-padded row gives the same result as alone, for any chunk size."""
    lengths, more = (3 * window + 7, window + 2, 1), min(window + 4, 20)
    rows = [torch.randint(VOCABULARY, (length + more,)) for length in lengths]
    longest = lengths[0]
    positions_BT = (torch.arange(longest) - torch.tensor([[longest - length] for length in lengths])).clamp(min=-1)
    ids_BT = torch.zeros(3, longest, dtype=torch.long)
    for row, (length, text) in enumerate(zip(lengths, rows, strict=True)):
        ids_BT[row, longest - length :] = text[:length]
    for layers, chunk in ((1, window), (2, 5), (4, longest)):
        model = decoder(spec, layers)
        reader = CachedEngine(model, window, chunk=chunk)
        logits = [reader.read(ids_BT, positions_BT)]
        for step in range(more):
            new_B = torch.stack([text[length + step] for length, text in zip(lengths, rows, strict=True)])
            logits.append(reader.read(new_B[:, None], positions_BT[:, -1:] + 1 + step))
        for row, (length, text) in enumerate(zip(lengths, rows, strict=True)):
            alone = model(text[None], window=window)[0, length - 1 :]
            assert (torch.stack(logits, 1)[row] - alone).abs().max() < 1e-12


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("spec", ["none", "rotary", "alibi", "t5", "fox", "cope"])
def test_padded_prompts_in_float32(spec: str, device: str) -> None:
    """A long prompt, a padded short one, then single tokens: each row as alone."""
    model, lengths, window = decoder(spec, 2).to(device), (150, 90), 100
    with torch.device(device), torch.no_grad():
        ids_BT = torch.randint(VOCABULARY, (2, 160))
        positions_BT = (torch.arange(150) - torch.tensor([[0], [60]])).clamp(min=-1)
        reader = CachedEngine(model, window)
        logits = [reader.read(ids_BT[:, :150], positions_BT)]
        for at in range(10):
            logits.append(reader.read(ids_BT[:, 150 + at :][:, :1], positions_BT[:, -1:] + 1 + at))
        for row, length in enumerate(lengths):
            alone = model(ids_BT[row, 150 - length :][None], window=window)[0, length - 1 :]
            assert (torch.stack(logits, 1)[row] - alone).abs().max() < 1e-4


@EVERY
@pytest.mark.usefixtures("float64")
def test_without_a_window_everything_is_kept(spec: str) -> None:
    model, ids_BT = decoder(spec, 2), torch.randint(VOCABULARY, (2, 150))
    assert (prompted(CachedEngine(model, chunk=7), ids_BT, 20) - model(ids_BT)[:, 19:]).abs().max() < 1e-12


@pytest.mark.parametrize(("window", "own"), [(3, 8), (8, 3), (None, 3)])
@pytest.mark.usefixtures("float64")
def test_the_smaller_of_two_windows_applies(window: int | None, own: int) -> None:
    model, ids_BT = decoder("alibi", 3, own), torch.randint(VOCABULARY, (1, 40))
    reader = CachedEngine(model, window)
    assert (prompted(reader, ids_BT, 9) - model(ids_BT, window=window)[:, 8:]).abs().max() < 1e-12
    assert reader.cache.windows == (3, 3, 3)


@EVERY
@pytest.mark.parametrize("window", [2, 8, 33])
@pytest.mark.usefixtures("float64")
def test_the_cache_gives_the_losses_of_evaluate(spec: str, window: int) -> None:
    """The loss of every token after the prompt, as in `evaluate --window`."""
    model, ids_BT = decoder(spec, 3), torch.randint(VOCABULARY, (2, 3 * window + 8))
    keep = window + 3
    logits_BkV = prompted(CachedEngine(model, window), ids_BT[:, :-1], ids_BT.shape[1] - keep)
    losses_Bk = -logits_BkV.log_softmax(-1).gather(2, ids_BT[:, -keep:, None])[..., 0]
    assert (losses_Bk - adapt(model).losses(ids_BT, keep, window)).abs().max() < 1e-12


@EVERY
@pytest.mark.parametrize("layers", [2, 4])
@pytest.mark.parametrize("window", [2, 8, 33])
@pytest.mark.usefixtures("float64")
def test_re_encoding_gives_different_logits(spec: str, window: int, layers: int) -> None:
    """Negative control: a context that differs by a window is detected."""
    if not is_built_in(parse(spec)[0]):
        pytest.skip("a plugin scheme may depend on nearby tokens only")
    torch.manual_seed(1)  # with some initial powers, KERPLE ignores everything farther than 33 tokens
    model, ids_BT = decoder(spec, layers), torch.randint(VOCABULARY, (2, 3 * window + 7))
    prompt = 2 * window
    sliding, re_encoded = (
        prompted(reader, ids_BT, prompt) for reader in (CachedEngine(model, window), ReencodeEngine(model, window))
    )
    assert (sliding - re_encoded).abs().max() > 1e-1


@EVERY
@pytest.mark.usefixtures("float64")
def test_re_encoding_reads_the_last_tokens_from_the_beginning(spec: str) -> None:
    model, ids_BT = decoder(spec, 2), torch.randint(VOCABULARY, (2, 30))
    logits = prompted(ReencodeEngine(model, 8), ids_BT, 3)
    for at in range(3, 31):
        assert (logits[:, at - 3] - model(ids_BT[:, max(0, at - 8) : at])[:, -1]).abs().max() < 1e-12


@EVERY
@pytest.mark.usefixtures("float64")
def test_a_prompt_is_cropped_to_its_reach(spec: str) -> None:
    """R(w - 1) + 1 tokens suffice for these logits and for all that follow."""
    model, ids_BT = decoder(spec, 3), torch.randint(VOCABULARY, (1, 400))
    reader = CachedEngine(model, 5)
    expected = model(ids_BT, window=5)
    assert (prompted(reader, ids_BT, 380) - expected[:, 379:]).abs().max() < 1e-12
    assert reader.cache.positions.seen == 3 * 4 + 1 + 20


def test_bytes_are_constant_to_the_byte() -> None:
    model, window = decoder("sandwich", 3), 100
    reader, sizes = CachedEngine(model, window), set()
    reader.read(torch.randint(VOCABULARY, (2, 10)), torch.arange(10))
    for at in range(10, 600):
        reader.read(torch.randint(VOCABULARY, (2, 1)), torch.tensor([at]))
        sizes.add(reader.bytes)
    tokens = capacity(window)
    assert tokens == 99 + 64
    assert sizes == {3 * 2 * 2 * 32 * tokens * 4 + tokens * 8}  # layers, keys and values, rows, width; positions


def test_no_buffer_is_made_after_the_first_token() -> None:
    reader = CachedEngine(decoder("alibi", 2), 6)
    reader.read(torch.zeros(1, 1, dtype=torch.long), torch.tensor([0]))
    buffers = [part.buffer.data_ptr() for layer in reader.cache.layers for part in layer]  # type: ignore[union-attr]
    for at in range(1, 300):
        reader.read(torch.zeros(1, 1, dtype=torch.long), torch.tensor([at]))
    assert buffers == [part.buffer.data_ptr() for layer in reader.cache.layers for part in layer]  # type: ignore[union-attr]


@settings(max_examples=80, deadline=None)
@given(
    window=st.one_of(st.none(), st.integers(1, 90)),
    counts=st.lists(st.one_of(st.integers(1, 3), st.integers(1, 300)), min_size=1, max_size=30),
)
def test_a_buffer_holds_the_end_of_the_stream(window: int | None, counts: list[int]) -> None:
    stream = torch.arange(sum(counts))[None]
    buffer, start = SlidingBuffer(window, 1), 0
    for count in counts:
        first = 0 if window is None else max(0, start - window + 1)
        assert torch.equal(buffer.push(stream[:, start : start + count]), stream[:, first : start + count])
        start += count
        assert buffer.seen == start


def test_a_buffer_is_no_longer_than_max_tokens() -> None:
    part = SlidingBuffer(1000, 1, max_tokens=12)
    part.push(torch.zeros(1, 5))
    assert part.buffer is not None
    assert part.buffer.shape == (1, 12)


@pytest.mark.usefixtures("float64")
def test_rows_can_be_reordered() -> None:
    model, ids_BT = decoder("rotary", 2), torch.randint(VOCABULARY, (3, 20))
    reader, rows_B = CachedEngine(model, 7), torch.tensor([2, 0])
    reader.read(ids_BT[:, :12], torch.arange(12))
    reader.cache.reorder(rows_B)
    assert (prompted_on(reader, ids_BT[rows_B], 12) - model(ids_BT[rows_B], window=7)[:, 12:]).abs().max() < 1e-12


def prompted_on(reader: CachedEngine, ids_BT: Tensor, start: int) -> Tensor:
    steps = range(start, ids_BT.shape[1])
    return torch.stack([reader.read(ids_BT[:, at : at + 1], torch.tensor([at])) for at in steps], 1)
