"""LM: a model and its tokenizer behind one door that takes text and gives text, odds or vectors."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.checkpoints import find_run, load_run
from heddle.core import UsageError, choose_hardware
from heddle.decoding import (
    Completion,
    How,
    Wishes,
    at_rest,
    complete,
    generate,
    how_of,
    nll_given,
    nll_of,
    padded,
    readable,
    readable_source,
    stream,
    windows_for,
)
from heddle.models import EncoderDecoder, LanguageModel, Predictor
from heddle.nn import Context
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
    """A model ready for use: `lm.generate("Once")`, `lm.score(["a b"])`, `lm.logits([[1, 2]])`.

    Of an encoder-decoder the text to generate from is the source, and what is generated the target.
    """

    def __init__(self, model: Predictor, tokenizer: Tokenizer, config: Mapping[str, Any] | None = None) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.config: Mapping[str, Any] = {} if config is None else config

    def generate(self, prompt: Texts, *, stop: str | Sequence[str] = (), **wishes: Unpack[Wishes]) -> Texts:
        """Continue a text, or each of a list of texts; the new text alone is returned, and ends before a stop.

        The wishes are the words of the command line: max_tokens, temperature, top_k, top_p, min_p, seed, beams,
        length_penalty, stretch. An encoder-decoder answers the text instead: it translates, say.
        """
        how = how_of(wishes)
        if isinstance(prompt, str):
            return self.answer([prompt], how, stop)[0].text
        return [answer.text for answer in self.answer(prompt, how, stop)]

    def answer(
        self, prompts: Sequence[str], how: How, stop: str | Sequence[str] = (), show: Show | None = None
    ) -> list[Answer]:
        """Continue texts, and say why each ended; `show` is given every piece of text as soon as it is certain."""
        starts, sources = self._opened(prompts)
        each = [start for start in starts for _ in range(how.samples)]
        streams = [TextStream(self.tokenizer, start, _listed(stop)) for start in each]
        pieces: list[list[str]] = [[] for _ in each]

        def write(row: int, text: str) -> None:
            pieces[row].append(text)
            if show is not None and text:
                show(row, text)

        def halt(row: int, id: int) -> bool:
            write(row, streams[row].push(id))
            return streams[row].stopped

        if how.beams == 1:
            found = complete(self.model, starts, self._ended(how), sources, halt)
        elif stop:
            raise UsageError("stop: want none with several beams, which end at the end token alone")
        else:
            found = complete(self.model, starts, self._ended(how), sources)
            for row, completion in enumerate(found):
                for id in completion.ids:
                    halt(row, id)
        for row, text in enumerate(streams):
            write(row, text.flush())
        return [Answer("".join(p), c) for p, c in zip(pieces, found, strict=True)]

    def generate_ids(self, prompts: Sequence[Sequence[int]], **wishes: Unpack[Wishes]) -> list[list[int]]:
        """Continue ids exactly as given (none at all: from the beginning of a document); new ids only, end included.

        Of an encoder-decoder they are the source's, whose last is the end token where it was trained so.
        """
        how = self._ended(how_of(wishes))
        if isinstance(self.model, EncoderDecoder):
            return generate(self.model, [[]] * len(prompts), how, prompts)
        return generate(self.model, prompts, how)

    def stream(self, prompt: str, *, stop: str | Sequence[str] = (), **wishes: Unpack[Wishes]) -> Iterator[str]:
        """Yield the text of `generate` piece by piece, never half a character."""
        starts, sources = self._opened([prompt])
        text = TextStream(self.tokenizer, starts[0], _listed(stop))
        how = self._ended(how_of(wishes))
        for id in stream(self.model, starts[0], how, None if sources is None else sources[0]):
            if piece := text.push(id):
                yield piece
            if text.stopped:
                return
        if piece := text.flush():
            yield piece

    def begin(self, text: str) -> list[int]:
        """Return the ids of a text at the beginning of a document: the end of the one before, then its own."""
        return [self.tokenizer.end, *self.tokenizer.encode(text)]

    def source(self, text: str) -> list[int]:
        """Return the ids of a text as an encoder reads it: its own, then the end."""
        return [*self.tokenizer.encode(text), self.tokenizer.end]

    def _opened(self, texts: Sequence[str]) -> tuple[list[list[int]], list[list[int]] | None]:
        """Return what to go on from for each text, and the sources where the model has an encoder."""
        if isinstance(self.model, EncoderDecoder):
            return [[self.tokenizer.end] for _ in texts], [self.source(text) for text in texts]
        return [self.begin(text) for text in texts], None

    def _ended(self, how: How) -> How:
        return how.at_end(self.tokenizer.end)

    def score(
        self,
        texts: Sequence[str],
        *,
        source: Sequence[str] | None = None,
        window: int | None = None,
        stride: int | None = None,
    ) -> list[Scored]:
        """Tell how probable each text is as the beginning of a document, token by token and word by word.

        An encoder-decoder is given the source of each, and reads both whole.
        """
        if isinstance(texts, str) or isinstance(source, str):
            raise UsageError("score: want a list of texts, got one text")
        ids = self.tokenizer.encode_many(texts)
        losses = self._losses(ids, source, window, stride)
        return [self._scored(t, i, loss.tolist()) for t, i, loss in zip(texts, ids, losses, strict=True)]

    def _losses(
        self, ids: list[list[int]], source: Sequence[str] | None, window: int | None, stride: int | None
    ) -> Iterable[Tensor]:
        end = self.tokenizer.end
        if isinstance(self.model, LanguageModel):
            if source is not None:
                raise UsageError("score: want no source, for a language model has no encoder to read it")
            return nll_of(self.model, ids, windows_for(self.model, window, stride), end)
        assert isinstance(self.model, EncoderDecoder)
        if source is None:
            raise UsageError("score: want source=[...], one for each text, for an encoder-decoder")
        if window is not None or stride is not None:
            raise UsageError("score: want no window, for an encoder-decoder reads source and text whole")
        return nll_given(self.model, [self.source(text) for text in source], ids, end)

    def _scored(self, text: str, ids: Sequence[int], losses: Sequence[float]) -> Scored:
        tokens = tuple(Piece(self.tokenizer.token(i), -loss) for i, loss in zip(ids, losses, strict=True))
        if self.tokenizer.unknown in ids:  # such a token does not say which of the text it stands for
            return Scored(text, tokens, ())
        pour = TextStream(self.tokenizer)
        pieces = [Piece(pour.push(i), -loss) for i, loss in zip(ids, losses, strict=True)]
        return Scored(text, tokens, tuple(words_of([*pieces, Piece(pour.flush(), 0.0)])))

    @torch.no_grad()
    def logits(
        self, ids: Sequence[Sequence[int]], *, source: Sequence[Sequence[int]] | None = None
    ) -> Float[Tensor, "batch length vocab"]:
        """Return scores whose softmax is the distribution of the token after each of the ids, as given.

        Of an encoder-decoder they are the target's, and `source` holds those of each row's source.
        """
        try:
            rows = [readable(self.model, row) for row in ids]
        except TypeError:
            raise UsageError("logits: want rows of ids, such as [[1, 2, 3]]") from None
        if len({len(row) for row in rows}) != 1:
            raise UsageError("logits: want one or more rows of one length")
        inputs, _ = padded(rows, next(self.model.parameters()).device)
        with at_rest(self.model):
            scores: Tensor = self.model.logits(inputs, self._given(source, len(rows)))
        return scores

    def _given(self, source: Sequence[Sequence[int]] | None, rows: int) -> Context:
        """Return the context in which a model reads: with what its encoder understood of the sources, if it has one."""
        if not isinstance(self.model, EncoderDecoder):
            if source is not None:
                raise UsageError("logits: want no source, for a language model has no encoder to read it")
            return Context()
        if source is None or len(source) != rows:
            found = "none" if source is None else str(len(source))
            raise UsageError(
                f"logits: want source=[[...]] with {rows} rows of ids, for an encoder-decoder, got {found}"
            )
        read = [readable_source(self.model, row) for row in source]
        return Context(memory=self.model.encode(*padded(read, next(self.model.parameters()).device)))

    @torch.no_grad()
    def embed(self, texts: Sequence[str]) -> Float[Tensor, "batch width"]:
        """Return a vector for each text: the mean of the last layer's vectors over its tokens and its beginning.

        Of an encoder-decoder it is the mean of what the encoder understood, the end token included.
        """
        if isinstance(texts, str):
            raise UsageError("embed: want a list of texts, got one text")
        if not texts:
            raise UsageError("embed: want one or more texts")
        with at_rest(self.model):
            vectors, real = self._vectors(texts)
        means: Tensor = (vectors * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        return means

    def _vectors(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return the last vectors of texts, and which of them are real."""
        device = next(self.model.parameters()).device
        if isinstance(self.model, EncoderDecoder):
            rows = [readable_source(self.model, self.source(text)) for text in texts]
            ids, lengths = padded(rows, device)
            memory = self.model.encode(ids, lengths)
            vectors, allowed = memory.layers[-1], memory.allowed
            return vectors, vectors.new_ones(vectors.shape[:2]) if allowed is None else allowed[:, 0, 0]
        rows = [readable(self.model, self.begin(text)) for text in texts]
        vectors = self.model(padded(rows, device)[0])
        lengths = torch.tensor([len(row) for row in rows], device=device)
        return vectors, torch.arange(vectors.shape[1], device=device) < lengths[:, None]


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
