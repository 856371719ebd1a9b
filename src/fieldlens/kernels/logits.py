"""The whole matrix of attention logits of a text, for plots: what the kernels never materialise."""

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.kernels.attention import bias_table, scale_queries, scheme_terms
from fieldlens.kernels.content import KeyColumns, key_bias, query_features
from fieldlens.kernels.general import ScoreTerms, score_block
from fieldlens.kernels.layout import Scattered
from fieldlens.kernels.rotary import apply_rotary
from fieldlens.schemes.base import Scheme


def whole_logits(q_BHTK: Tensor, k_BHTK: Tensor, scheme: Scheme, x_BTD: Tensor | None) -> Tensor:
    """The logits of the softmax for a text from position 0 on, -inf for keys that are not seen: (B, H, T, T).

    Queries and keys are not yet rotated; `x_BTD` is the normalised input of the layer.
    """
    positions = torch.arange(q_BHTK.shape[2], device=q_BHTK.device)
    layout = Scattered(positions[None], positions[None], scheme.window)
    table_HN = bias_table(scheme, layout.reach, q_BHTK)
    terms = scheme_terms(scheme, positions, positions, positions, q_BHTK, layout, table_HN)
    q, k = scale_queries(apply_rotary(q_BHTK, terms.q_rotation), terms), apply_rotary(k_BHTK, terms.k_rotation)
    score_terms, bias_BHS, sums_BHS = ScoreTerms(table_HN), None, None
    if scheme.takes_input:
        if x_BTD is None:
            raise BadInput(f"scheme '{scheme.name}' needs the input of the layer: pass it as x_BTD")
        columns = KeyColumns(scheme, x_BTD)
        bias_BHS, sums_BHS = key_bias(columns, None)
        features = query_features(scheme, x_BTD), columns.parts.get("key_features")
        score_terms = ScoreTerms(table_HN, None, None, *features)
    block, _ = score_block(q, k, layout, score_terms, slice(0, len(positions)), slice(0, len(positions)))
    scores = block.scores_BHts
    for added in (
        None if bias_BHS is None else bias_BHS[:, :, None],
        None if sums_BHS is None else sums_BHS[..., None],
    ):
        scores = scores if added is None else scores + added.to(scores.dtype)
    logits = scheme.attention_logits(block._replace(scores_BHts=scores))
    return logits.masked_fill(~block.visible_Bts[:, None], -torch.inf)
