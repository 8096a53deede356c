"""Dropped words: a word is there wherever it stands, or nowhere; a tied head is left whole."""

import pytest
import torch

from heddle.core import ConfigError
from heddle.nn.base import Context, Place
from heddle.nn.ends import FullEmbeddingConfig

VOCAB, WIDTH = 200, 8


def test_a_word_is_dropped_wherever_it_stands_and_the_others_grow() -> None:
    torch.manual_seed(0)
    embedding = FullEmbeddingConfig(word_dropout=0.5, scale=2.0).build(VOCAB, WIDTH, Place())
    torch.nn.init.normal_(embedding.weight)
    ids = torch.arange(VOCAB).repeat(2, 3)
    shares = (embedding(ids, Context()) / (2 * embedding.weight[ids])).detach()
    assert torch.equal(shares[:, :VOCAB], shares[:, VOCAB : 2 * VOCAB])
    assert torch.equal(shares[0], shares[1])
    found = shares[0, :VOCAB]
    assert found.std(1).max() < 1e-5  # the whole vector
    assert 60 < int((found[:, 0] == 0).sum()) < 140
    torch.testing.assert_close(found[found != 0].mean().item(), 2.0)


def test_each_forward_drops_other_words_and_none_at_rest() -> None:
    torch.manual_seed(0)
    embedding = FullEmbeddingConfig(word_dropout=0.5).build(VOCAB, WIDTH, Place())
    torch.nn.init.normal_(embedding.weight)
    ids = torch.arange(VOCAB)[None]
    assert not torch.equal(embedding(ids, Context()), embedding(ids, Context()))
    embedding.eval()
    assert torch.equal(embedding(ids, Context())[0], embedding.weight)


def test_dropping_every_word_is_refused() -> None:
    with pytest.raises(ConfigError, match="word_dropout: want at least 0 and below 1"):
        FullEmbeddingConfig(word_dropout=1.0)
