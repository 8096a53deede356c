"""Product-key memory (PKM): a large key-value memory, searched by half-keys (Lample et al. 2019)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import ConfigError, check_at_least, part
from heddle.core.shapes import Stream
from heddle.nn.base import ChannelConfig, Context, Linear, Part, Place, Role, upcast
from heddle.nn.layers import LayerNormConfig, NormConfig


@part("product_keys")
class ProductKeysConfig(ChannelConfig):
    """Product-key memory: top-k of keys² values; a key is a pair of half-keys, each searched on its own.

    keys: half-keys on each side; their square is the number of values.
    heads: queries of each token, whose results are summed.
    top_k: values that each query takes.
    key_width: width of a key, of both halves together.
    norm: norm of each half of the query.
    """

    old_fields = {"top": "top_k"}

    keys: int = 512
    heads: int = 4
    top_k: int = 32
    key_width: int = 256
    norm: NormConfig = LayerNormConfig()

    def __post_init__(self) -> None:
        check_at_least(1, keys=self.keys, heads=self.heads, top_k=self.top_k)
        if self.key_width < 2 or self.key_width % 2:
            raise ConfigError("key_width", want="an even number, because a key has two halves", got=self.key_width)
        if self.top_k > self.keys:
            raise ConfigError("top_k", want=f"at most {self.keys}, the number of half-keys", got=self.top_k)

    def build(self, width: int, place: Place) -> "ProductKeys":
        return ProductKeys(width, self)


class ProductKeys(Part):
    """sum over heads and their best keys of softmax(query · key) * value."""

    roles = {"keys": Role.INSIDE, "values": Role.EMBEDDING}

    def __init__(self, width: int, config: ProductKeysConfig) -> None:
        super().__init__()
        self.heads, self.top_k, self.width = config.heads, config.top_k, width
        half = config.key_width // 2
        self.query = Linear(width, config.heads * config.key_width, bias=True)
        self.norm = config.norm.build(half)
        self.keys = nn.Parameter(torch.empty(config.heads, 2, config.keys, half))
        self.values = nn.Parameter(torch.empty(config.keys**2, width))

    def forward(self, x: Stream, ctx: Context) -> Stream:
        scores, places = self.search(x.flatten(0, 1))
        weights, places = scores.softmax(-1).flatten(1).to(self.values.dtype), places.flatten(1)
        real = ctx.used_tokens(x)
        if real is not None:  # padding looks up the first value with weight zero
            weights, places = (found * real.flatten()[:, None] for found in (weights, places))
        found = F.embedding_bag(places, self.values, per_sample_weights=weights, mode="sum")
        return found.to(x.dtype).view_as(x)

    def search(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best scores of each head and the indices of their values, both [tokens, heads, top]."""
        heads, _, keys, half = self.keys.shape
        query = self.norm(self.query(x).unflatten(-1, (heads, 2, half)))
        halves = upcast(torch.einsum("thsw,hskw->thsk", query, self.keys.to(query.dtype)))
        best, which = halves.topk(self.top_k, dim=-1)
        sums = best[:, :, 0, :, None] + best[:, :, 1, None, :]  # the best pairs consist of the best half-keys
        pairs = which[:, :, 0, :, None] * keys + which[:, :, 1, None, :]
        scores, chosen = sums.flatten(-2).topk(self.top_k, dim=-1)
        return scores, pairs.flatten(-2).gather(-1, chosen)

    def mixing_flops(self, length: int) -> int:
        return 2 * self.heads * self.top_k * self.width

    def narang_lookup_ops(self, tokens: int) -> int:
        """Count each lookup as a product with the whole table."""
        return tokens * self.heads * self.top_k * self.values.numel()
