"""Carrying: how probable is each token of a text that a recurrent model reads in order, its state never forgotten."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from heddle.core import UsageError
from heddle.decoding.runtime import device_of, eval_mode, has_kv_cache
from heddle.decoding.scoring.scoring import Document, Losses, checked
from heddle.models.networks import LanguageModel

CHUNK = 1 << 12  # tokens read at once; the state goes on from one to the next, so it changes nothing


@torch.inference_mode()
def nll_with_carried_state(model: LanguageModel, documents: Iterable[Document], begin: int) -> Iterator[Losses]:
    """Yield each document's losses in nats, one for each token, in float32 on the CPU, in order.

    Each document goes on from the one before, the first from `begin`: the custom of word-level benchmarks.
    """
    if has_kv_cache(model):
        raise UsageError("carry: want a recurrent model, for this one keeps every token; measure it through a window")
    state, before, seen = model.new_state(1, 1), begin, 0
    with eval_mode(model):
        for document in documents:
            ids = torch.from_numpy(checked(model, document, before)).to(device_of(model))[None]
            losses: list[Tensor] = []
            for start in range(0, ids.shape[1] - 1, CHUNK):
                stop = min(start + CHUNK, ids.shape[1] - 1)
                seen += stop - start
                model.reserve(seen)
                vectors, state = model.step(ids[:, start:stop], state)
                losses.append(model.head.nll(vectors[0], ids[0, start + 1 : stop + 1]).float().cpu())
            before = int(ids[0, -1])
            yield torch.cat(losses) if losses else torch.empty(0)
