"""The copy baseline of a corpus: perplexity by context length of a 4-gram model with a copy cache."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fieldlens.core.errors import BadInput, unknown
from fieldlens.data.corpus import SPLITS
from fieldlens.data.text import split_documents
from fieldlens.data.tokens import TokenizedCorpus
from fieldlens.evaluation.copy_model import fit, match
from fieldlens.evaluation.protocols import draw, eligible, protocol


def evaluate_baseline(
    tokens: TokenizedCorpus, lengths: Sequence[int], targets: int, split: str, seed: int = 0
) -> dict[str, Any]:
    """Fit the baseline on the train split and evaluate it on the same targets at every context length."""
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    if not lengths or min(lengths) < 2:
        raise BadInput("lengths must be integers of at least 2")
    longest = max(lengths)
    counted, evaluated = (
        list(split_documents(part.ids, part.starts)) for part in (tokens.split("train"), tokens.split(split))
    )
    spans = eligible([len(ids) for ids in evaluated], protocol("last-token"), longest)
    if not any(span.anchors for span in spans):
        raise BadInput(f"no document of the {split} split has more than {longest} tokens: give shorter --lengths")
    anchors = draw(spans, min(targets, sum(span.anchors for span in spans)), seed)
    contexts = [evaluated[anchor.document][anchor.offset - longest : anchor.offset] for anchor in anchors]
    targets_N = np.array([evaluated[anchor.document][anchor.offset] for anchor in anchors], np.int64)
    baseline = fit(counted, tokens.vocab_size, lengths, seed)
    perplexities = np.exp(baseline.losses(contexts, targets_N).mean(1)).tolist()
    rows = []
    for number, length in enumerate(baseline.weights):
        pairs = [match(ids[-length:], int(target)) for ids, target in zip(contexts, targets_N, strict=True)]
        copyable = sum(matched >= 2 and share > 0.5 for matched, share in pairs) / len(pairs)
        change = perplexities[number] / perplexities[number - 1] - 1 if number else None
        loss = math.log(perplexities[number])
        rows.append(
            {"length": length, "perplexity": perplexities[number], "nll": loss, "change": change, "copyable": copyable}
        )
    documents = len({anchor.document for anchor in anchors})
    return {"split": split, "targets": len(anchors), "documents": documents, "seed": seed, "results": rows}
