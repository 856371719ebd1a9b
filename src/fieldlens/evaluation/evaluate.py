"""Perplexity of a fixed set of targets against the number of preceding tokens."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fieldlens.core.errors import BadInput
from fieldlens.core.events import Watch, ignore
from fieldlens.evaluation.equivalence import MARGIN, check_margin
from fieldlens.evaluation.protocols import Anchor, draw, eligible
from fieldlens.evaluation.protocols import protocol as find_protocol
from fieldlens.evaluation.result import Evaluation, Plan
from fieldlens.evaluation.runner import EvaluationRunner
from fieldlens.models.adapters.adapt import adapt
from fieldlens.models.adapters.base import ModelAdapter, check_causal, eval_mode, weights_hash
from fieldlens.models.token_ids import own_bos, token_ids
from fieldlens.storage.provenance import provenance
from fieldlens.storage.records import EvaluationRecord, ModelRecord
from fieldlens.storage.sealed import digest


def perplexity(
    model: Any,
    tokens: Any,
    lengths: Sequence[int],
    segments: int = 1000,
    protocol: str = "last-token",
    *,
    window: int | None = None,
    target_seed: int = 0,
    train_length: int | None = None,
    margin: float = MARGIN,
    bos: int | None = None,
    batch: int | None = None,
    **options: int,
) -> Evaluation:
    """Perplexity of a model against context length; the same numbers as `fieldlens evaluate` on the same tokens.

    Parameters
    ----------
    model
        What `load_model` returns, a Decoder, a transformers model, or a function from token ids to logits.
    tokens
        Token ids of a document: a 1-D tensor or array, a list of integers; or several documents: a list of these, the
        output of a transformers tokenizer. For a model from `load_model` also text, or paths of text files.
    lengths
        Context lengths: numbers of input tokens. The model's training length is added if it is below the longest, and
        a quarter of it if all others are longer: the verdict needs them.
    segments
        Number of segments to draw.
    protocol
        last-token, last-k, non-overlapping, sliding or by-position.
    window
        Limit attention in every layer to this many keys.
    target_seed
        Seed for drawing the targets.
    train_length
        Training length of the model; default: the one in its configuration.
    margin
        Relative change of perplexity that counts as none: a verdict "holds" needs a 95 % interval within it.
    bos
        Token id put before every context; not counted in its length. Default: for text, the one that the model's
        tokenizer adds; for token ids none.
    batch
        Maximum batch size; default: as large as memory allows.
    **options
        Options of the protocol, as in `fieldlens evaluate`: k for last-k, stride for sliding.
    """
    check_margin(margin)
    chosen = find_protocol(protocol, **options)
    with eval_mode(model):
        adapter = adapt(model)
        arrays = [document.cpu().numpy() for document in _documents(tokens, adapter)]
        bos = own_bos(tokens, adapter) if bos is None else bos
    text = hashlib.sha256(b"|".join(document.astype(np.int64).tobytes() for document in arrays)).hexdigest()
    with eval_mode(model):
        weights = weights_hash(model) if isinstance(model, nn.Module) else None
        check_causal(adapter)
        trained = train_length or adapter.train_length
        plan = with_train_length(
            lambda chosen_lengths: Plan(chosen, tuple(chosen_lengths), segments, target_seed, window, bos),
            lengths,
            trained,
            with_quarter=True,
        )
        record: ModelRecord = {"name": adapter.name, "train_length": trained, "weights": weights}
        about: EvaluationRecord = {"model": record, "data": {"text": text}, "margin": margin}
        return evaluate(adapter, arrays, plan, about=about, batch=batch)


def _documents(tokens: Any, adapter: ModelAdapter) -> list[Tensor]:
    """The documents of `perplexity`, each as a 1-D tensor of token ids."""
    several = isinstance(tokens, list | tuple) and bool(tokens) and not isinstance(tokens[0], int | np.integer)
    documents: list[Tensor] = []
    for entry in tokens if several else [tokens]:
        try:
            ids = torch.as_tensor(token_ids(entry, adapter))
        except (ValueError, TypeError, RuntimeError):
            ids = torch.empty(0)
        documents += list(ids) if ids.ndim == 2 and isinstance(entry, Mapping) else [ids]
    if not documents or any(document.ndim != 1 or document.is_floating_point() for document in documents):
        raise BadInput("tokens must be a 1-D integer tensor or list, a list of them, one per document, or text")
    return documents


def with_train_length(
    make_plan: Callable[[Sequence[int]], Plan], lengths: Sequence[int], train_length: int | None, with_quarter: bool
) -> Plan:
    """A plan with the given lengths, and with those that the verdict needs as far as the protocol allows them.

    These are the training length, and a quarter of it if no length up to that was given.
    """
    plan = make_plan(lengths)
    if train_length is None or train_length > plan.longest:
        return plan
    extra = [train_length] if train_length not in plan.lengths else []
    shorter = any(4 * length <= train_length for length in plan.lengths)
    if with_quarter and train_length >= 4 and plan.protocol.same_targets and not shorter:
        extra.append(train_length // 4)
    for more in (extra, extra[:1]):
        with suppress(BadInput):  # the protocol's options may not allow these lengths
            return make_plan([*plan.lengths, *more])
    return plan


def evaluate(
    adapter: ModelAdapter,
    documents: Sequence[np.ndarray],
    plan: Plan,
    *,
    about: EvaluationRecord,
    anchors: list[Anchor] | None = None,
    sizes: Sequence[np.ndarray] | None = None,
    names: list[Anchor] | None = None,
    batch: int | None = None,
    journal: Path | None = None,
    watch: Watch = ignore,
) -> Evaluation:
    """Compute the losses of a plan.

    Parameters
    ----------
    about
        Record of model and text, to be stored in the result.
    anchors
        Anchors of the segments; drawn from the documents if None.
    sizes
        Number of bytes of every token, by document.
    names
        Identifiers of the targets in the result, if not their positions in tokens.
    batch
        Maximum batch size; default: as large as memory allows.
    journal
        File for partial results, from which an interrupted evaluation resumes.
    watch
        Called with progress events.
    """
    check(adapter, documents, plan)
    if anchors is None:
        anchors = draw_anchors(documents, plan)
    if batch is not None and batch < 1:
        raise BadInput(f"batch must be at least 1, got {batch}")
    excerpts = {
        length: [excerpt for anchor in anchors for excerpt in plan.protocol.excerpts(anchor, length, plan.longest)]
        for length in plan.lengths
    }
    same = plan.protocol.same_targets
    targets = [target for excerpt in excerpts[plan.longest] for target in excerpt.targets()] if same else anchors
    start = time.perf_counter()
    runner = EvaluationRunner(adapter, documents, plan, excerpts=excerpts, batch=batch, journal=journal, watch=watch)
    losses_LN = runner.run()
    dtype = torch.float64 if adapter.dtype == torch.float64 else torch.float32
    losses = dict(zip(plan.lengths, torch.from_numpy(losses_LN).to(dtype), strict=True))
    about = {
        **about,
        **plan.about(),
        "protocol": {**plan.protocol.about(), "same_targets": same},
        **provenance(adapter.device, adapter.kernel()),
        "seconds": time.perf_counter() - start,
    }
    bytes_N = (
        np.array([sizes[document][offset] for document, offset in targets], np.uint16)
        if sizes is not None and same
        else None
    )
    return Evaluation(about, losses, names or targets, bytes_N)


def check(adapter: ModelAdapter, documents: Sequence[np.ndarray], plan: Plan) -> None:
    """Raise BadInput if the model cannot evaluate this plan on these documents."""
    adapter.check_window(plan.window)
    has_bos = plan.bos is not None
    if adapter.limit is not None and plan.longest + has_bos > adapter.limit:
        bos = " plus BOS" if has_bos else ""
        raise BadInput(
            f"length {plan.longest}{bos} exceeds the {adapter.limit} positions of {adapter.name}: "
            f"use at most {adapter.limit - has_bos}"
        )
    if plan.bos is not None and not 0 <= plan.bos < adapter.vocab_size:
        raise BadInput(f"bos {plan.bos} is outside the vocabulary of {adapter.name}, 0 to {adapter.vocab_size - 1}")
    if not documents or not any(len(document) for document in documents):
        raise BadInput("no text: all documents are empty")
    filled = [document for document in documents if len(document)]
    adapter.check_ids(min(int(ids.min()) for ids in filled), max(int(ids.max()) for ids in filled))


def draw_anchors(documents: Sequence[np.ndarray], plan: Plan) -> list[Anchor]:
    """Draw the anchors of a plan from all eligible tokens, by its target seed."""
    lengths = [len(document) for document in documents]
    spans = eligible(lengths, plan.protocol, plan.longest)
    if not any(span.anchors for span in spans):
        raise BadInput(
            f"length {plan.longest} is too long for this text: its longest document has {max(lengths)} tokens, "
            f"and {sum(plan.protocol.room(plan.longest)) + 1} are needed"
        )
    return draw(spans, plan.segments, plan.target_seed)


def address(about: EvaluationRecord, plan: Plan) -> str:
    """Hash of everything that the numbers of an evaluation depend on."""
    model = {key: about["model"][key] for key in ("weights", "configuration", "dtype")}
    model |= {"method": about["model"]["method"]} if "method" in about["model"] else {}
    text = {key: about[key] for key in ("data", "tokenizer", "align", "drawn") if key in about}
    return digest({"model": model, **text, **plan.about()})[:16]
