"""LM: a model and its tokenizer behind one door that takes text and gives text, odds or vectors."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.checkpoints import find_run, load_run
from heddle.core import UsageError, choose_hardware
from heddle.decoding import Completion, How, at_rest, complete, generate, nll_of, readable, stream, windows_for
from heddle.models import LanguageModel
from heddle.text import TextStream, Tokenizer

Show = Callable[[int, str], None]  # (row, new text)
Texts = TypeVar("Texts", str, list[str])  # one in, one out; a list in, a list out


@dataclass(frozen=True)
class Piece:
    """A token or a word of a scored text."""

    text: str
    logprob: float  # nats

    @property
    def surprisal(self) -> float:
        """Return how unexpected it was, in bits."""
        return max(0.0, -self.logprob / math.log(2))


@dataclass(frozen=True)
class Scored:
    """How probable a text is, as a beginning of a document; the document's end is not counted."""

    text: str
    tokens: tuple[Piece, ...]
    words: tuple[Piece, ...]  # what whitespace separates, with the whitespace before; none where a token is unknown

    @property
    def logprob(self) -> float:
        """Return the log-probability of the whole text, in nats."""
        return math.fsum(token.logprob for token in self.tokens)

    @property
    def surprisal(self) -> float:
        """Return how unexpected the whole text is, in bits."""
        return max(0.0, -self.logprob / math.log(2))

    @property
    def perplexity(self) -> float:
        """Return the perplexity per token."""
        return math.exp(min(-self.logprob / max(1, len(self.tokens)), 700.0))

    @property
    def bits_per_byte(self) -> float:
        """Return the bits that each byte of the text would take to code."""
        return self.surprisal / max(1, len(self.text.encode()))


@dataclass(frozen=True)
class Answer:
    """A text that was generated: its words, its ids and why it ended."""

    text: str
    completion: Completion


class LM:
    """A language model ready for use: `lm.generate("Once")`, `lm.score(["a b"])`, `lm.logits([[1, 2]])`."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, config: Mapping[str, Any] | None = None) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.config: Mapping[str, Any] = {} if config is None else config

    def generate(  # noqa: PLR0913 - the words of the command line
        self,
        prompt: Texts,
        *,
        max_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int = 0,
        stop: str | Sequence[str] = (),
    ) -> Texts:
        """Continue a text, or each of a list of texts; the new text alone is returned, and ends before a stop."""
        how = How(max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
        if isinstance(prompt, str):
            return self.answer([prompt], how, stop)[0].text
        return [answer.text for answer in self.answer(prompt, how, stop)]

    def answer(
        self, prompts: Sequence[str], how: How, stop: str | Sequence[str] = (), show: Show | None = None
    ) -> list[Answer]:
        """Continue texts, and say why each ended; `show` is given every piece of text as soon as it is certain."""
        starts = [self.begin(prompt) for prompt in prompts for _ in range(how.samples)]
        streams = [TextStream(self.tokenizer, start, _listed(stop)) for start in starts]
        pieces: list[list[str]] = [[] for _ in starts]

        def write(row: int, text: str) -> None:
            pieces[row].append(text)
            if show is not None and text:
                show(row, text)

        def halt(row: int, id: int) -> bool:
            write(row, streams[row].push(id))
            return streams[row].stopped

        found = complete(self.model, starts[:: how.samples], self._ended(how), halt)
        for row, text in enumerate(streams):
            write(row, text.flush())
        return [Answer("".join(p), c) for p, c in zip(pieces, found, strict=True)]

    def generate_ids(  # noqa: PLR0913
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int = 0,
    ) -> list[list[int]]:
        """Continue ids exactly as given (none at all: from the beginning of a document); new ids only, end included."""
        how = How(max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
        return generate(self.model, prompts, self._ended(how))

    def stream(  # noqa: PLR0913
        self,
        prompt: str,
        *,
        max_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int = 0,
        stop: str | Sequence[str] = (),
    ) -> Iterator[str]:
        """Yield the text of `generate` piece by piece, never half a character."""
        how = How(max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
        start = self.begin(prompt)
        text = TextStream(self.tokenizer, start, _listed(stop))
        for id in stream(self.model, start, self._ended(how)):
            if piece := text.push(id):
                yield piece
            if text.stopped:
                return
        if piece := text.flush():
            yield piece

    def begin(self, text: str) -> list[int]:
        """Return the ids of a text at the beginning of a document: the end of the one before, then its own."""
        return [self.tokenizer.end, *self.tokenizer.encode(text)]

    def _ended(self, how: How) -> How:
        return how.at_end(self.tokenizer.end)

    def score(self, texts: Sequence[str], *, window: int | None = None, stride: int | None = None) -> list[Scored]:
        """Tell how probable each text is as the beginning of a document, token by token and word by word."""
        if isinstance(texts, str):
            raise UsageError("score: want a list of texts, got one text")
        ids = self.tokenizer.encode_many(texts)
        losses = nll_of(self.model, ids, windows_for(self.model, window, stride), self.tokenizer.end)
        return [self._scored(t, i, loss.tolist()) for t, i, loss in zip(texts, ids, losses, strict=True)]

    def _scored(self, text: str, ids: Sequence[int], losses: Sequence[float]) -> Scored:
        tokens = tuple(Piece(self.tokenizer.token(i), -loss) for i, loss in zip(ids, losses, strict=True))
        if self.tokenizer.unknown in ids:  # such a token does not say which of the text it stands for
            return Scored(text, tokens, ())
        pour = TextStream(self.tokenizer)
        pieces = [Piece(pour.push(i), -loss) for i, loss in zip(ids, losses, strict=True)]
        return Scored(text, tokens, tuple(words_of([*pieces, Piece(pour.flush(), 0.0)])))

    @torch.no_grad()
    def logits(self, ids: Sequence[Sequence[int]]) -> Float[Tensor, "batch length vocab"]:
        """Return scores whose softmax is the distribution of the token after each of the ids, as given."""
        try:
            rows = [readable(self.model, row) for row in ids]
        except TypeError:
            raise UsageError("logits: want rows of ids, such as [[1, 2, 3]]") from None
        if len({len(row) for row in rows}) != 1:
            raise UsageError("logits: want one or more rows of one length")
        with at_rest(self.model):
            scores: Tensor = self.model.logits(torch.tensor(rows, device=next(self.model.parameters()).device))
        return scores

    @torch.no_grad()
    def embed(self, texts: Sequence[str]) -> Float[Tensor, "batch width"]:
        """Return a vector for each text: the mean of the last layer's vectors over its tokens and its beginning."""
        if isinstance(texts, str):
            raise UsageError("embed: want a list of texts, got one text")
        rows = [torch.tensor(readable(self.model, self.begin(text))) for text in texts]
        if not rows:
            raise UsageError("embed: want one or more texts")
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(next(self.model.parameters()).device)
        lengths = torch.tensor([len(row) for row in rows], device=padded.device)[:, None]
        with at_rest(self.model):
            vectors = self.model(padded)
        real = torch.arange(padded.shape[1], device=padded.device) < lengths
        means: Tensor = (vectors * real[..., None]).sum(1) / lengths
        return means


def load(path: str | Path | None = None, *, device: str = "auto", dtype: str = "float32", best: bool = False) -> LM:
    """Load a model from a run's folder or name, or a checkpoint's folder; None: the newest run under `runs`."""
    loaded = load_run(find_run(path), best=best, hardware=choose_hardware(device, dtype))
    return LM(loaded.model, loaded.tokenizer, loaded.config)


def _listed(stop: str | Sequence[str]) -> Sequence[str]:
    return [stop] if isinstance(stop, str) else stop


def words_of(pieces: Sequence[Piece]) -> list[Piece]:
    """Join pieces into words; whitespace goes with the word after it, at the end with the last one."""
    words: list[list[Piece]] = []
    last = ""
    for piece in pieces:
        begins = piece.text[:1].isspace() or (bool(piece.text) and last[-1:].isspace())
        if not words or (begins and last.strip()):
            words.append([])
            last = ""
        words[-1].append(piece)
        last += piece.text
    if len(words) > 1 and not last.strip():
        words[-2:] = [words[-2] + words[-1]]
    joined = [Piece("".join(p.text for p in word).strip(), math.fsum(p.logprob for p in word)) for word in words]
    return [word for word in joined if word.text or word.logprob]
