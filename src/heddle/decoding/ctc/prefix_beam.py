"""CTC decoding: the most probable path, and prefix beam search over texts (Graves et al. 2006; Hannun et al. 2014)."""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from heddle.core import Config, Positive, settings, within
from heddle.decoding.ctc.language_model import Prefix, PrefixLanguageModel
from heddle.nn.outputs import collapse

FrameLogprobs = NDArray[np.float64]  # [frames, tokens and the blank, which is the last]
Weight = Annotated[float, within("at least 0", lambda weight: weight >= 0)]
NEVER = -math.inf


@dataclass(frozen=True)
class Recognized:
    """The tokens of a candidate, the score by which it was ranked, and its parts by name."""

    ids: tuple[int, ...]
    score: float
    scores: dict[str, float]


@settings
class PrefixBeamSearch(Config):
    """Prefix beam search: texts by the sum of their paths, perhaps with a language model.

    beams: texts that go on from one frame to the next.
    tokens: most tokens that may go on a text at a frame: the most probable ones.
    lm_weight: weight of the language model's log-probability, the end of the text included (shallow fusion).
    length_bonus: added for each token, against the taste for short texts.
    """

    beams: Positive = 16
    tokens: Positive = 30
    lm_weight: Weight = 0.0
    length_bonus: float = 0.0


def best_path(logprobs: FrameLogprobs) -> Recognized:
    """Return the text of the most probable path, with that path's log-probability."""
    blank = logprobs.shape[1] - 1
    score = float(logprobs.max(1).sum())
    return Recognized(tuple(collapse(logprobs.argmax(1).tolist(), blank)), score, {"path": score})


def prefix_beam_search(
    logprobs: FrameLogprobs, search: PrefixBeamSearch, lm: PrefixLanguageModel | None = None, end: int | None = None
) -> list[Recognized]:
    """Return the best texts, best first, by the log-probability of all their paths and the language model's."""
    blank = logprobs.shape[1] - 1
    allowed = np.argsort(-logprobs[:, :blank], axis=1, kind="stable")[:, : search.tokens]
    beams: dict[Prefix, _Paths] = {(): _Paths(0.0, NEVER, 0.0)}
    for frame, tokens in zip(logprobs, allowed, strict=True):
        after = None if lm is None else dict(zip(beams, lm.logprobs(list(beams)), strict=True))
        grown: dict[Prefix, _Paths] = {}
        for prefix, paths in beams.items():
            _go_on(grown, prefix, paths, (frame, tokens, blank), None if after is None else after[prefix])
        beams = _pruned(grown, search)
        if lm is not None:
            lm.keep({known for prefix in beams for known in (prefix, prefix[:-1])})
    ends = dict.fromkeys(beams, 0.0)
    if lm is not None and end is not None:
        ends = dict(zip(beams, lm.logprobs(list(beams))[:, end].tolist(), strict=True))
    found = [_finished(prefix, paths, ends[prefix], search) for prefix, paths in beams.items()]
    return sorted(found, key=lambda one: -one.score)


@dataclass
class _Paths:
    """The log-probabilities of all paths of a text that end in a blank or in its last token, and its LM score."""

    blank: float
    token: float
    lm: float

    @property
    def total(self) -> float:
        return _add(self.blank, self.token)


def _go_on(
    grown: dict[Prefix, _Paths],
    prefix: Prefix,
    paths: _Paths,
    frame: tuple[NDArray[np.float64], NDArray[np.int64], int],
    after: NDArray[np.float64] | None,
) -> None:
    """Add the paths of one text by one frame: a blank, its last token again, or another token."""
    logprobs, tokens, blank = frame
    same = grown.setdefault(prefix, _Paths(NEVER, NEVER, paths.lm))
    same.blank = _add(same.blank, paths.total + float(logprobs[blank]))
    if prefix:
        same.token = _add(same.token, paths.token + float(logprobs[prefix[-1]]))
    for token in tokens.tolist():
        before = paths.blank if prefix and token == prefix[-1] else paths.total
        if before == NEVER:
            continue
        lm = paths.lm + (0.0 if after is None else float(after[token]))
        longer = grown.setdefault((*prefix, token), _Paths(NEVER, NEVER, lm))
        longer.token = _add(longer.token, before + float(logprobs[token]))


def _pruned(grown: dict[Prefix, _Paths], search: PrefixBeamSearch) -> dict[Prefix, _Paths]:
    ranked = sorted(grown.items(), key=lambda item: (-_score(item[0], item[1], 0.0, search), item[0]))
    return dict(ranked[: search.beams])


def _score(prefix: Prefix, paths: _Paths, end: float, search: PrefixBeamSearch) -> float:
    return paths.total + search.lm_weight * (paths.lm + end) + search.length_bonus * len(prefix)


def _finished(prefix: Prefix, paths: _Paths, end: float, search: PrefixBeamSearch) -> Recognized:
    scores = {"ctc": paths.total} | ({"lm": paths.lm + end} if search.lm_weight else {})
    return Recognized(prefix, _score(prefix, paths, end, search), scores)


def _add(left: float, right: float) -> float:
    """Return the logarithm of the sum of two numbers that are given by their logarithms."""
    high, low = max(left, right), min(left, right)
    return high if low == NEVER else high + math.log1p(math.exp(low - high))
