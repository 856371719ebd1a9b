"""Evaluation: perplexity of the same targets against the number of tokens before them."""

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fieldlens.effort import SHARE, forward, free_memory, out_of_memory
from fieldlens.errors import BadInput, FieldlensError, NoMemory, Undefined
from fieldlens.protocols import Anchor, Protocol, Window, draw, eligible, protocol
from fieldlens.results import provenance, read_arrays, read_json, write_arrays, write_json
from fieldlens.statistics import bootstrap_mean
from fieldlens.store import digest
from fieldlens.subject import Subject, resting, subject, weights_hash
from fieldlens.verdict import judge

AT_ONCE = 8192
"""Tokens in a batch, at most: more gain nothing on a CPU."""

AT_ONCE_ON_GPU = 1 << 16
FEW = 10
"""With fewer documents than this segments are resampled one by one: a weaker argument, and said so."""
SAVE_EVERY = 15.0
KIND = "fieldlens evaluation"

Watch = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Plan:
    """What is asked: everything but the model and the text."""

    protocol: Protocol
    lengths: tuple[int, ...]
    segments: int = 1000
    target_seed: int = 0
    window: int | None = None
    bos: int | None = None
    """A token that heads every context, and is not counted."""

    def __post_init__(self) -> None:
        lengths = sorted(set(self.lengths))
        if not lengths or lengths[0] < 1:
            raise BadInput(
                f"lengths are {', '.join(map(str, self.lengths)) or 'none'}: whole numbers from 1 are needed"
            )
        object.__setattr__(self, "lengths", tuple(lengths))
        self.protocol.check(lengths)

    @property
    def longest(self) -> int:
        return self.lengths[-1]

    def about(self) -> dict[str, Any]:
        return {
            "protocol": self.protocol.about(),
            "lengths": list(self.lengths),
            "segments": self.segments,
            "target_seed": self.target_seed,
            "window": self.window,
            "bos": self.bos,
        }


@dataclass(frozen=True)
class Evaluation:
    """The loss of every target at every length, and what was asked of which model on which text."""

    about: dict[str, Any]
    losses: dict[int, Tensor]
    """Negative log-likelihoods in nats, in the order of the targets."""
    targets: list[Anchor]
    """(document, offset) of each target; where targets differ by length, of the text's beginning."""
    sizes: np.ndarray | None = field(default=None, repr=False)
    """Bytes of each target."""

    @property
    def documents(self) -> np.ndarray:
        return np.array([target.document for target in self.targets])

    def units(self) -> tuple[np.ndarray, str]:
        """Which targets are resampled together: those of a document, or of a segment where documents are too few."""
        documents_N = self.documents
        if len(set(documents_N.tolist())) >= FEW:
            return documents_N, "documents"
        each = max(1, len(documents_N) // self.about["segments"])
        return np.arange(len(documents_N)) // each, "segments"

    @property
    def table(self) -> dict[int, float]:
        """Perplexity by length."""
        return {length: _exp(float(found.double().mean())) for length, found in self.losses.items()}

    @property
    def by_bytes(self) -> bool:
        """Whether bytes were drawn, not tokens, to compare models with different tokenizers."""
        return self.about.get("align") == "bytes"

    @property
    def bits_per_byte(self) -> dict[int, float] | None:
        """Bits per byte of text by length."""
        if self.sizes is None:
            return None
        if self.by_bytes:
            return {length: float(self.quantities(length).mean()) for length in self.losses}
        total = math.log(2) * float(self.sizes.sum())
        return {length: float(found.double().sum()) / total for length, found in self.losses.items()}

    def quantities(self, length: int) -> np.ndarray:
        """What is averaged and compared: nats of each target; of a byte, its even share of its token's bits."""
        losses_N = self.losses[length].double().numpy()
        return losses_N / self.sizes / math.log(2) if self.by_bytes else losses_N

    def score(self, length: int) -> float:
        """The number that tables show: perplexity, or bits per byte where bytes were drawn."""
        mean = float(self.quantities(length).mean())
        return mean if self.by_bytes else _exp(mean)

    @property
    def quantity(self) -> str:
        """What `score` is."""
        return "bits per byte" if self.by_bytes else "perplexity"

    def rows(self) -> list[dict[str, Any]]:
        """One row per length: what tables show with its 95 % interval, the mean loss, and bits per byte."""
        bits = self.bits_per_byte
        units_N, unit = self.units()
        found = []
        for length, losses in self.losses.items():
            interval = bootstrap_mean(self.quantities(length), units_N)
            low, high = interval if self.by_bytes else map(_exp, interval)
            row: dict[str, Any] = {
                "length": length,
                self.quantity.replace(" ", "_"): _finite(self.score(length)),
                "low": _finite(low),
                "high": _finite(high),
                "resampled": unit,
                "nll": float(losses.double().mean()),
            }
            if bits:
                row.setdefault("bits_per_byte", bits[length])
            found.append(row)
        return found

    @property
    def train_length(self) -> int | None:
        return self.about["model"]["train_length"]

    @property
    def verdict(self) -> dict[str, Any]:
        """What becomes of the model past its training length, with the evidence."""
        if not self.about["protocol"].get("same_targets", True):
            return {"verdict": None, "reason": "this protocol predicts other targets at each length"}
        if self.by_bytes:
            return {"verdict": None, "reason": "bytes were drawn: a verdict needs --align tokens"}
        losses = {length: found.double().numpy() for length, found in self.losses.items()}
        return judge(losses, *self.units(), self.train_length)

    def plot(self) -> Any:
        """A figure of perplexity against length."""
        from fieldlens.draw import perplexity_lines

        return perplexity_lines([self.line()], self.quantity)

    def line(self) -> Any:
        """The evaluation as a line of a figure."""
        from fieldlens.draw import Line

        model, rows = self.about["model"], self.rows()
        keys = ("length", self.quantity.replace(" ", "_"), "low", "high")
        lengths, middle, low, high = ([row[key] for row in rows] for key in keys)
        return Line(model["name"], model.get("scheme"), lengths, middle, low, high, self.train_length)

    def to_json(self) -> dict[str, Any]:
        """Everything but the losses of single targets."""
        if not self.losses:
            return dict(self.about)
        documents = len(set(self.documents.tolist()))
        counts = {"targets": len(self.targets), "documents": documents}
        return {"kind": KIND, **self.about, **counts, "results": self.rows(), "verdict": self.verdict}

    def save(self, path: Path) -> None:
        """Write a JSON file, and the losses beside it."""
        arrays = {
            "losses": torch.stack(list(self.losses.values())).numpy(),
            "targets": np.array(self.targets, np.int32),
            **({"sizes": self.sizes} if self.sizes is not None else {}),
        }
        write_arrays(losses_file(path), arrays)
        write_json(path, self.to_json())


def losses_file(path: Path) -> Path:
    return path.with_suffix(".npz")


def read_evaluation(path: Path) -> Evaluation:
    """An evaluation that was saved."""
    about = read_json(path)
    if about.get("kind") != KIND:
        raise BadInput(f"{path} is not the result of an evaluation")
    try:
        _check_about(about)
        if about.get("state") == "diverged":
            return Evaluation(about, {}, [])
        arrays = read_arrays(losses_file(path))
        losses = dict(zip(about["lengths"], torch.from_numpy(arrays["losses"]), strict=True))
        targets = [Anchor(*row) for row in arrays["targets"].tolist()]
        if arrays["losses"].shape != (len(about["lengths"]), about["targets"]) or len(targets) != about["targets"]:
            raise ValueError(
                f"{about['targets']} targets are announced, losses have the shape {arrays['losses'].shape}"
            )
        if not np.isfinite(arrays["losses"]).all():
            raise ValueError("some losses are not finite")
        for key in ("results", "verdict", "targets", "documents"):
            del about[key]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path} is not a whole result of an evaluation ({type(error).__name__}: {error})") from None
    return Evaluation(about, losses, targets, arrays.get("sizes"))


def _check_about(about: dict[str, Any]) -> None:
    """What every reader relies on; raises what is wrong."""
    model = about["model"]
    if not isinstance(model["name"], str):
        raise TypeError("a name that is no text")
    int(model.get("recipe", {}).get("seed", 0))
    if about.get("state") != "diverged":
        if not all(isinstance(length, int) for length in about["lengths"]):
            raise TypeError("a length that is no number")
        _ = about["protocol"]["name"], about["segments"], about["targets"], model["train_length"]


def perplexity(
    model: Any,
    tokens: Tensor | Sequence[Tensor],
    lengths: Sequence[int],
    segments: int = 1000,
    protocol: str = "last-token",
    *,
    window: int | None = None,
    target_seed: int = 0,
    train_length: int | None = None,
    bos: int | None = None,
    batch: int | None = None,
    **options: int,
) -> Evaluation:
    """Perplexity against context length of a Decoder, a transformers model, or a function from ids to logits.

    `tokens` is one document, a 1-D tensor of ids, or a list of them. Options are the protocol's: k, stride.
    """
    documents = [tokens] if isinstance(tokens, Tensor) else list(tokens)
    for document in documents:
        if not isinstance(document, Tensor) or document.ndim != 1 or document.is_floating_point():
            raise BadInput("tokens are a 1-D tensor of whole numbers, or a list of them, one for each document")
    plan = Plan(_named(protocol, options), tuple(lengths), segments, target_seed, window, bos)
    arrays = [document.cpu().numpy() for document in documents]
    text = hashlib.sha256(b"|".join(document.astype(np.int64).tobytes() for document in arrays)).hexdigest()
    with resting(model):
        one = subject(model)
        weights = weights_hash(model) if isinstance(model, nn.Module) else None
        named = {"name": one.name, "train_length": train_length or one.train_length, "weights": weights}
        return evaluate(one, arrays, plan, about={"model": named, "data": {"text": text}}, batch=batch)


def _named(name: str, options: dict[str, int]) -> Protocol:
    return protocol(name, **options)


def evaluate(
    subject: Subject,
    documents: Sequence[np.ndarray],
    plan: Plan,
    *,
    about: dict[str, Any],
    anchors: list[Anchor] | None = None,
    sizes: Sequence[np.ndarray] | None = None,
    names: list[Anchor] | None = None,
    batch: int | None = None,
    journal: Path | None = None,
    watch: Watch = lambda event: None,
) -> Evaluation:
    """The losses that a plan asks for. A journal keeps what is done, so that an interrupted evaluation goes on.

    Anchors are drawn unless given. `names` are what the result calls the targets, if not by their tokens.
    """
    check(subject, documents, plan)
    if anchors is None:
        anchors = anchors_of(documents, plan)
    if batch is not None and batch < 1:
        raise BadInput(f"batch is {batch}: at least 1 is needed")
    windows = {n: [w for a in anchors for w in plan.protocol.windows(a, n, plan.longest)] for n in plan.lengths}
    same = plan.protocol.same_targets
    assert not same or len({_places(some).tobytes() for some in windows.values()}) == 1
    kept = [target for window in windows[plan.longest] for target in window.targets()] if same else anchors
    start = time.perf_counter()
    work = _Work(subject, documents, plan, windows, batch, journal, watch)
    losses_LN = work.run()
    dtype = torch.float64 if subject.dtype == torch.float64 else torch.float32
    losses = dict(zip(plan.lengths, torch.from_numpy(losses_LN).to(dtype), strict=True))
    about = {
        **about,
        **plan.about(),
        "protocol": {**plan.protocol.about(), "same_targets": same},
        **provenance(subject.device),
        "seconds": time.perf_counter() - start,
    }
    bytes_N = np.array([sizes[d][o] for d, o in kept], np.uint16) if sizes is not None and same else None
    return Evaluation(about, losses, names or kept, bytes_N)


def check(subject: Subject, documents: Sequence[np.ndarray], plan: Plan) -> None:
    """Refuse before any computing what cannot be computed."""
    subject.check_window(plan.window)
    begins = plan.bos is not None
    if subject.limit is not None and plan.longest + begins > subject.limit:
        more = " and a token before it" if begins else ""
        raise BadInput(
            f"length {plan.longest}{more} is beyond the {subject.limit} positions that {subject.name} has learned: "
            f"at most {subject.limit - begins} can be asked for"
        )
    if plan.bos is not None and not 0 <= plan.bos < subject.vocabulary:
        raise BadInput(f"bos {plan.bos} is outside the vocabulary of {subject.vocabulary} of {subject.name}")
    if not documents or not any(len(document) for document in documents):
        raise BadInput("there is no text: every document is empty")
    largest = max(int(document.max()) for document in documents if len(document))
    smallest = min(int(document.min()) for document in documents if len(document))
    if smallest < 0 or largest >= subject.vocabulary:
        wrong = smallest if smallest < 0 else largest
        raise BadInput(f"token id {wrong} is outside the vocabulary of {subject.vocabulary} of {subject.name}")


def anchors_of(documents: Sequence[np.ndarray], plan: Plan) -> list[Anchor]:
    """The anchors of a plan: tokens deep enough in their documents, drawn by the target seed."""
    lengths = [len(document) for document in documents]
    spans = eligible(lengths, plan.protocol, plan.longest)
    if not any(span.anchors for span in spans):
        raise BadInput(
            f"length {plan.longest} is too long for this text: its longest document has {max(lengths)} tokens, "
            f"and {sum(plan.protocol.room(plan.longest)) + 1} are needed"
        )
    return draw(spans, plan.segments, plan.target_seed)


def address(about: dict[str, Any], plan: Plan) -> str:
    """Names an evaluation by all that its numbers depend on."""
    model = {key: about["model"][key] for key in ("weights", "dtype")}
    text = {key: about[key] for key in ("data", "tokenizer", "align")}
    return digest({"model": model, **text, **plan.about()})[:16]


class _Work:
    """The windows of a plan, batch by batch, the longest first."""

    def __init__(
        self,
        subject: Subject,
        documents: Sequence[np.ndarray],
        plan: Plan,
        windows: dict[int, list[Window]],
        batch: int | None,
        journal: Path | None,
        watch: Watch,
    ) -> None:
        self.subject, self.documents, self.plan, self.windows = subject, documents, plan, windows
        self.most, self.journal, self.watch = batch, journal, watch
        self.room: int | None = None
        """Tokens that a batch may have, once memory ran out."""
        self.begun = False
        targets = sum(window.scored for window in windows[plan.longest])
        self.losses_LN = np.full((len(plan.lengths), targets), np.nan)
        self.done, self.saved = 0.0, time.monotonic()
        self.total = sum(self._operations(window) for some in windows.values() for window in some)

    def run(self) -> np.ndarray:
        self._restore()
        try:
            for row in reversed(range(len(self.plan.lengths))):
                self._length(row)
        finally:
            self._save()
        if self.journal is not None:
            self.journal.unlink(missing_ok=True)
        return self.losses_LN

    def _length(self, row: int) -> None:
        todo, place = [], 0
        for window in self.windows[self.plan.lengths[row]]:
            if np.isnan(self.losses_LN[row, place]):
                todo.append((window, place))
            else:
                self.done += self._operations(window)
            place += window.scored
        for (tokens, scored), some in groupby(todo, key=lambda pair: (pair[0].stop - pair[0].start, pair[0].scored)):
            group = list(some)
            while group:
                taken = self._batch(tokens, scored, first=not self.begun)
                found = self._losses([window for window, _ in group[:taken]], scored)
                for (_, place), losses in zip(group[: len(found)], found, strict=True):
                    self.losses_LN[row, place : place + scored] = losses
                group = group[len(found) :]

    def _batch(self, tokens: int, scored: int, first: bool) -> int:
        """How many windows at once; the very first goes alone, to see what it takes."""
        if first:
            return 1
        usual = AT_ONCE if self.subject.device.type == "cpu" else AT_ONCE_ON_GPU
        needed = self.subject.needed(tokens, scored, self.plan.window)
        each = forward(self.subject, needed, scored, self.plan.window).bytes
        bounds = [int(SHARE * free_memory(self.subject.device) / each), self.most or usual // needed]
        if self.room is not None:
            bounds.append(self.room // needed)
        return max(1, min(bounds))

    def _losses(self, windows: list[Window], scored: int) -> np.ndarray:
        """The losses of as many of these windows as memory allows: (n, scored)."""
        while True:
            start = time.perf_counter()
            found = self._attempt(windows, scored)
            if found is not None:
                break
            windows = self._half(windows, scored)
        if not np.isfinite(found).all():
            raise Undefined(
                f"{self.subject.name} gives a loss that is not finite, at length {self._length_of(windows)}"
            )
        self.done += sum(self._operations(window) for window in windows)
        if not self.begun:
            self.begun = True
            self._estimate(windows[0], scored, time.perf_counter() - start)
        self.watch({"done": self.done, "total": self.total, "what": f"length {self._length_of(windows)}"})
        if time.monotonic() - self.saved > SAVE_EVERY:
            self._save()
        return found

    def _attempt(self, windows: list[Window], scored: int) -> np.ndarray | None:
        """The losses, or None if memory ran out; by then everything of the attempt is gone."""
        ids_BT = torch.from_numpy(np.stack([self._ids(window) for window in windows]))
        try:
            return self.subject.losses(ids_BT, scored, self.plan.window).numpy()
        except (RuntimeError, MemoryError, IndexError, ValueError) as error:
            if out_of_memory(error):
                return None
            if isinstance(error, FieldlensError) or self.begun:
                raise
            said = " ".join(str(error).split())[:200]
            trained = f"; its configuration says {self.subject.train_length}" if self.subject.train_length else ""
            raise BadInput(f"{self.subject.name} cannot take {len(ids_BT[0]) - 1} tokens{trained} ({said})") from error

    def _half(self, windows: list[Window], scored: int) -> list[Window]:
        if len(windows) == 1:
            raise NoMemory(
                f"not enough memory for one text of {self._length_of(windows)} tokens: give shorter --lengths"
            )
        kept = windows[: len(windows) // 2]
        self.room = len(kept) * self.subject.needed(self._length_of(kept), scored, self.plan.window)
        self.watch({"warning": f"not enough memory: going on with batches of {len(kept)}"})
        return kept

    def _ids(self, window: Window) -> np.ndarray:
        ids = self.documents[window.document][window.start : window.stop + 1].astype(np.int64)
        return ids if self.plan.bos is None else np.concatenate([[self.plan.bos], ids])

    def _length_of(self, windows: list[Window]) -> int:
        return windows[0].stop - windows[0].start

    def _operations(self, window: Window) -> float:
        needed = self.subject.needed(window.stop - window.start, window.scored, self.plan.window)
        return forward(self.subject, needed, window.scored, self.plan.window).operations

    def _estimate(self, window: Window, scored: int, seconds: float) -> None:
        needed = self.subject.needed(window.stop - window.start, scored, self.plan.window)
        each = forward(self.subject, needed, scored, self.plan.window)
        memory = each.bytes * self._batch(window.stop - window.start, scored, first=False)
        self.watch({"estimate": seconds * (self.total - self.done) / each.operations, "memory": memory})

    def _restore(self) -> None:
        if self.journal is not None and self.journal.exists():
            found = read_arrays(self.journal)["losses"]
            if found.shape == self.losses_LN.shape:
                self.losses_LN[:] = found

    def _save(self) -> None:
        self.saved = time.monotonic()
        if self.journal is not None and self.done:
            write_arrays(self.journal, {"losses": self.losses_LN})


def _places(windows: list[Window]) -> np.ndarray:
    """Document and offset of every target, as numbers."""
    counts = [window.scored for window in windows]
    last = np.cumsum(counts)
    within_N = np.arange(last[-1]) - np.repeat(last - counts, counts)
    firsts = [window.stop - window.scored + 1 for window in windows]
    return np.stack([np.repeat([window.document for window in windows], counts), np.repeat(firsts, counts) + within_N])


def _exp(mean: float) -> float:
    """The perplexity of a mean loss; infinite where no number is large enough."""
    return math.exp(mean) if mean < 700 else math.inf


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def documents_of(ids: np.ndarray, starts: np.ndarray) -> Iterator[np.ndarray]:
    """The documents of a split, each without its end-of-text token."""
    for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True):
        yield ids[start : stop - 1]
