"""Forward passes of each kind of model over one text, from which all explanations are computed."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from heddle.core import UsageError, brief
from heddle.decoding.runtime import Source, check_prompt, check_source, device_of, eval_mode
from heddle.decoding.scoring import check_encoder_input
from heddle.explain.inputs.pictures import SourcePicture, source_picture
from heddle.models.networks import BaseTower, Encoder, EncoderDecoder, LanguageModel, Model
from heddle.nn.base import Context, upcast
from heddle.nn.outputs import MaskedTokenOutputConfig, Output
from heddle.nn.state import Memory
from heddle.text.tokenizers import Tokenizer

CHUNK = 1 << 13  # tokens of copies of a text that are read at once


@dataclass(frozen=True)
class TokenSequence:
    """A row of tokens that a tower of the model reads."""

    name: str
    ids: tuple[int, ...]
    texts: tuple[str, ...]
    tower: BaseTower
    prefix: str  # of the names of the tower's modules
    picture: SourcePicture | None = None  # where it is an image or a video


class Reading(ABC):
    """A model and what it reads; `logits` is the model's own forward pass, in evaluation mode."""

    model: Model
    tokenizer: Tokenizer | None
    sequences: tuple[TokenSequence, ...]  # the last one is predicted
    recomputes: bool = False  # whether an observer is calling the model's modules: no step of the forward pass

    @contextlib.contextmanager
    def recomputing(self) -> Iterator[None]:
        """Mark the calls of modules inside as no steps of the forward pass."""
        before, self.recomputes = self.recomputes, True
        try:
            yield
        finally:
            self.recomputes = before

    @property
    def main(self) -> TokenSequence:
        """Return the sequence whose tokens are predicted."""
        return self.sequences[-1]

    def ids(self, sequence: TokenSequence, rows: int = 1) -> Tensor:
        """Return the ids of a sequence as a batch of equal rows."""
        return torch.tensor(sequence.ids, device=device_of(self.model)).expand(rows, -1)

    def logits(self) -> Tensor:
        """Return the logits of one forward pass, [1, length, vocab], or [1, classes]."""
        with self.looking():
            return self.forward()

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Put the model into evaluation mode, without gradients."""
        with eval_mode(self.model), torch.no_grad():
            yield

    @abstractmethod
    def forward(self) -> Tensor:
        """Run the model once on all sequences."""

    @abstractmethod
    def head_logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of vectors after the last norm; refuse where words are not predicted."""

    def stream_logits(self, stream: Tensor) -> Tensor:
        """Return what the last norm and the head make of the stream after a layer, in the pass that is watched."""
        return self.head_logits(self.main.tower.norm(stream))

    @abstractmethod
    def place_logits(self, place: int) -> Tensor:
        """Return the logits at one place, [vocab], or of the classes."""

    @property
    def predicts(self) -> str:
        """Return what the logits at a place predict."""
        return "next token"

    @abstractmethod
    def target(self, text: str | None) -> tuple[int, ...]:
        """Return the ids of a target; None: what the model predicts."""

    @abstractmethod
    def logprob(self, target: Sequence[int], rows: int = 1) -> Tensor:
        """Return the log-probability of a target after the text in nats, for each of several equal rows."""

    def with_output(self, output: Sequence[int]) -> "Reading":
        """Return the same reading with another output, where it has one beside its text."""
        return self

    @abstractmethod
    def name_target(self, target: Sequence[int]) -> str:
        """Return a target in words."""

    def token(self, id: int) -> str:
        """Return the text of a token."""
        return f"#{id}" if self.tokenizer is None else self.tokenizer.token(id)

    def _predicted_tokens(self, text: str | None) -> tuple[int, ...]:
        if text is None:
            return (int(self.logits()[0, -1].argmax()),)
        tokenizer = needs_tokenizer(self.tokenizer, "target")
        found = tuple((tokenizer.for_target if self.model.reads_source else tokenizer).encode(text))
        if not found:
            raise UsageError(f"target: want one token or more, got {brief(text)}")
        return found


class DecoderReading(Reading):
    """A language model, which predicts the next token at every place."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer | None, ids: Sequence[int]) -> None:
        self.model, self.tokenizer, self.language_model = model, tokenizer, model
        ids = tuple(check_prompt(model, ids))
        self.sequences = (_token_sequence("text", ids, tokenizer, model, ""),)

    def forward(self) -> Tensor:
        return self.language_model.logits(self.ids(self.main))

    def head_logits(self, hidden: Tensor) -> Tensor:
        return self.language_model.head.logits(hidden)

    def place_logits(self, place: int) -> Tensor:
        return self.head_logits(self.language_model(self.ids(self.main))[:, place])[0]

    def target(self, text: str | None) -> tuple[int, ...]:
        return self._predicted_tokens(text)

    def logprob(self, target: Sequence[int], rows: int = 1) -> Tensor:
        inputs = _continued(self.ids(self.main, rows), target)
        return _sum_logprobs(self.head_logits(self.language_model(inputs)[:, -len(target) :]), target)

    def name_target(self, target: Sequence[int]) -> str:
        return "".join(self.token(id) for id in target)


class PairReading(Reading):
    """An encoder-decoder with its source and the output that it writes."""

    def __init__(
        self, model: EncoderDecoder, tokenizer: Tokenizer | None, source: Source, output: Sequence[int]
    ) -> None:
        self.model, self.tokenizer, self.pair = model, tokenizer, model
        self.memory: Memory | None = None  # of the last pass
        self.source, written = check_source(model, source), tuple(check_prompt(model, output))
        writer = None if tokenizer is None else tokenizer.for_target
        output_sequence = _token_sequence("output", written, writer, model.decoder, "decoder.")
        self.sequences = (self._source_sequence(), output_sequence)

    def _source_sequence(self) -> TokenSequence:
        """Return the sequence of the source: its tokens, or the places of what is no text."""
        tower, source = self.pair.encoder, self.source
        if not isinstance(source, Tensor):
            return _token_sequence("source", tuple(source), self.tokenizer, tower, "encoder.")
        names = tower.embedding.place_names(source[None])
        picture = source_picture(tower.embedding, source)
        return TokenSequence("source", tuple(range(len(names))), names, tower, "encoder.", picture)

    def _encode(self, rows: int = 1) -> Memory:
        """Read the source, as a batch of equal rows."""
        if not isinstance(self.source, Tensor):
            return self.pair.encode(self.ids(self.sequences[0], rows))
        given = self.source.to(device_of(self.model))
        return self.pair.encode(given.expand(rows, *given.shape))

    def token(self, id: int) -> str:
        return f"#{id}" if self.tokenizer is None else self.tokenizer.for_target.token(id)

    def forward(self) -> Tensor:
        self.memory = self._encode()
        return self.pair.logits(self.ids(self.main), Context(memory=self.memory))

    def head_logits(self, hidden: Tensor) -> Tensor:
        return self.pair.head.logits(hidden)

    def stream_logits(self, stream: Tensor) -> Tensor:
        if self.memory is None:
            raise UsageError("lens: want a source that was read, got none")
        return self.head_logits(self.pair.head.point(self.main.tower.norm(stream), self.memory))

    def place_logits(self, place: int) -> Tensor:
        return self.forward()[0, place]  # a head that copies from the source needs the whole pass

    def target(self, text: str | None) -> tuple[int, ...]:
        return self._predicted_tokens(text)

    def logprob(self, target: Sequence[int], rows: int = 1) -> Tensor:
        memory = self._encode(rows)
        hidden = self.pair(_continued(self.ids(self.main, rows), target), Context(memory=memory))
        return _sum_logprobs(self.head_logits(hidden[:, -len(target) :]), target)

    def with_output(self, output: Sequence[int]) -> "PairReading":
        return PairReading(self.pair, self.tokenizer, self.source, output)

    def name_target(self, target: Sequence[int]) -> str:
        return "".join(self.token(id) for id in target)


class EncoderReading(Reading):
    """An encoder, which fills in masked tokens, or names the class of a text."""

    def __init__(self, model: Encoder, tokenizer: Tokenizer | None, ids: Sequence[int]) -> None:
        self.model, self.tokenizer, self.encoder = model, tokenizer, model
        row = tuple(int(id) for id in check_encoder_input(model, list(ids)))
        self.sequences = (_token_sequence("text", row, tokenizer, model, ""),)
        self.mask = None if tokenizer is None else tokenizer.special_tokens.mask

    @cached_property
    def output_name(self) -> str | None:
        """Return the output that is looked at: masked tokens before classes; None: it has neither."""
        outputs = self.encoder.config.outputs
        masked = [one.name for one in outputs if isinstance(one, MaskedTokenOutputConfig)]
        classes = [one.name for one in outputs if one.class_names and one.reads == "pooled"]
        return next(iter([*masked, *classes]), None)

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes of the output; (): it predicts words."""
        named = [one.class_names for one in self.encoder.config.outputs if one.name == self.output_name]
        return named[0] if named else ()

    @property
    def predicts_words(self) -> bool:
        """Tell whether it predicts masked tokens."""
        return self.output_name is not None and not self.classes

    def output(self) -> Output:
        """Return the module of the output that is looked at."""
        if self.output_name is None:
            raise UsageError("want an encoder with an output for masked tokens or classes; it has neither")
        return self.encoder.output(self.output_name)

    def forward(self) -> Tensor:
        if self.output_name is None:
            return self.encoder(self.ids(self.main))  # type: ignore[no-any-return]
        return self.encoder.scores(self.output_name, self.ids(self.main))

    def head_logits(self, hidden: Tensor) -> Tensor:
        if not self.predicts_words:
            raise UsageError("want an encoder that predicts masked tokens; this one does not")
        return self.output().scores(hidden, Context())

    @property
    def predicts(self) -> str:
        return "class" if self.classes else "masked token"

    def place_logits(self, place: int) -> Tensor:
        if self.classes:
            return self.forward()[0]
        if not self.predicts_words:
            raise UsageError("place: want an encoder with an output for masked tokens or classes, got neither")
        return next(iter(self.masked_logits([place])))

    def masked_logits(self, places: Sequence[int]) -> Iterator[Tensor]:
        """Yield the logits at each place with that token masked, one at a time."""
        if self.mask is None:
            raise UsageError("want a tokenizer with a mask token, got one without")
        per_batch = max(1, CHUNK // len(self.main.ids))
        for first in range(0, len(places), per_batch):
            chosen = torch.tensor(places[first : first + per_batch], device=device_of(self.model))
            rows = self.ids(self.main, len(chosen)).clone()
            each = torch.arange(len(chosen), device=chosen.device)
            rows[each, chosen] = self.mask
            yield from self.head_logits(self.encoder(rows))[each, chosen]

    @property
    def masks(self) -> list[int]:
        """Return the places of masks in the text."""
        return [place for place, id in enumerate(self.main.ids) if id == self.mask]

    def target(self, text: str | None) -> tuple[int, ...]:
        if self.classes:
            if text is not None and text not in self.classes:
                raise UsageError(f"target: want one of {', '.join(self.classes)}, got {brief(text)}")
            return (int(self.logits()[0].argmax()) if text is None else self.classes.index(text),)
        if not self.masks:
            raise UsageError("target: want a text with a mask, such as [MASK], for an encoder, got none")
        if text is None:
            return tuple(int(self.logits()[0, place].argmax()) for place in self.masks)
        found = tuple(needs_tokenizer(self.tokenizer, "target").encode(text))
        if len(found) != len(self.masks):
            raise UsageError(f"target: want {len(self.masks)} tokens, one for each mask, got {len(found)}")
        return found

    def logprob(self, target: Sequence[int], rows: int = 1) -> Tensor:
        if self.output_name is None:
            raise UsageError("target: want an encoder with an output for masked tokens or classes, got neither")
        scores = self.encoder.scores(self.output_name, self.ids(self.main, rows))
        if self.classes:
            return upcast(scores).log_softmax(-1)[:, target[0]]
        return _sum_logprobs(scores[:, self.masks], target)

    def name_target(self, target: Sequence[int]) -> str:
        return self.classes[target[0]] if self.classes else "".join(self.token(id) for id in target)


def needs_tokenizer(tokenizer: Tokenizer | None, what: str) -> Tokenizer:
    """Return the tokenizer; refuse a text where there is none."""
    if tokenizer is None:
        raise UsageError(f"{what}: want ids, because the model came without a tokenizer, got a text")
    return tokenizer


def _token_sequence(
    name: str, ids: tuple[int, ...], tokenizer: Tokenizer | None, tower: BaseTower, prefix: str
) -> TokenSequence:
    texts = tuple(f"#{id}" if tokenizer is None else tokenizer.token(id) for id in ids)
    return TokenSequence(name, ids, texts, tower, prefix)


def _continued(ids: Tensor, target: Sequence[int]) -> Tensor:
    tail = torch.tensor(target[:-1], dtype=ids.dtype, device=ids.device).expand(len(ids), -1)
    return torch.cat((ids, tail), 1)


def _sum_logprobs(logits: Tensor, target: Sequence[int]) -> Tensor:
    chosen = torch.tensor(target, device=logits.device).expand(len(logits), -1)
    return upcast(logits).log_softmax(-1).gather(-1, chosen[..., None])[..., 0].sum(-1)


@contextlib.contextmanager
def replaced_embeddings(given: Mapping[TokenSequence, Tensor]) -> Iterator[None]:
    """Let towers see these vectors in place of their embedded tokens; further tokens keep their own."""
    with contextlib.ExitStack() as hooks:
        for sequence, vectors in given.items():

            def swap(_module: object, _inputs: object, output: Tensor, vectors: Tensor = vectors) -> Tensor:
                return torch.cat((vectors, output[:, vectors.shape[1] :]), 1)

            hooks.callback(sequence.tower.embedding.register_forward_hook(swap).remove)
        yield
