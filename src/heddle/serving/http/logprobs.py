"""Log-probabilities in OpenAI's two shapes. A chosen token and the same among the best are the same number."""

from collections.abc import Sequence
from typing import Any

from heddle.decoding.generation import TokenLogprobs
from heddle.serving.http.served_model import ServedModel

LOWEST = -9999.0  # for -inf, which JSON does not have


def number(logprob: float) -> float:
    """Return a log-probability as JSON can hold it."""
    return max(LOWEST, logprob)


class TokenTexts:
    """The texts of tokens, as responses show them."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model

    def text(self, id: int) -> str:
        """Return a token as text; bytes that are no whole character are escaped."""
        return self.model.tokenizer.token(id) if id < self.model.tokenizer.vocab else ""

    def completion(
        self, ids: Sequence[int], found: Sequence[TokenLogprobs | None], count: int, offset: int = 0
    ) -> dict[str, Any]:
        """Return the log-probabilities of a completion."""
        texts = [self.text(id) for id in ids]
        offsets: list[int] = []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [None if one is None else number(one.logprob) for one in found],
            "top_logprobs": [self._best(id, one, count) for id, one in zip(ids, found, strict=True)],
            "text_offset": offsets,
        }

    def _best(self, id: int, found: TokenLogprobs | None, count: int) -> dict[str, float] | None:
        """Return the best tokens by their text, the chosen one among them; of two that are spelt alike, the better."""
        if found is None or not count:
            return None
        best: dict[str, float] = {}
        for other, logprob in (*found.alternatives[:count], (id, found.logprob)):
            text = self.text(other)
            best[text] = max(number(logprob), best.get(text, LOWEST))
        return best

    def chat(self, ids: Sequence[int], found: Sequence[TokenLogprobs], count: int) -> dict[str, Any]:
        """Return the log-probabilities of an answer in a chat."""
        content = []
        for id, one in zip(ids, found, strict=True):
            best = [self._entry(other, logprob) for other, logprob in one.alternatives[:count]]
            content.append(self._entry(id, one.logprob) | {"top_logprobs": best})
        return {"content": content, "refusal": None}

    def _entry(self, id: int, logprob: float) -> dict[str, Any]:
        known = self.model.token_bytes
        raw = list(known[id]) if known is not None and id < len(known) else None
        return {"token": self.text(id), "logprob": number(logprob), "bytes": raw}
