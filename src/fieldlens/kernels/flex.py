"""Attention by FlexAttention: one compiled kernel that computes biases and masks in float32 while it runs.

Queries and keys are padded to whole blocks, with the last query at the last key, so that one compilation serves all
lengths with the same number of blocks, and all windows; on CUDA also all batches of two or more. Biases enter without
gradients: those of q, k and v come from the compiled backward pass, those of learned biases from `LearnedBias`, in a
fixed order, hence deterministic.
"""

import inspect
from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from fieldlens.kernels.key_terms import block_shift
from fieldlens.kernels.layout import BlockLayout, Contiguous
from fieldlens.kernels.rotary import accumulation_dtype
from fieldlens.schemes.base import BiasForm, Scheme

BLOCK = 128
"""Queries and keys per block of the mask; inputs are padded to a multiple of it."""
MIN_HEAD_WIDTH = 16
"""The compiled kernel multiplies matrices of at least this width."""
COMPILED = True
"""Whether the kernel is compiled. The uncompiled one materialises all scores; tests use it in float64."""
DYNAMIC_BATCH = ("cuda",)
"""Devices on which one compilation serves all batches of two or more; the compiler for CPUs cannot."""
MAX_COMPILATIONS = 128
"""Shapes that are compiled before PyTorch gives up; its default of 8 is less than a study needs."""
FOLD_SCORES = 2**26
"""Scores that `LearnedBias` materialises at a time."""


class KeyColumns(NamedTuple):
    """Biases of keys relative to those of the queries' own tokens, each number as a sum of two: (B, H, T or S).

    Biases are float64 and may be sums over the whole text. The difference of two such numbers in float32 would lose
    what matters; the difference of their leading parts is nearly exact, and the rest is added.
    """

    q_high: Tensor
    q_low: Tensor
    k_high: Tensor
    k_low: Tensor


def bias_form(scheme: Scheme, has_bias: bool, like: Tensor) -> BiasForm | None:
    """The closed form of a scheme's bias, with coefficients as the kernel reads them; None if it has only a table."""
    if not has_bias:
        return BiasForm(_no_bias, ())
    form = scheme.bias_form() if _defines(scheme, "bias_form", "bias") else None
    if form is None:
        return None
    dtype = accumulation_dtype(like)
    return BiasForm(form.curve, tuple(x_H.detach().to(like.device, dtype) for x_H in form.coefficients_H))


def _defines(scheme: Scheme, method: str, other: str) -> bool:
    """Whether no subclass overrides `other` without `method`, which would then describe another bias."""
    definers = [next(cls for cls in type(scheme).__mro__ if name in vars(cls)) for name in (method, other)]
    return issubclass(*definers)


def _no_bias(distance: Tensor) -> Tensor:
    raise AssertionError("not called: the kernel adds nothing")


def attend_flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias_HX: Tensor,
    layout: Contiguous,
    form: BiasForm | None,
    key_bias: Tensor | None,
    sink: Tensor | None,
) -> Tensor:
    """softmax(q·kᵀ/√K + bias)·v; the arguments are those of `BlockAttention`, and `form` replaces the bias table."""
    dtype, t, s = accumulation_dtype(q), q.shape[2], k.shape[2]
    end = -s % BLOCK
    front = -(t + end) % BLOCK
    shift = None if key_bias is None else key_bias.detach()[:, :, s - t :]
    columns = None
    if key_bias is not None and shift is not None:
        k_parts, q_parts = _two_parts(key_bias.detach(), dtype, 0, end), _two_parts(shift, dtype, front, end)
        columns = KeyColumns(*q_parts, *k_parts)
    table_HN = None
    if form is None:  # the bias by distance, from the line of the layout, which runs from the farthest key
        table_HN = bias_HX.detach()[:, : layout.farthest + 1].flip(1).expand(q.shape[1], -1)
        table_HN = F.pad(table_HN, (0, s + end - table_HN.shape[1]))
    learned = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (bias_HX, key_bias))
    mask = block_mask((front + t + end) // BLOCK, (s + end) // BLOCK, layout.window, q.device)
    padded = F.pad(q, (0, 0, front, end)), F.pad(k, (0, 0, 0, end)), F.pad(v, (0, 0, 0, end))
    with torch.autocast(q.device.type, enabled=False):
        out, lse = _call(*padded, mask, form, table_HN, columns, learned or sink is not None)
        out = out[:, :, front : front + t]
        if lse is not None:
            lse = lse[:, :, front : front + t]
            if learned:
                out, lse = LearnedBias.apply(out, lse, q, k, v, bias_HX, layout, key_bias, shift)
            if sink is not None:
                relative = sink if shift is None else sink - shift
                out = out * torch.sigmoid(lse - relative.to(dtype))[..., None]
    return out.to(q.dtype)


def _two_parts(x_BHS: Tensor, dtype: torch.dtype, front: int, end: int) -> tuple[Tensor, Tensor]:
    """A float64 tensor as the sum of two of another dtype, padded with zeros."""
    high = x_BHS.to(dtype)
    low = (x_BHS - high).to(dtype)
    return F.pad(high, (front, end)), F.pad(low, (front, end))


def _run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: BlockMask,
    form: BiasForm | None,
    table_HN: Tensor | None,
    columns: KeyColumns | None,
    normaliser: bool,
) -> tuple[Tensor, Tensor | None]:
    """The output and, if asked for, log Σ exp of the scores."""
    offset = k.shape[2] - q.shape[2]

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        distance = (i + offset - j).clamp(min=0)
        if table_HN is not None:
            score = score + table_HN[h, distance]
        elif form is not None and form.curve is not _no_bias:
            coefficients = [x_H[h] for x_H in form.coefficients_H]
            score = score + form.curve(distance.to(coefficients[0].dtype), *coefficients)
        if columns is not None:
            high = columns.k_high[b, h, j] - columns.q_high[b, h, i]
            score = score + (high + (columns.k_low[b, h, j] - columns.q_low[b, h, i]))
        return score

    if not normaliser:
        return flex_attention(q, k, v, score_mod=score_mod, block_mask=mask), None
    out, aux = flex_attention(q, k, v, score_mod=score_mod, block_mask=mask, return_aux=AuxRequest(lse=True))
    return out, aux.lse


class TooManyShapes(RuntimeError):
    """torch's compiler refuses to compile for another shape."""


def _call(
    q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, form: Any, table_HN: Any, columns: KeyColumns | None, more: bool
) -> tuple[Tensor, Tensor | None]:
    if COMPILED and q.device.type in DYNAMIC_BATCH:
        for tensor in (q, k, v, *(columns or ())):
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
    try:
        return kernel()(q, k, v, mask, form, table_HN, columns, more)
    except Exception as error:
        if type(error).__name__ == "FailOnRecompileLimitHit":  # importing its module would import the compiler
            raise TooManyShapes from error
        raise


def kernel() -> Callable[..., tuple[Tensor, Tensor | None]]:
    return _compiled() if COMPILED else _run


@cache
def _compiled(backend: str = "inductor") -> Callable[..., tuple[Tensor, Tensor | None]]:
    compile = partial(torch.compile, dynamic=False, fullgraph=True, backend=backend)
    if backend == "inductor" and not torch.cuda.is_available():
        # The number of threads is compiled into the CPU kernel but is no part of the key of PyTorch's cache on disk:
        # with another number, a cached kernel returns zeros or corrupts memory.
        compile = partial(compile, options={"fx_graph_cache": False})
    if "recompile_limit" in inspect.signature(torch.compile).parameters:
        return compile(_run, recompile_limit=MAX_COMPILATIONS)
    limits = torch._dynamo.config  # earlier versions of PyTorch have one limit for the whole process
    limits.recompile_limit = max(limits.recompile_limit, MAX_COMPILATIONS)
    return compile(_run)


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # a mask made while generating must serve a backward pass later
def block_mask(q_blocks: int, k_blocks: int, window: int | None, device: torch.device) -> BlockMask:
    """Causal attention with a window, where the last query is at the last key, built from whole blocks.

    The window is a tensor, and at most the number of keys: another window is no reason to compile again.
    """
    offset, keys = (k_blocks - q_blocks) * BLOCK, k_blocks * BLOCK
    width = torch.tensor(min(window or keys, keys), dtype=torch.int32, device=device)

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        distance = i + offset - j
        return (distance >= 0) & (distance < width)

    q_first = offset + BLOCK * torch.arange(q_blocks, device=device)[:, None]
    k_first = BLOCK * torch.arange(k_blocks, device=device)
    nearest, farthest = q_first - k_first - (BLOCK - 1), q_first - k_first + (BLOCK - 1)
    reached = (farthest >= 0) & (nearest < width)
    full = (nearest >= 0) & (farthest < width)
    return BlockMask.from_kv_blocks(
        *_ordered(reached & ~full),
        *_ordered(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=visible,
        seq_lengths=(q_blocks * BLOCK, keys),
    )


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many key blocks each query block reads, and which, first: (1, 1, Q) and (1, 1, Q, K)."""
    indices = blocks.to(torch.int32).argsort(dim=1, descending=True, stable=True)
    return blocks.sum(1).to(torch.int32)[None, None], indices.to(torch.int32)[None, None].contiguous()


class LearnedBias(torch.autograd.Function):
    """Passes on the output and the normaliser of the kernel; its backward pass computes the gradients of biases.

    P = exp(S - lse),  dS = P∘(dO·Vᵀ - D + d lse),  D = Σ dO∘O;  dS is summed over pairs of the same distance or key.
    """

    @staticmethod
    def forward(
        ctx: Any,
        out: Tensor,
        lse: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor,
        layout: BlockLayout,
        key_bias: Tensor | None,
        shift: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(out, lse, q, k, v, bias, key_bias, shift)
        ctx.layout = layout
        return out.view_as(out), lse.view_as(lse)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, d_lse: Tensor) -> tuple[Tensor | None, ...]:
        out, lse, q, k, v, bias, key_bias, shift = ctx.saved_tensors
        layout: BlockLayout = ctx.layout
        dtype, scale = bias.dtype, q.shape[-1] ** -0.5
        d_bias = torch.zeros_like(bias) if ctx.needs_input_grad[5] else None
        d_key_bias = torch.zeros_like(key_bias) if ctx.needs_input_grad[7] else None
        rows = min(512, max(64, FOLD_SCORES // (q.shape[0] * q.shape[1] * layout.keys_per_block)))
        with torch.autocast(q.device.type, enabled=False):
            for queries, keys in layout.blocks(rows):
                q_i, out_i, d_out_i = (x[:, :, queries].flip(2).to(dtype) for x in (q, out, d_out))
                lse_i, d_lse_i = (x[:, :, queries].flip(2) for x in (lse, d_lse))
                mask = layout.mask(bias, queries, keys)
                if key_bias is not None and shift is not None:
                    middle = block_shift(key_bias, queries, keys)
                    mask = mask + (key_bias[:, :, keys] - middle)[:, :, None].to(dtype)
                    lse_i = lse_i + (shift[:, :, queries].flip(2) - middle).to(dtype)
                scores = torch.matmul(q_i * scale, k[:, :, keys].to(dtype).transpose(2, 3)).add_(mask)
                weights = scores.sub_(lse_i[..., None]).exp_()
                d_scores = torch.matmul(d_out_i, v[:, :, keys].to(dtype).transpose(2, 3))
                d_scores.sub_(((d_out_i * out_i).sum(-1) - d_lse_i)[..., None]).mul_(weights)
                if d_bias is not None:
                    layout.reduce_grad(d_scores, d_bias, queries, keys)
                if d_key_bias is not None:
                    d_key_bias[:, :, keys] += d_scores.sum(2)
        return d_out, d_lse, None, None, None, d_bias, None, d_key_bias, None


@cache
@torch.inference_mode(False)
def failure(device: torch.device, dtype: torch.dtype, head_width: int) -> str | None:
    """Why the compiled kernel does not run on this device, found by running it once; None if it does."""
    gradient = device.type == "cuda"  # compiled on a CPU it has no backward pass
    x = torch.ones(2, 1, BLOCK, head_width, device=device, dtype=dtype, requires_grad=gradient)
    try:
        with torch.set_grad_enabled(gradient):
            out, _ = _call(x, x, x, block_mask(1, 1, None, device), BiasForm(_no_bias, ()), None, None, False)
            if gradient:
                out.sum().backward()
    except Exception as error:
        cause = getattr(error, "inner_exception", error)  # of torch's compiler
        return f"it does not compile here ({type(cause).__name__}: {str(cause).strip().splitlines()[0][:200]})"
    return None if bool((out.detach() - 1).abs().max() < 1e-2) else "its results are wrong on this device"
