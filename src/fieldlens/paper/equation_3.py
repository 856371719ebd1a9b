"""The result behind equation 3: the parts of a trained Sinusoidal model's scores, inside and past L_tr."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fieldlens.core.errors import BadInput
from fieldlens.data.corpus import open_corpus
from fieldlens.data.tokens import tokenize
from fieldlens.models.adapters.decoder import DecoderAdapter
from fieldlens.models.loading import load
from fieldlens.models.origin import find_model
from fieldlens.paper.score_parts import first_layer_scores, summarise
from fieldlens.storage.provenance import provenance
from fieldlens.storage.results import write_result
from fieldlens.storage.sealed import read_sealed
from fieldlens.study.plan import Job

KIND = "fieldlens equation 3"
SEGMENTS = 48
SPAN = 4
"""Segments have this many training lengths, as the paper's 2,048 tokens are 4 · 512."""


def result_file(folder: Path) -> Path:
    return folder / "equation-3.json"


def read_parts(folder: Path, job: Job) -> dict[str, Any] | None:
    """The result of a study's Sinusoidal run; None unless it is there."""
    try:
        content = read_sealed(result_file(folder))
    except BadInput:  # missing or altered
        return None
    return content if content.get("kind") == KIND and content.get("run") == job.name else None


def measure_parts(job: Job, runs: Path, folder: Path) -> None:
    """Split the scores of a trained run on segments spread evenly over the validation split, and write the result."""
    origin = find_model(str(runs / job.name))
    assert origin.trained_on is not None
    recipe, length = job.recipe, SPAN * job.recipe.length
    tokens = tokenize(open_corpus(origin.trained_on[0]), recipe.bpe, None, recipe.max_bytes)
    ids = tokens.split("validation").ids
    starts = np.linspace(0, len(ids) - length, SEGMENTS).astype(int)
    ids_BT = torch.from_numpy(np.stack([ids[start : start + length] for start in starts]).astype(np.int64))
    adapter = load(origin, torch.device("cpu"), torch.float32).adapter
    assert isinstance(adapter, DecoderAdapter)
    decoder = adapter.decoder
    parts, embedding_TD = first_layer_scores(decoder, ids_BT), decoder.scheme.embedding(torch.arange(length))
    assert embedding_TD is not None
    content = {
        "kind": KIND,
        "run": job.name,
        "segments": SEGMENTS,
        "data": tokens.fingerprint,
        "train_length": recipe.length,
        "inside": summarise(parts, slice(recipe.length // 2, recipe.length), embedding_TD).to_json(),
        "past": summarise(parts, slice(length // 2, length), embedding_TD).to_json(),
    }
    write_result(result_file(folder), content | provenance(adapter.device, adapter.kernel()))
