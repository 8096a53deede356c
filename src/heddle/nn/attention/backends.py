"""Attention backends: every way that scaled dot-product attention is computed, in training and decoding: one table.

The first row of `BACKENDS` whose predicate holds is used. All rows compute the same function; they differ in what they
can take, in speed and in rounding. `heddle show` prints which one each layer uses, and the reason.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from heddle.core.shapes import Allowed, Float, Int
from heddle.core.system import BATCH_INVARIANCE
from heddle.nn.attention.flex_attention import FlexMask, flex_attend
from heddle.nn.attention.sliding_window import SlidingWindow, sliding_window_attend
from heddle.nn.base import upcast
from heddle.nn.kernels import flash_decode, supports_flash_decoding
from heddle.nn.layers import causal_mask

MAX_UNFUSED_KEYS = 512  # beyond, whole score matrices cost more than they save
MIN_WINDOWS = 4  # windows in a row, from which on a sliding window is computed block by block
MIN_FLEX_LENGTH = 256  # of a row; below, there is nothing to skip
FLEX_WIDTHS = (16, 32, 64, 128, 256)  # of a head, which FlexAttention's kernels take
Output = Float[Tensor, "batch heads query value_width"]
Scores = Float[Tensor, "batch heads query key"]
WarmupWindow = Int[Tensor, ""]  # positions, itself included; a tensor, so that one compiled step serves every size


@dataclass(frozen=True)
class RelativeTerms:
    """Relative position representations (Shaw et al. 2018): one layer's vectors for each clipped distance."""

    keys: Float[Tensor, "distances head_width"]
    values: Float[Tensor, "distances head_width"]
    index: Int[Tensor, "#batch query key"]

    def row(self, row: int, count: int) -> "RelativeTerms":
        """Return the terms of one row of `count`."""
        return self if len(self.index) != count else dataclasses.replace(self, index=self.index[row : row + 1])

    def key_scores(self, query: Tensor) -> Scores:
        """Return query · keys[distance] for every query and key."""
        by_distance = upcast(query @ self.keys.T)  # its gradient is a sum over many keys
        return by_distance.gather(-1, self.index[:, None].expand(*query.shape[:2], -1, -1))

    def weighted_values(self, weights: Scores) -> Tensor:
        """Return the sum over keys of weight * values[distance]."""
        batch, heads, queries, _ = weights.shape
        precise = upcast(weights)  # many distant keys share one distance: half precision would lose the small ones
        by_distance = precise.new_zeros(batch, heads, queries, len(self.values))
        index = self.index[:, None].expand_as(weights)
        return by_distance.scatter_add(-1, index, precise).to(weights.dtype) @ self.values


@dataclass(frozen=True)
class AttentionInputs:
    """Queries, keys and values with mask and bias; in grouped-query attention keys and values have fewer heads.

    `allowed`, `causal` and `build_mask` say as a matrix which keys a query sees. `flex_mask`, `sliding_window` and
    `cache_lengths` say the same in the form of a backend, or are None where that backend cannot compute it.
    """

    query: Float[Tensor, "batch heads query head_width"]
    key: Float[Tensor, "batch kv_heads key head_width"]
    value: Float[Tensor, "batch kv_heads key value_width"]
    allowed: Allowed | None = None  # None: `causal` decides
    causal: bool = False  # with no `allowed`: a query sees the keys up to its own position
    bias: Float[Tensor, "#batch heads query key"] | None = None  # with no `allowed` it is -inf where causality forbids
    relation: RelativeTerms | None = None
    build_mask: Callable[[], Allowed | None] | None = None  # makes `allowed`, for backends that need the matrix
    flex_mask: FlexMask | None = None
    sliding_window: SlidingWindow | None = None
    cache_lengths: Int[Tensor, " batch"] | None = None  # tokens of each row that the KV cache held before this one

    @property
    def groups(self) -> int:
        """Count the query heads that share a key head."""
        return self.query.shape[1] // self.key.shape[1]

    def with_mask(self) -> "AttentionInputs":
        """Return the inputs with the mask as a matrix."""
        if self.build_mask is None:
            return self
        return dataclasses.replace(self, allowed=self.build_mask(), build_mask=None)

    def in_window(self, window: WarmupWindow) -> "AttentionInputs":
        """Return self-attention whose queries see only keys less than `window` positions away (window warm-up)."""
        length, device = self.query.shape[2], self.query.device
        position = torch.arange(length, device=device)
        allowed = ((position[:, None] - position).abs() < window)[None, None]
        if self.allowed is not None:
            allowed = allowed & self.allowed
        elif self.causal:
            allowed = allowed & causal_mask(length, device)
        flex_mask = None if self.flex_mask is None else dataclasses.replace(self.flex_mask, window=window)
        return dataclasses.replace(self, allowed=allowed, flex_mask=flex_mask)

    def rows(self) -> "list[AttentionInputs]":
        """Return the inputs of each row by itself, with the mask as a matrix."""
        masked, count = self.with_mask(), len(self.query)

        def one(tensor: Tensor | None, row: int) -> Tensor | None:
            return tensor if tensor is None or len(tensor) != count else tensor[row : row + 1]

        found = []
        for row in range(count):
            query, key, value = (tensor[row : row + 1] for tensor in (self.query, self.key, self.value))
            allowed, bias, lengths = (one(t, row) for t in (masked.allowed, self.bias, self.cache_lengths))
            terms = None if self.relation is None else self.relation.row(row, count)
            own = AttentionInputs(query, key, value, allowed, self.causal, bias, terms, cache_lengths=lengths)
            found.append(own)
        return found

    def repeat_kv(self) -> "AttentionInputs":
        """Return the inputs with a key and value head for each query head."""
        if self.groups == 1:
            return self
        key, value = (t.repeat_interleave(self.groups, dim=1) for t in (self.key, self.value))
        return dataclasses.replace(self, key=key, value=value)

    def apply_bias_and_mask(self, scores: Scores) -> Scores:
        """Return the scores with the bias added, and the smallest number where a key is masked."""
        if self.bias is not None:
            scores = upcast(scores) + self.bias
        if self.allowed is not None:
            return scores.masked_fill(~self.allowed, torch.finfo(scores.dtype).min)
        if self.causal and self.bias is None:
            past = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            return scores.masked_fill(~past, torch.finfo(scores.dtype).min)
        return scores

    def weigh_values(self, weights: Scores) -> Tensor:
        """Return the sum of the values by the attention weights, [batch, heads, query, value_width]."""
        output = weights @ self.repeat_kv().value
        return output if self.relation is None else output + self.relation.weighted_values(weights)


# --- the choice of a backend ------------------------------------------------------------------------------------------


@runtime_checkable
class ScoreFunction(Protocol):
    """What backends need to know about a score function."""

    scale: float | None  # query · key is multiplied by it; None: the score is no plain dot product
    softcap: float | None

    def softmax_weights(self, inputs: AttentionInputs) -> Scores:
        """Return softmax(score(query, key)), masked."""


class AttentionCall(NamedTuple):
    """One call of attention: all that the choice of a backend depends on."""

    score: ScoreFunction
    inputs: AttentionInputs
    dropout: float  # attention dropout: rate on the softmax weights, 0 outside training
    device: str
    compiling: bool  # whether torch.compile is tracing


# --- predicates -------------------------------------------------------------------------------------------------------


def _is_plain(call: AttentionCall) -> bool:
    """Tell whether the scores are a scaled dot product and nothing else."""
    score, inputs = call.score, call.inputs
    return score.scale is not None and score.softcap is None and inputs.bias is None and inputs.relation is None


def _has_whole_cache(call: AttentionCall) -> bool:
    inputs = call.inputs
    if inputs.cache_lengths is None or call.device != "cuda" or not _is_plain(call):
        return False
    return supports_flash_decoding(inputs.query, inputs.key, inputs.value)


def _has_block_mask(call: AttentionCall) -> bool:
    if not (call.compiling and call.device == "cuda"):
        return False
    score, inputs, (length, width) = call.score, call.inputs, call.inputs.query.shape[-2:]
    if inputs.flex_mask is None or score.scale is None or call.dropout:
        return False
    if inputs.bias is not None or inputs.relation is not None or length < MIN_FLEX_LENGTH or width not in FLEX_WIDTHS:
        return False
    return inputs.flex_mask.restricts or score.softcap is not None


def _has_short_window(call: AttentionCall) -> bool:
    window = call.inputs.sliding_window
    return window is not None and call.inputs.query.shape[2] >= MIN_WINDOWS * window.size and _is_plain(call)


def _needs_scores(call: AttentionCall) -> bool:
    return call.score.scale is None or call.score.softcap is not None or call.inputs.relation is not None


def _is_short_on_cpu(call: AttentionCall) -> bool:
    query, keys = call.inputs.query, call.inputs.key.shape[-2]
    return call.device == "cpu" and query.dtype is torch.bfloat16 and keys <= MAX_UNFUSED_KEYS and query.shape[-2] > 1


def _is_compiled_query_on_cpu(call: AttentionCall) -> bool:
    return call.compiling and call.device == "cpu" and call.inputs.query.shape[-2] == 1 and not call.dropout


def _is_grouped_and_masked(call: AttentionCall) -> bool:
    inputs = call.inputs
    masked = inputs.allowed is not None or inputs.build_mask is not None or inputs.bias is not None
    return masked and inputs.query.shape[1] != inputs.key.shape[1]


def _is_grouped_and_masked_query(call: AttentionCall) -> bool:
    return call.inputs.query.shape[-2] == 1 and _is_grouped_and_masked(call)


# --- kernels ----------------------------------------------------------------------------------------------------------


def flash_decoding(call: AttentionCall) -> Output:
    """Attend by flash decoding (Dao et al. 2023): one query per row over the filled part of the KV cache, in Triton."""
    inputs, scale = call.inputs, call.score.scale
    assert inputs.cache_lengths is not None and scale is not None
    return flash_decode(inputs.query, inputs.key, inputs.value, inputs.cache_lengths, scale)


def flex(call: AttentionCall) -> Output:
    """Attend by FlexAttention (Dong et al. 2024), which skips blocks that the mask leaves empty."""
    inputs, score = call.inputs, call.score
    assert inputs.flex_mask is not None and score.scale is not None
    return flex_attend(inputs.query, inputs.key, inputs.value, inputs.flex_mask, score.scale, score.softcap)


def sliding_window(call: AttentionCall) -> Output:
    """Attend within a sliding window block by block (Beltagy et al. 2020)."""
    inputs, scale = call.inputs, call.score.scale
    assert inputs.sliding_window is not None and scale is not None
    return sliding_window_attend(inputs.query, inputs.key, inputs.value, inputs.sliding_window, scale, call.dropout)


def unfused(call: AttentionCall) -> Output:
    """Attend with the score matrix in memory: softmax(score(query, key)) · value."""
    inputs = call.inputs
    weights = F.dropout(call.score.softmax_weights(inputs), call.dropout, training=call.dropout > 0)
    output = inputs.weigh_values(weights)
    if inputs.allowed is None:
        return output
    return output.masked_fill(~inputs.allowed.any(-1, keepdim=True), 0)  # cheaper than the same on the weights


def unrolled(call: AttentionCall) -> Output:
    """Attend with one query per row, as sums that a compiler turns into loops.

    Factors common to all keys come after the sums, so that no loop repeats them for each key.
    """
    inputs, scale = call.inputs, call.score.scale
    assert scale is not None
    groups, mask = (inputs.key.shape[1], inputs.groups), _merge_bias_and_mask(inputs)
    query = inputs.query.squeeze(2).unflatten(1, groups)
    scores = (upcast(query)[:, :, :, None] * upcast(inputs.key)[:, :, None]).sum(-1) * scale
    if mask is not None:
        mask = mask.squeeze(2).unflatten(1, groups) if mask.shape[1] > 1 else mask
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    output = (exponentials[..., None] * upcast(inputs.value)[:, :, None]).sum(-2) / exponentials.sum(-1, keepdim=True)
    return output.flatten(1, 2)[:, :, None].to(inputs.query.dtype)


def sdpa_folded(call: AttentionCall) -> Output:
    """Attend by SDPA with the heads of a group, of one query each, as the queries of one head: no key is copied."""
    inputs, mask = call.inputs, _merge_bias_and_mask(call.inputs)
    assert mask is not None
    groups = (inputs.key.shape[1], inputs.groups)
    query = inputs.query.squeeze(2).unflatten(1, groups)
    mask = mask.squeeze(2).unflatten(1, groups) if mask.shape[1] > 1 else mask
    output = F.scaled_dot_product_attention(
        query, inputs.key, inputs.value, attn_mask=mask, dropout_p=call.dropout, scale=call.score.scale
    )
    return output.flatten(1, 2)[:, :, None]


def sdpa_repeated(call: AttentionCall) -> Output:
    """Attend by SDPA with a copy of keys and values for every query head."""
    return sdpa(call._replace(inputs=call.inputs.repeat_kv()))


def sdpa(call: AttentionCall) -> Output:
    """Attend by torch's scaled_dot_product_attention: FlashAttention, cuDNN or its own kernel, as torch decides."""
    inputs = call.inputs
    mask = inputs.allowed if inputs.bias is None else _merge_bias_and_mask(inputs)
    return F.scaled_dot_product_attention(
        inputs.query,
        inputs.key,
        inputs.value,
        attn_mask=mask,
        dropout_p=call.dropout,
        is_causal=inputs.causal and mask is None,
        scale=call.score.scale,
        enable_gqa=inputs.query.shape[1] != inputs.key.shape[1],
    )


def _merge_bias_and_mask(inputs: AttentionInputs) -> Tensor | None:
    """Return what torch's kernels add to the scores, or a mask of booleans; None: neither bias nor mask."""
    if inputs.bias is None or inputs.allowed is None:
        return inputs.allowed if inputs.bias is None else inputs.bias
    return inputs.bias.masked_fill(~inputs.allowed, -math.inf)


# --- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Backend:
    """One way to compute attention: when it is used, how, and why."""

    name: str
    used_when: Callable[[AttentionCall], bool] | None  # None: always
    attend: Callable[[AttentionCall], Output]
    reason: str
    needs_mask: bool = True  # as a matrix


BACKENDS = (
    Backend(
        "flash_decoding",
        _has_whole_cache,
        flash_decoding,
        "one query per row over a KV cache on CUDA: a Triton kernel reads only the filled part",
        needs_mask=False,
    ),
    Backend(
        "flex_attention",
        _has_block_mask,
        flex,
        "compiled on CUDA with packed documents, a window, padding or a softcap: empty blocks are skipped",
        needs_mask=False,
    ),
    Backend(
        "sliding_window",
        _has_short_window,
        sliding_window,
        f"rows of at least {MIN_WINDOWS} windows: block by block, at a cost linear in the length",
        needs_mask=False,
    ),
    Backend("unfused", _needs_scores, unfused, "no fused kernel has this score, softcap or relative terms"),
    Backend(
        "unfused",
        _is_short_on_cpu,
        unfused,
        f"bfloat16 on a CPU, at most {MAX_UNFUSED_KEYS} keys: measured faster than the fused kernel (decision 0009)",
    ),
    Backend(
        "unrolled",
        _is_compiled_query_on_cpu,
        unrolled,
        "one query per row, compiled for a CPU: its loops cost less than a call of a kernel",
    ),
    Backend(
        "sdpa_folded",
        _is_grouped_and_masked_query,
        sdpa_folded,
        "one query per row, grouped heads and a mask: heads of a group become queries of one head, so no key is copied",
    ),
    Backend(
        "sdpa_repeated",
        _is_grouped_and_masked,
        sdpa_repeated,
        "grouped heads and a mask: torch's fast kernels take either, not both, so keys and values are repeated",
    ),
    Backend("sdpa", None, sdpa, "torch's fused kernel takes it as it is: FlashAttention, cuDNN or torch's own"),
)


def choose_backend(call: AttentionCall) -> Backend:
    """Return the first backend of the table whose predicate holds."""
    for backend in BACKENDS:
        if backend.used_when is None or backend.used_when(call):
            return backend
    raise AssertionError("the last backend takes every call")


def attend(score: ScoreFunction, inputs: AttentionInputs, dropout: float) -> Output:
    """Compute attention by the backend that the table gives for these inputs."""
    if not torch.compiler.is_compiling() and len(inputs.query) > 1:
        mode = BATCH_INVARIANCE.get()
        if mode is not None and mode.attention_by_row:
            return torch.cat([attend(score, row, dropout) for row in inputs.rows()])
    call = AttentionCall(score, inputs, dropout, inputs.query.device.type, torch.compiler.is_compiling())
    backend = choose_backend(call)
    if backend.needs_mask and inputs.build_mask is not None:
        call = call._replace(inputs=dataclasses.replace(inputs, allowed=inputs.build_mask(), build_mask=None))
    return backend.attend(call)
