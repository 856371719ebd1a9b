"""A 4-gram model with a copy cache: what context is worth in a text, without any neural network.

The base is an interpolated Witten-Bell 4-gram model of the train split,

    p_n(w | h) = (c(h w) + T(h) p_{n-1}(w | h')) / (c(h) + T(h)),

with c(h) the count of a history, T(h) the number of distinct tokens after it, and p_0 uniform. The copy cache looks for
earlier occurrences of the last m tokens, m ≤ 8, in the context and predicts what followed them, the longest matches
only:

    p(w) = (1 - λ_m) p_4(w) + λ_m copies of w / matches,

with one λ for each m and context length, fitted by EM on documents of the train split that the counts do not include.
Only the cache sees more than three tokens, so the loss by context length shows what the text offers to a model that
copies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fieldlens.core.errors import BadInput

ORDER = 4
LONGEST_MATCH = 8
HELD_OUT = 20
"""One in this many documents of the train split fits the mixture weights instead of the counts."""

FITTED_TARGETS = 4000
_PRIME = np.uint64(1099511628211)


class Counts(NamedTuple):
    """Sorted hashes of n-grams with their counts, and of their histories with total counts and distinct n-grams."""

    ngrams: np.ndarray
    counts: np.ndarray
    histories: np.ndarray
    totals: np.ndarray
    types: np.ndarray


class NGram:
    """An interpolated Witten-Bell model of token ids."""

    def __init__(self, documents: Sequence[np.ndarray], vocab_size: int) -> None:
        if not sum(len(ids) for ids in documents):
            raise BadInput("the train split is empty: the baseline needs text to count n-grams in")
        self.vocab_size = vocab_size
        self.counts = [_count(documents, order) for order in range(1, ORDER + 1)]

    def probabilities(self, histories_NK: np.ndarray, targets_N: np.ndarray) -> np.ndarray:
        """p(target | the last three tokens); histories are (N, 3), -1 where a document begins."""
        p_N = np.full(len(targets_N), 1.0 / self.vocab_size)
        for order, table in enumerate(self.counts, 1):
            history_NK = histories_NK[:, histories_NK.shape[1] - order + 1 :]
            complete_N = (history_NK >= 0).all(1)
            keys_N = _hash(history_NK)
            total_N, types_N = (_look_up(table.histories, values, keys_N) for values in (table.totals, table.types))
            count_N = _look_up(table.ngrams, table.counts, _extend(keys_N, targets_N))
            mixed_N = (count_N + types_N * p_N) / np.maximum(total_N + types_N, 1)
            p_N = np.where(complete_N & (total_N > 0), mixed_N, p_N)
        return p_N


@dataclass(frozen=True)
class CopyBaseline:
    """The n-gram model, and the weights of the copy cache by context length and length of the longest match."""

    ngram: NGram
    weights: dict[int, np.ndarray]

    def losses(self, contexts: Sequence[np.ndarray], targets_N: np.ndarray) -> np.ndarray:
        """The loss of every target at every context length in nats: (L, N). Contexts end before their target."""
        base_N = _base(self.ngram, contexts, targets_N)
        rows = []
        for length, weights in self.weights.items():
            matched_N, copied_N = _matches(contexts, targets_N, length)
            weight_N = weights[matched_N]
            rows.append(-np.log((1 - weight_N) * base_N + weight_N * copied_N))
        return np.stack(rows)


def fit(documents: Sequence[np.ndarray], vocab_size: int, lengths: Sequence[int], seed: int = 0) -> CopyBaseline:
    """Count n-grams in most documents, and fit the mixture weights on the others."""
    held_out = [ids for number, ids in enumerate(documents) if number % HELD_OUT == HELD_OUT - 1]
    counted = [ids for number, ids in enumerate(documents) if number % HELD_OUT != HELD_OUT - 1]
    ngram = NGram(counted or documents, vocab_size)
    places = [(ids, offset) for ids in held_out or documents for offset in range(ORDER, len(ids), 7)]
    chosen = np.random.default_rng(seed).permutation(len(places))[:FITTED_TARGETS]
    contexts = [places[index][0][: places[index][1]] for index in chosen]
    targets_N = np.array([places[index][0][places[index][1]] for index in chosen], np.int64)
    base_N = _base(ngram, contexts, targets_N)
    weights = {length: _mixture_weights(*_matches(contexts, targets_N, length), base_N) for length in sorted(lengths)}
    return CopyBaseline(ngram, weights)


def _base(ngram: NGram, contexts: Sequence[np.ndarray], targets_N: np.ndarray) -> np.ndarray:
    histories_NK = np.array([_last(ids, ORDER - 1) for ids in contexts], np.int64).reshape(len(contexts), ORDER - 1)
    return ngram.probabilities(histories_NK, targets_N)


def _matches(contexts: Sequence[np.ndarray], targets_N: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """The longest match and the share of copies, for each target, within so many tokens."""
    pairs = [match(ids[-length:], int(target)) for ids, target in zip(contexts, targets_N, strict=True)]
    return np.array([matched for matched, _ in pairs], int), np.array([share for _, share in pairs])


def match(context_T: np.ndarray, target: int) -> tuple[int, float]:
    """Length of the longest suffix that occurs earlier, up to 8 tokens, and the share of these that give the target."""
    ids = np.asarray(context_T)
    ends = np.arange(1, len(ids))  # an occurrence ends before `end`, and `ids[end]` followed it
    length = 0
    while length < LONGEST_MATCH:
        nearer = ends[ends > length]
        nearer = nearer[ids[nearer - 1 - length] == ids[len(ids) - 1 - length]] if length < len(ids) - 1 else nearer[:0]
        if not len(nearer):
            break
        ends, length = nearer, length + 1
    return (length, float((ids[ends] == target).mean())) if length else (0, 0.0)


def copyable_only_from(context_T: np.ndarray, target: int, near: int, far: int, least: int = 2) -> bool:
    """Whether a copy of at least `least` tokens gives the target within `far` tokens, and not within `near`."""

    def gives(length: int) -> bool:
        matched, share = match(context_T[-length:], target)
        return matched >= least and share > 0.5

    return gives(far) and not gives(near)


def _mixture_weights(matched_N: np.ndarray, copied_N: np.ndarray, base_N: np.ndarray, rounds: int = 50) -> np.ndarray:
    """One weight for each length of a match, by EM; 0 where there is no match."""
    weights = np.zeros(LONGEST_MATCH + 1)
    for length in range(1, LONGEST_MATCH + 1):
        chosen = matched_N == length
        weight = 0.3
        for _ in range(rounds if chosen.any() else 0):
            copied = weight * copied_N[chosen]
            weight = float((copied / (copied + (1 - weight) * base_N[chosen])).mean())
        weights[length] = min(weight, 0.99) if chosen.any() else weights[length - 1]
    return weights


def _count(documents: Sequence[np.ndarray], order: int) -> Counts:
    pairs = []
    for ids in documents:
        if len(ids) >= order:
            grams = np.lib.stride_tricks.sliding_window_view(np.asarray(ids, np.int64), order)
            history = _hash(grams[:, :-1])
            pairs.append(np.stack([_extend(history, grams[:, -1]), history]))
    keys_2N = np.concatenate(pairs, 1) if pairs else np.zeros((2, 0), np.uint64)
    ngrams, first, counts = np.unique(keys_2N[0], return_index=True, return_counts=True)
    histories, group, types = np.unique(keys_2N[1][first], return_inverse=True, return_counts=True)
    totals = np.bincount(group, weights=counts, minlength=len(histories))
    return Counts(ngrams, counts.astype(float), histories, totals, types.astype(float))


def _hash(ids_NK: np.ndarray) -> np.ndarray:
    keys_N = np.full(len(ids_NK), np.uint64(14695981039346656037))
    for column in ids_NK.T:
        keys_N = _extend(keys_N, column)
    return keys_N


def _extend(keys_N: np.ndarray, ids_N: np.ndarray) -> np.ndarray:
    """Hashes with one more token."""
    return (keys_N ^ (np.asarray(ids_N).astype(np.int64) + 1).astype(np.uint64)) * _PRIME


def _look_up(keys: np.ndarray, values: np.ndarray, wanted_N: np.ndarray) -> np.ndarray:
    """The value of each key; 0 for keys that were not counted."""
    if not len(keys):
        return np.zeros(len(wanted_N))
    at_N = np.minimum(np.searchsorted(keys, wanted_N), len(keys) - 1)
    return np.where(keys[at_N] == wanted_N, values[at_N], 0.0)


def _last(ids: np.ndarray, count: int) -> np.ndarray:
    """The last tokens, -1 where there are fewer."""
    padded = np.full(count, -1, np.int64)
    if len(ids):
        tail = np.asarray(ids[-count:], np.int64)
        padded[-len(tail) :] = tail
    return padded
