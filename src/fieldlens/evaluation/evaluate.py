"""Perplexity of the same targets against the number of tokens before them."""

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fieldlens.core.errors import BadInput
from fieldlens.evaluation.protocols import Anchor, draw, eligible
from fieldlens.evaluation.protocols import protocol as named
from fieldlens.evaluation.result import Evaluation, Plan
from fieldlens.evaluation.runner import EvaluationRunner, Watch
from fieldlens.models.adapters.adapt import adapt
from fieldlens.models.adapters.base import ModelAdapter, check_causal, eval_mode, weights_hash
from fieldlens.storage.content_cache import digest
from fieldlens.storage.provenance import provenance


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
    plan = Plan(named(protocol, **options), tuple(lengths), segments, target_seed, window, bos)
    arrays = [document.cpu().numpy() for document in documents]
    text = hashlib.sha256(b"|".join(document.astype(np.int64).tobytes() for document in arrays)).hexdigest()
    with eval_mode(model):
        one = adapt(model)
        weights = weights_hash(model) if isinstance(model, nn.Module) else None
        check_causal(one)
        known = {"name": one.name, "train_length": train_length or one.train_length, "weights": weights}
        return evaluate(one, arrays, plan, about={"model": known, "data": {"text": text}}, batch=batch)


def evaluate(
    adapter: ModelAdapter,
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
    check(adapter, documents, plan)
    if anchors is None:
        anchors = draw_anchors(documents, plan)
    if batch is not None and batch < 1:
        raise BadInput(f"batch is {batch}: at least 1 is needed")
    excerpts = {n: [w for a in anchors for w in plan.protocol.excerpts(a, n, plan.longest)] for n in plan.lengths}
    same = plan.protocol.same_targets
    kept = [target for one in excerpts[plan.longest] for target in one.targets()] if same else anchors
    start = time.perf_counter()
    work = EvaluationRunner(adapter, documents, plan, excerpts, batch, journal, watch)
    losses_LN = work.run()
    dtype = torch.float64 if adapter.dtype == torch.float64 else torch.float32
    losses = dict(zip(plan.lengths, torch.from_numpy(losses_LN).to(dtype), strict=True))
    about = {
        **about,
        **plan.about(),
        "protocol": {**plan.protocol.about(), "same_targets": same},
        **provenance(adapter.device),
        "seconds": time.perf_counter() - start,
    }
    bytes_N = np.array([sizes[d][o] for d, o in kept], np.uint16) if sizes is not None and same else None
    return Evaluation(about, losses, names or kept, bytes_N)


def check(adapter: ModelAdapter, documents: Sequence[np.ndarray], plan: Plan) -> None:
    """Refuse before any computing what cannot be computed."""
    adapter.check_window(plan.window)
    begins = plan.bos is not None
    if adapter.limit is not None and plan.longest + begins > adapter.limit:
        more = " and a token before it" if begins else ""
        raise BadInput(
            f"length {plan.longest}{more} is beyond the {adapter.limit} positions that {adapter.name} has: "
            f"at most {adapter.limit - begins} can be asked for"
        )
    if plan.bos is not None and not 0 <= plan.bos < adapter.vocab_size:
        raise BadInput(f"bos {plan.bos} is outside the vocabulary of {adapter.vocab_size} of {adapter.name}")
    if not documents or not any(len(document) for document in documents):
        raise BadInput("there is no text: every document is empty")
    some = [document for document in documents if len(document)]
    adapter.check_ids(min(int(ids.min()) for ids in some), max(int(ids.max()) for ids in some))


def draw_anchors(documents: Sequence[np.ndarray], plan: Plan) -> list[Anchor]:
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
    model = {key: about["model"][key] for key in ("weights", "configuration", "dtype")}
    text = {key: about[key] for key in ("data", "tokenizer", "align", "drawn") if key in about}
    return digest({"model": model, **text, **plan.about()})[:16]
