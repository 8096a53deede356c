"""LM: a model and its tokenizer behind one door that takes text and gives text, odds or vectors."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, Unpack, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.arguments import ids_of, path_of, text_of, texts_of, words_of
from heddle.checkpoints import find_source
from heddle.core import ConfigError, UsageError, brief, nearest, system_faults
from heddle.core.system import choose_hardware
from heddle.decoding.generation import generate
from heddle.decoding.runtime import check_prompt, check_source, eval_mode, pad_rows
from heddle.decoding.sampling import GenerationConfig, GenerationOptions, generation_config
from heddle.decoding.scoring import check_encoder_input, length_batches
from heddle.decoding.speculative import Draft, ModelDraft
from heddle.models import count_parameters
from heddle.models.networks import AutoregressiveModel, Model, require
from heddle.models.surgery import merge_adapters
from heddle.nn.base import Context
from heddle.nn.quantization import Bits, quantize_model
from heddle.tasks.generation import StopStrings, TextChunk, TextConstraints, TextGenerator, text_generator
from heddle.tasks.scoring import (
    ScoringInput,
    ScoringOptions,
    TextScore,
    scoring_config,
    text_scorer,
    with_special_tokens,
)
from heddle.text.tokenizers import SpecialTokens, Tokenizer

TOKENIZERS = "tokenizer.json, vocab.json with merges.txt, vocab.txt, a SentencePiece model"
Texts = TypeVar("Texts", str, list[str])  # one in, one out; a list in, a list out

log = logging.getLogger("heddle")


@dataclass(frozen=True)
class Origin:
    """Where a model comes from, and what came along besides its weights."""

    path: Path | None = None
    kind: str = "built here"
    settings: Mapping[str, Any] = field(default_factory=dict)  # the config of the run, or of its makers, as saved
    roles: SpecialTokens | None = None
    template: str | None = None  # of chats
    ours: bool = True  # a run of heddle's, or built here

    @property
    def words(self) -> str:
        """Say what was found and where."""
        return self.kind if self.path is None else f"{self.path}, {self.kind}"


class LM:
    """A model ready for use: `lm.generate("Once")`, `lm.score(["a b"])`, `lm.logits([[1, 2]])`.

    Of an encoder-decoder the text to generate from is the source, and what is generated the target.
    """

    def __init__(self, model: Model, tokenizer: Tokenizer | None, origin: Origin | None = None) -> None:
        self.model, self._tokenizer = model, tokenizer
        self.origin = Origin() if origin is None else origin
        self.roles = self.origin.roles if tokenizer is None else tokenizer.special_tokens

    def __repr__(self) -> str:
        """Say what it is and where it comes from."""
        return f"<LM of {count_parameters(self.model):,} parameters: {self.origin.words}>"

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer, or say that the model came without."""
        if self._tokenizer is None:
            raise UsageError(
                f"{self.origin.path}: has no tokenizer files that tell the end of a text, so it takes ids and no text: "
                "lm.logits, lm.generate_ids; "
                f"for text it wants one of {TOKENIZERS} beside its weights"
            )
        return self._tokenizer

    @property
    def predictor(self) -> AutoregressiveModel:
        """Return the model as one that predicts each next token, or say that it does not."""
        refusal = UsageError("want an autoregressive model; an encoder only scores and embeds texts")
        return require(self.model, AutoregressiveModel, refusal)

    def generate(
        self,
        prompt: Texts,
        *,
        stop: StopStrings = (),
        rules: TextConstraints | None = None,
        draft: "LM | Draft | None" = None,
        **options: Unpack[GenerationOptions],
    ) -> Texts:
        """Continue a text, or each of a list of texts; the new text alone is returned, and ends before a stop.

        The wishes are the words of the command line: max_tokens, temperature, top_k, beams, seed and the rest of
        `Wishes`; a bias may name tokens by their text. The new text obeys the rules, if there are any; a draft guesses
        ahead, for speed. An encoder-decoder answers the text instead: it translates, say. With several samples, those
        of a text stand side by side in the list.
        """
        task = self.writer(draft)
        config = task.generation_config(options)
        if isinstance(prompt, str) and config.samples > 1:
            raise UsageError("samples: want 1 for one text, of which one comes back; several come of a list of texts")
        wish = "a text or a list of texts (lm.generate_ids takes ids)"
        texts = [prompt] if isinstance(prompt, str) else texts_of("generate", prompt, wish)
        found = [answer.text for answer in task.generate(task.requests(texts, config, rules), config, stop)]
        return found[0] if isinstance(prompt, str) else found

    def generate_ids(self, prompts: Sequence[Sequence[int]], **options: Unpack[GenerationOptions]) -> list[list[int]]:
        """Continue ids exactly as given (none at all: from the beginning of a document); new ids only, end included.

        Of an encoder-decoder they are the source's, whose last is the end token where it was trained so.
        """
        rows, config = ids_of("generate_ids", prompts), self._ids_config(options)
        if self.model.reads_source:
            start = () if self.roles is None else self.roles.decoder_start
            return generate(self.predictor, [start] * len(rows), config, rows)
        return generate(self.predictor, rows, config)

    def _ids_config(self, options: GenerationOptions) -> GenerationConfig:
        for name in ("stop", "rules", "draft"):
            if name in options:
                raise UsageError(f"{name}: want it with lm.generate, which writes text")
        if self._tokenizer is not None:
            return with_special_tokens(self.writer().generation_config(options), self._tokenizer)
        config = generation_config(options)
        return config if self.roles is None else config.between(self.roles.begin, self.roles.ends, self.roles.never)

    def stream(
        self,
        prompt: str,
        *,
        stop: StopStrings = (),
        rules: TextConstraints | None = None,
        draft: "LM | Draft | None" = None,
        **options: Unpack[GenerationOptions],
    ) -> Iterator[str]:
        """Yield the text of `generate` piece by piece, never half a character."""
        steps = self.follow([text_of("stream", prompt)], stop=stop, rules=rules, draft=draft, **options)
        return (told.text for told in steps if told.text)

    def follow(
        self,
        prompts: Sequence[str],
        *,
        stop: StopStrings = (),
        rules: TextConstraints | None = None,
        draft: "LM | Draft | None" = None,
        **options: Unpack[GenerationOptions],
    ) -> Iterator[TextChunk]:
        """Yield what each text's row writes as soon as it is certain, and with its last piece why it ended."""
        task = self.writer(draft)
        config = task.generation_config(options)
        return task.stream(task.requests(texts_of("follow", prompts), config, rules), config, stop)

    def writer(self, draft: "LM | Draft | None" = None) -> TextGenerator:
        """Return the model as one that writes; another model of the same tokenizer may guess ahead."""
        if isinstance(draft, LM):
            if draft.tokenizer.fingerprint != self.tokenizer.fingerprint:
                raise UsageError("draft: want a model with the same tokenizer, got one with another")
            draft = ModelDraft(model=draft.predictor)
        if draft is not None and not isinstance(draft, Draft):
            raise UsageError(f"draft: want a model, or a draft such as heddle.LookupDraft(), got {brief(draft)}")
        return text_generator(self.model, self.tokenizer, draft)

    def score(
        self,
        texts: Sequence[str],
        *,
        source: Sequence[str] | None = None,
        context: Sequence[str] | None = None,
        **reading: Unpack[ScoringOptions],
    ) -> list[TextScore]:
        """Tell how probable each text is as the beginning of a document, token by token and word by word.

        An encoder-decoder is given the source of each, and reads both whole; to an encoder a text is as probable as it
        can tell each token that is hidden. With a `context` for each, what is scored is the text that follows it
        directly: begin it with the space that parts them. The other words are those of `Reading`: window and stride of
        a language model, what to hide from an encoder, which spaces a word holds.
        """
        given = texts_of("score", texts)
        contexts = [""] * len(given) if context is None else _each("context", context, len(given))
        sources = [None] * len(given) if source is None else _each("source", source, len(given))
        passages = [ScoringInput(*each) for each in zip(given, contexts, sources, strict=True)]
        return text_scorer(self.model, self.tokenizer, scoring_config(reading)).run(passages)

    @torch.no_grad()
    def logits(
        self, ids: Sequence[Sequence[int]], *, source: Sequence[Sequence[int]] | None = None
    ) -> Float[Tensor, "batch length vocab"]:
        """Return scores whose softmax is the distribution of the token after each of the ids, as given.

        Of an encoder-decoder they are the target's, and `source` holds those of each row's source. Of an encoder they
        are of the token that stands at each place itself; of one with another output alone, they are that one's.
        """
        rows = [self._readable(row) for row in ids_of("logits", ids)]
        if len({len(row) for row in rows}) != 1:
            raise UsageError("logits: want one or more rows of one length")
        inputs, _ = pad_rows(rows, next(self.model.parameters()).device)
        with eval_mode(self.model):
            ctx = self._given(None if source is None else ids_of("logits", source), len(rows))
            return self.model.logits(inputs, ctx)

    def _readable(self, ids: Sequence[int]) -> Sequence[int]:
        if self.model.can_generate:
            return check_prompt(self.predictor, ids)
        return list(check_encoder_input(self.model, ids).tolist())

    def _given(self, source: Sequence[Sequence[int]] | None, rows: int) -> Context:
        """Return the context in which a model reads: with what its encoder understood of the sources, if it has one."""
        if not self.model.reads_source:
            if source is not None:
                raise UsageError("logits: want no source, for this model reads one text")
            return Context()
        if source is None or len(source) != rows:
            found = "none" if source is None else str(len(source))
            raise UsageError(
                f"logits: want source=[[...]] with {rows} rows of ids, for an encoder-decoder, got {found}"
            )
        read = [check_source(self.predictor, row) for row in source]
        return Context(memory=self.model.encode(*pad_rows(read, next(self.model.parameters()).device)))

    @torch.no_grad()
    def embed(self, texts: Sequence[str]) -> Float[Tensor, "batch width"]:
        """Return a vector for each text: the mean of the last layer's vectors over its tokens and its beginning.

        Of an encoder-decoder it is the mean of what the encoder understood, the end token included.
        """
        given = texts_of("embed", texts)
        if not given:
            raise UsageError("embed: want one or more texts")
        rows = [self._row(text) for text in given]
        means: dict[int, Tensor] = {}
        with eval_mode(self.model):
            for numbers in length_batches([len(row) for row in rows]):
                vectors, real = self._vectors([rows[number] for number in numbers])
                found = (vectors * real[..., None]).sum(1) / real.sum(1, keepdim=True)
                means |= dict(zip(numbers, found, strict=True))
        return torch.stack([means[number] for number in range(len(rows))])

    def _row(self, text: str) -> Sequence[int]:
        """Return the ids of a text as the model reads it to understand it."""
        if self.model.reads_source:
            return check_source(self.predictor, self.tokenizer.source(text))
        if not self.model.can_generate:
            return self._readable(self.tokenizer.whole(text))
        return self._readable([*self.tokenizer.special_tokens.document_start, *self.tokenizer.encode(text)])

    def _vectors(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Return the last vectors of rows, and which of them are real."""
        ids, lengths = pad_rows(rows, next(self.model.parameters()).device)
        vectors, real = self.model.token_vectors(ids, lengths)
        return vectors, torch.ones(vectors.shape[:2], dtype=torch.bool, device=ids.device) if real is None else real


@system_faults()
def load(
    path: str | Path | None = None,
    *,
    device: str = "auto",
    dtype: str | None = None,
    best: bool = False,
    weights: str = "auto",
) -> LM:
    """Load a model from wherever it lies, and find out what it is; `lm.origin` and `repr` tell.

    A path means a run's folder, a checkpoint's, a folder of Hugging Face's or a GGUF file; a name means a run under
    `runs`, `package:NAME` the model that an installed package carries, None the newest run. A model without tokenizer
    files is loaded too, and then takes ids. `dtype` is what the model is kept and computed in, float32 where
    nothing is said. `weights` says how large matrices are kept: auto as the dtype says, int8 or int4 in less memory
    (all else on a GPU then in bfloat16, unless a dtype is said), for use and not for training (what adapters learned
    is then merged); a float by name is the dtype.
    """
    words_of(device=device, weights=weights, **({} if dtype is None else {"dtype": dtype}))
    kept = _kept(weights, dtype)
    source = find_source(path_of(path), best=best)
    hardware = choose_hardware(device, kept.dtype)
    model = source.model(hardware)
    if kept.bits is not None:
        model = merge_adapters(model)
        quantize_model(model, kept.bits)
        if dtype is None and hardware.device.type == "cuda":
            model.to(choose_hardware(device).dtype)  # its kernels for packed numbers take vectors in half precision
    tokenizer = source.tokenizer()
    roles = source.special_tokens() if tokenizer is None else tokenizer.special_tokens
    origin = Origin(source.path, source.describe(), source.settings(), roles, source.template(), source.is_run)
    log.info("%s: %s", origin.path, origin.kind)
    return LM(model, tokenizer, origin)


class _Kept(NamedTuple):
    """How weights are kept: in a dtype, or packed in so many bits."""

    dtype: str
    bits: Bits | None = None


def _kept(weights: str, dtype: str | None) -> _Kept:
    said = "float32" if dtype is None else dtype
    if weights == "auto":
        return _Kept(said)
    for bits in get_args(Bits):
        if weights == bits:
            return _Kept(said, bits)
    if weights in ("float32", "bfloat16"):
        if dtype not in (None, "auto", weights):
            raise ConfigError("dtype", want=f"{weights} or nothing, beside weights={weights!r}", got=dtype)
        return _Kept(weights)
    known = ("auto", "float32", "bfloat16", *get_args(Bits))
    raise ConfigError("weights", want=f"one of {', '.join(known)}", got=weights, near=nearest(weights, known))


def _each(name: str, given: object, count: int) -> list[str]:
    """Return one for each text."""
    found = texts_of(name, given)
    if len(found) != count:
        raise UsageError(f"{name}: want {count}, one for each text, got {len(found)}")
    return found
