"""LM: a model and its tokenizer behind one door that takes text and gives text, odds or vectors."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.checkpoints import find_run, load_run
from heddle.core import UsageError, choose_hardware
from heddle.decoding import (
    Draft,
    ModelDraft,
    Wishes,
    at_rest,
    generate,
    masked_output,
    padded,
    readable,
    readable_source,
    readable_whole,
)
from heddle.models import Encoder, EncoderDecoder, Model, Predictor
from heddle.nn import Context
from heddle.tasks import (
    Passage,
    Readings,
    Rules,
    Scored,
    Stop,
    Told,
    Writer,
    reading_of,
    scorer,
    writer,
)
from heddle.text import Tokenizer

Given = TypeVar("Given", str, str | None)
Texts = TypeVar("Texts", str, list[str])  # one in, one out; a list in, a list out


class LM:
    """A model ready for use: `lm.generate("Once")`, `lm.score(["a b"])`, `lm.logits([[1, 2]])`.

    Of an encoder-decoder the text to generate from is the source, and what is generated the target.
    """

    def __init__(self, model: Model, tokenizer: Tokenizer, config: Mapping[str, Any] | None = None) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.config: Mapping[str, Any] = {} if config is None else config

    @property
    def predictor(self) -> Predictor:
        """Return the model as one that predicts each next token, or say that it does not."""
        if not isinstance(self.model, Predictor):
            raise UsageError("want a model that writes; an encoder reads whole texts, to score and to embed them")
        return self.model

    def generate(
        self,
        prompt: Texts,
        *,
        stop: Stop = (),
        rules: Rules | None = None,
        draft: "LM | Draft | None" = None,
        **wishes: Unpack[Wishes],
    ) -> Texts:
        """Continue a text, or each of a list of texts; the new text alone is returned, and ends before a stop.

        The wishes are the words of the command line: max_tokens, temperature, top_k, beams, seed and the rest of
        `Wishes`; a bias may name tokens by their text. The new text obeys the rules, if there are any; a draft guesses
        ahead, for speed. An encoder-decoder answers the text instead: it translates, say. With several samples, those
        of a text stand side by side in the list.
        """
        task = self.writer(draft)
        how = task.how(wishes)
        if isinstance(prompt, str) and how.samples > 1:
            raise UsageError("samples: want 1 for one text, of which one comes back; several come of a list of texts")
        texts = [prompt] if isinstance(prompt, str) else prompt
        found = [answer.text for answer in task.answer(task.requests(texts, how, rules), how, stop)]
        return found[0] if isinstance(prompt, str) else found

    def generate_ids(self, prompts: Sequence[Sequence[int]], **wishes: Unpack[Wishes]) -> list[list[int]]:
        """Continue ids exactly as given (none at all: from the beginning of a document); new ids only, end included.

        Of an encoder-decoder they are the source's, whose last is the end token where it was trained so.
        """
        how = self.writer().how(wishes).at_end(self.tokenizer.end, self.tokenizer.vocab)
        if isinstance(self.model, EncoderDecoder):
            return generate(self.predictor, [[]] * len(prompts), how, prompts)
        return generate(self.predictor, prompts, how)

    def stream(
        self, prompt: str, *, stop: Stop = (), rules: Rules | None = None, **wishes: Unpack[Wishes]
    ) -> Iterator[str]:
        """Yield the text of `generate` piece by piece, never half a character."""
        yield from (told.text for told in self.follow([prompt], stop=stop, rules=rules, **wishes) if told.text)

    def follow(
        self, prompts: Sequence[str], *, stop: Stop = (), rules: Rules | None = None, **wishes: Unpack[Wishes]
    ) -> Iterator[Told]:
        """Yield what each text's row writes as soon as it is certain, and with its last piece why it ended."""
        task = self.writer()
        how = task.how(wishes)
        return task.follow(task.requests(prompts, how, rules), how, stop)

    def writer(self, draft: "LM | Draft | None" = None) -> Writer:
        """Return the model as one that writes; another model of the same tokenizer may guess ahead."""
        if isinstance(draft, LM):
            if draft.tokenizer.fingerprint != self.tokenizer.fingerprint:
                raise UsageError("draft: want a model with the same tokenizer, got one with another")
            draft = ModelDraft(model=draft.predictor)
        return writer(self.model, self.tokenizer, draft)

    def begin(self, text: str) -> list[int]:
        """Return the ids of a text at the beginning of a document: the end of the one before, then its own."""
        return [self.tokenizer.end, *self.tokenizer.encode(text)]

    def source(self, text: str) -> list[int]:
        """Return the ids of a text as an encoder reads it: its own, then the end."""
        return [*self.tokenizer.encode(text), self.tokenizer.end]

    def score(
        self,
        texts: Sequence[str],
        *,
        source: Sequence[str] | None = None,
        context: Sequence[str] | None = None,
        **reading: Unpack[Readings],
    ) -> list[Scored]:
        """Tell how probable each text is as the beginning of a document, token by token and word by word.

        An encoder-decoder is given the source of each, and reads both whole; to an encoder a text is as probable as it
        can tell each token that is hidden. With a `context` for each, what is scored is the text that follows it
        directly: begin it with the space that parts them. The other words are those of `Reading`: window and stride of
        a language model, what to hide from an encoder, which spaces a word holds.
        """
        if any(isinstance(given, str) for given in (texts, source, context)):
            raise UsageError("score: want a list of texts, got one text")
        sources, contexts = _each("source", source, texts, None), _each("context", context, texts, "")
        passages = [Passage(*each) for each in zip(texts, contexts, sources, strict=True)]
        return scorer(self.model, self.tokenizer, reading_of(reading)).run(passages)

    @torch.no_grad()
    def logits(
        self, ids: Sequence[Sequence[int]], *, source: Sequence[Sequence[int]] | None = None
    ) -> Float[Tensor, "batch length vocab"]:
        """Return scores whose softmax is the distribution of the token after each of the ids, as given.

        Of an encoder-decoder they are the target's, and `source` holds those of each row's source. Of an encoder they
        are of the token that stands at each place itself.
        """
        try:
            rows = [self._readable(row) for row in ids]
        except (TypeError, ValueError):
            raise UsageError("logits: want rows of ids, such as [[1, 2, 3]]") from None
        if len({len(row) for row in rows}) != 1:
            raise UsageError("logits: want one or more rows of one length")
        inputs, _ = padded(rows, next(self.model.parameters()).device)
        with at_rest(self.model):
            ctx = self._given(source, len(rows))
            if isinstance(self.model, Encoder):
                return masked_output(self.model).scores(*self.model.run(inputs, ctx))
            return self.predictor.logits(inputs, ctx)

    def _readable(self, ids: Sequence[int]) -> Sequence[int]:
        if isinstance(self.model, Encoder):
            return list(readable_whole(self.model, ids).tolist())
        return readable(self.predictor, ids)

    def _given(self, source: Sequence[Sequence[int]] | None, rows: int) -> Context:
        """Return the context in which a model reads: with what its encoder understood of the sources, if it has one."""
        if not isinstance(self.model, EncoderDecoder):
            if source is not None:
                raise UsageError("logits: want no source, for this model reads one text")
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
        rows = [self._readable(self.begin(text)) for text in texts]
        ids, lengths = padded(rows, device)
        if isinstance(self.model, Encoder):
            vectors, ctx = self.model.run(ids, Context(new=lengths))
            real = ctx.real(vectors)
            return vectors, vectors.new_ones(vectors.shape[:2]) if real is None else real
        vectors = self.predictor(ids)  # padding stands on the right, where the past cannot see it
        return vectors, torch.arange(ids.shape[1], device=device) < torch.tensor([[len(row)] for row in rows]).to(
            device
        )


def load(path: str | Path | None = None, *, device: str = "auto", dtype: str = "float32", best: bool = False) -> LM:
    """Load a model from a run's folder or name, or a checkpoint's folder; None: the newest run under `runs`."""
    loaded = load_run(find_run(path), best=best, hardware=choose_hardware(device, dtype))
    return LM(loaded.model, loaded.tokenizer, loaded.config)


def _each(name: str, given: Sequence[Given] | None, texts: Sequence[str], default: Given) -> Sequence[Given]:
    """Return one for each text, the default where none is given."""
    if given is not None and len(given) != len(texts):
        raise UsageError(f"{name}: want {len(texts)}, one for each text, got {len(given)}")
    return [default] * len(texts) if given is None else given
