"""Joint decoding: attention, CTC prefix scores and a language model in one beam search (Hori, Watanabe & Hershey 2017).

Token by token, a candidate's score is a weighted sum of log-probabilities: that of the decoder, that of all CTC paths
that begin with its tokens, and that of a language model.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from heddle.core import Config, Positive, Share, settings
from heddle.decoding.ctc.language_model import Prefix, PrefixLanguageModel
from heddle.decoding.ctc.prefix_beam import FrameLogprobs, Recognized, Weight
from heddle.models.networks import EncoderDecoder
from heddle.nn.state import Memory

NEVER = -math.inf
Forward = NDArray[np.float64]  # [2, frames + 1]: paths that end in the last token, and in a blank


@settings
class JointBeamSearch(Config):
    """Joint beam search over tokens.

    beams: texts that go on from one token to the next.
    ctc_weight: weight of CTC against attention, which has the rest; 0: attention alone.
    lm_weight: weight of the language model's log-probability (shallow fusion).
    length_bonus: added for each token, against the taste for short texts.
    tokens: tokens whose CTC scores are computed for each text: the best by attention and language model.
    max_tokens: most tokens of a text.
    """

    beams: Positive = 8
    ctc_weight: Share = 0.3
    lm_weight: Weight = 0.0
    length_bonus: float = 0.0
    tokens: Positive = 40
    max_tokens: Positive = 256


@dataclass(frozen=True)
class _Text:
    """A candidate: its tokens, the parts of its score, and the CTC paths that end with it."""

    ids: Prefix = ()
    attention: float = 0.0
    lm: float = 0.0
    ctc: float = 0.0
    forward: Any = field(default=None, compare=False)  # None: CTC has no say
    row: int = 0  # of the decoder's state


class CtcPrefixScorer:
    """The log-probability of all CTC paths that begin with some tokens (Graves 2012, chapter 7)."""

    def __init__(self, logprobs: FrameLogprobs) -> None:
        self.logprobs, self.blank = logprobs, logprobs.shape[1] - 1
        blanks = np.concatenate([[0.0], np.cumsum(logprobs[:, self.blank])])
        self.start: Forward = np.stack([np.full(len(blanks), NEVER), blanks])

    def extend(
        self, forwards: NDArray[np.float64], lasts: NDArray[np.int64], tokens: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the scores of longer texts, [texts, tokens], and their paths, [texts, tokens, 2, frames + 1].

        `lasts` holds the last token of each text, -1 where it has none; `tokens` what is tried after each.
        """
        after_any = np.logaddexp(forwards[:, 0], forwards[:, 1])[:, None, :-1]
        same = (tokens == lasts[:, None])[..., None]
        before = np.where(same, forwards[:, 1][:, None, :-1], after_any)  # a token follows itself only after a blank
        emitted, blanks = self.logprobs.T[tokens], self.logprobs[:, self.blank]
        found = np.full((*tokens.shape, 2, len(self.logprobs) + 1), NEVER)
        for t in range(len(self.logprobs)):
            found[..., 0, t + 1] = np.logaddexp(found[..., 0, t], before[..., t]) + emitted[..., t]
            found[..., 1, t + 1] = np.logaddexp(found[..., 0, t], found[..., 1, t]) + blanks[t]
        return np.logaddexp.reduce(before + emitted, axis=-1), found

    def end(self, forward: Forward) -> float:
        """Return the score of a text that ends."""
        return float(np.logaddexp(forward[0, -1], forward[1, -1]))


@dataclass
class JointDecoder:
    """One joint beam search: a model, what it has read, and what scores beside its decoder."""

    model: EncoderDecoder
    memory: Memory  # of one source
    search: JointBeamSearch
    start: tuple[int, ...]  # the ids before a target
    end: int
    ctc: CtcPrefixScorer | None = None
    lm: PrefixLanguageModel | None = None

    def run(self) -> list[Recognized]:
        """Return the texts that ended, best first; where none did, those that were cut."""
        state = self.model.new_state(1, len(self.start) + self.search.max_tokens, self.memory)
        ids = torch.tensor([self.start], device=state.lengths.device)
        live = [_Text(forward=None if self.ctc is None else self.ctc.start)]
        ended: list[_Text] = []
        for length in range(self.search.max_tokens):
            vectors, state = self.model.step(ids, state)
            attention = self.model.head.logits(vectors[:, -1]).double().log_softmax(-1).cpu().numpy()
            ended += [self._ended(text, attention[row]) for row, text in enumerate(live)]
            ended = sorted(ended, key=self._score, reverse=True)[: self.search.beams]
            live = self._grown(live, attention)
            left = self.search.max_tokens - length - 1
            live = [text for text in live if not self._hopeless(text, ended, left)]
            if not live or not left:
                break
            rows = [text.row for text in live]
            live = [_Text(t.ids, t.attention, t.lm, t.ctc, t.forward, row) for row, t in enumerate(live)]
            state, ids = state.select(rows), torch.tensor([[t.ids[-1]] for t in live], device=state.lengths.device)
            if self.lm is not None:
                self.lm.keep({known for text in live for known in (text.ids, text.ids[:-1])})
        return [self._recognized(text) for text in ended if self._score(text) > NEVER]

    def _grown(self, live: list[_Text], attention: NDArray[np.float64]) -> list[_Text]:
        """Return the best texts of one token more."""
        lm = np.zeros((len(live), 1)) if self.lm is None else self.lm.logprobs([text.ids for text in live])
        own = attention * (1 - self.search.ctc_weight) + self.search.lm_weight * lm
        own[:, self.end] = NEVER
        tokens = np.argsort(-own, axis=1, kind="stable")[:, : min(self.search.tokens, own.shape[1] - 1)]
        scores, paths = np.zeros(tokens.shape), None
        if self.ctc is not None:
            lasts = np.array([text.ids[-1] if text.ids else -1 for text in live])
            scores, paths = self.ctc.extend(np.stack([text.forward for text in live]), lasts, tokens)
        found: list[_Text] = []
        for row, text in enumerate(live):
            for at, token in enumerate(tokens[row].tolist()):
                lm_score = text.lm + (float(lm[row, token]) if self.lm is not None else 0.0)
                grown = (*text.ids, token), text.attention + float(attention[row, token]), lm_score
                found.append(_Text(*grown, float(scores[row, at]), None if paths is None else paths[row, at], row))
        return sorted(found, key=self._score, reverse=True)[: self.search.beams]

    def _ended(self, text: _Text, attention: NDArray[np.float64]) -> _Text:
        lm = 0.0 if self.lm is None else float(self.lm.logprobs([text.ids])[0, self.end])
        ctc = 0.0 if self.ctc is None or text.forward is None else self.ctc.end(text.forward)
        return _Text(text.ids, text.attention + float(attention[self.end]), text.lm + lm, ctc)

    def _score(self, text: _Text) -> float:
        search = self.search
        weighed = search.lm_weight * text.lm + search.length_bonus * len(text.ids)
        ctc = search.ctc_weight * text.ctc if search.ctc_weight else 0.0
        return (1 - search.ctc_weight) * text.attention + ctc + weighed

    def _hopeless(self, text: _Text, ended: list[_Text], left: int) -> bool:
        """Tell whether a text cannot get among the best that ended: no log-probability rises, only the bonus."""
        best = self._score(text) + max(0.0, self.search.length_bonus) * left
        return best == NEVER or (len(ended) == self.search.beams and best <= self._score(ended[-1]))

    def _recognized(self, text: _Text) -> Recognized:
        scores = {"attention": text.attention}
        scores |= {} if self.ctc is None else {"ctc": text.ctc}
        scores |= {} if self.lm is None else {"lm": text.lm}
        return Recognized(text.ids, self._score(text), scores)
