"""LM: a model with its tokenizer: generate text, score texts, compute logits and embeddings."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, Unpack, get_args, overload

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.arguments import as_id_rows, as_path, as_text, as_texts, check_words, one_or_more
from heddle.checkpoints import find_source, save_run, using_base
from heddle.core import ConfigError, UsageError, brief, system_faults, user_code
from heddle.core.system import choose_hardware
from heddle.decoding import GenerationOptions, generation_config
from heddle.decoding.generation import GenerationConfig, generate
from heddle.decoding.runtime import check_prompt, check_source, eval_mode, pad_rows, pad_sources
from heddle.decoding.scoring import check_encoder_input, length_batches
from heddle.decoding.speculative import Draft, ModelDraft
from heddle.models import count_parameters
from heddle.models.networks import AutoregressiveModel, Model, require
from heddle.models.surgery import merge_adapters
from heddle.nn.base import Context
from heddle.nn.quantization import Bits, quantize_model
from heddle.tasks.generation import StopStrings, TextChunk, TextConstraints, TextGenerator, text_generator
from heddle.tasks.labelling import Embedder
from heddle.tasks.memory import MemoryOptions, memory_config, with_memory
from heddle.tasks.scoring import (
    ScoringInput,
    ScoringOptions,
    TextScore,
    scoring_config,
    text_scorer,
    with_special_tokens,
)
from heddle.text.tokenizers import SpecialTokens, Tokenizer
from heddle.text_tasks import TextTasks

TOKENIZERS = "tokenizer.json, vocab.json with merges.txt, vocab.txt, a SentencePiece model"
Texts = TypeVar("Texts", str, list[str])  # one in, one out; a list in, a list out

log = logging.getLogger("heddle")


@dataclass(frozen=True)
class Origin:
    """Where a model comes from, and what was saved with its weights."""

    path: Path | None = None
    kind: str = "built here"
    settings: Mapping[str, Any] = field(default_factory=dict)  # the config of the run, or of its publishers, as saved
    special_tokens: SpecialTokens | None = None
    template: str | None = None  # chat template
    is_heddle: bool = True  # a heddle run, or built here
    held_out: str | None = None  # checksum of the text that was held out in training

    @property
    def description(self) -> str:
        """Describe the model and its path."""
        return self.kind if self.path is None else f"{self.path}, {self.kind}"


class LM(TextTasks):
    """A model ready for use: `lm.generate("Once")`, `lm.score(["a b"])`, `lm.logits([[1, 2]])`.

    With an encoder-decoder, `generate` takes sources and returns targets.
    """

    def __init__(self, model: Model, tokenizer: Tokenizer | None, origin: Origin | None = None) -> None:
        self.model, self._tokenizer = model, tokenizer
        self.origin = Origin() if origin is None else origin
        self.special_tokens = self.origin.special_tokens if tokenizer is None else tokenizer.special_tokens

    def __repr__(self) -> str:
        """Describe the model and its origin."""
        return f"<LM of {count_parameters(self.model):,} parameters: {self.origin.description}>"

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer; refuse if the model came without one."""
        if self._tokenizer is None:
            raise UsageError(
                f"{self.origin.path}: has no tokenizer files that tell the end of a text, so it takes ids only "
                "(lm.logits, lm.generate_ids); "
                f"for text, put one of {TOKENIZERS} beside its weights"
            )
        return self._tokenizer

    @property
    def autoregressive_model(self) -> AutoregressiveModel:
        """Return the model as an autoregressive one; refuse an encoder."""
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
        """Generate a continuation of a text, or of each of a list; the new text alone is returned, up to a stop string.

        The options are those of the command line: max_tokens, temperature, top_k, beams, seed and the rest of
        `GenerationOptions`; a bias may name tokens by their text. `rules` constrain the new text (constrained
        decoding); a draft speeds it up (speculative decoding). An encoder-decoder takes the text as its source. The
        samples of a text are side by side in the list.
        """
        generator = self.text_generator(draft)
        config = generator.generation_config(options)
        if isinstance(prompt, str) and config.samples > 1:
            raise UsageError("samples: want 1 for a single prompt; pass a list of prompts for several")
        expected = "a text or a list of texts (lm.generate_ids takes ids)"
        texts = [prompt] if isinstance(prompt, str) else as_texts("generate", prompt, expected)
        requests = generator.requests(texts, config, rules)
        found = [generated.text for generated in generator.generate(requests, config, stop)]
        return found[0] if isinstance(prompt, str) else found

    def generate_ids(self, prompts: Sequence[Sequence[int]], **options: Unpack[GenerationOptions]) -> list[list[int]]:
        """Continue rows of ids exactly as given (an empty row: a new document); return new ids only, the end included.

        With an encoder-decoder they are sources, with the end token if it was trained so.
        """
        rows, config = as_id_rows("generate_ids", prompts), self._ids_config(options)
        if self.model.reads_source:
            start = () if self.special_tokens is None else self.special_tokens.decoder_start
            return generate(self.autoregressive_model, [start] * len(rows), config, rows)
        return generate(self.autoregressive_model, rows, config)

    def _ids_config(self, options: GenerationOptions) -> GenerationConfig:
        for name in ("stop", "rules", "draft"):
            if name in options:
                raise UsageError(f"{name}: not supported by generate_ids; use lm.generate")
        if self._tokenizer is not None:
            return with_special_tokens(self.text_generator().generation_config(options), self._tokenizer)
        config, special = generation_config(options), self.special_tokens
        return config if special is None else config.with_special_tokens(special.begin, special.ends, special.never)

    def stream(
        self,
        prompt: str,
        *,
        stop: StopStrings = (),
        rules: TextConstraints | None = None,
        draft: "LM | Draft | None" = None,
        **options: Unpack[GenerationOptions],
    ) -> Iterator[str]:
        """Yield the text of `generate` chunk by chunk, never half a character."""
        chunks = self.stream_many([as_text("stream", prompt)], stop=stop, rules=rules, draft=draft, **options)
        return (chunk.text for chunk in chunks if chunk.text)

    def stream_many(
        self,
        prompts: Sequence[str],
        *,
        stop: StopStrings = (),
        rules: TextConstraints | None = None,
        draft: "LM | Draft | None" = None,
        **options: Unpack[GenerationOptions],
    ) -> Iterator[TextChunk]:
        """Yield the text of each row as soon as it is certain, and with its last chunk why it ended."""
        generator = self.text_generator(draft)
        config = generator.generation_config(options)
        return generator.stream(generator.requests(as_texts("stream_many", prompts), config, rules), config, stop)

    def text_generator(self, draft: "LM | Draft | None" = None) -> TextGenerator:
        """Return a text generator of the model; a draft may be another model of the same tokenizer."""
        if isinstance(draft, LM):
            if draft.tokenizer.fingerprint != self.tokenizer.fingerprint:
                raise UsageError("draft: want a model with the same tokenizer, got one with another")
            draft = ModelDraft(model=draft.autoregressive_model)
        if draft is not None and not isinstance(draft, Draft):
            raise UsageError(f"draft: want a model, or a draft such as heddle.LookupDraft(), got {brief(draft)}")
        return text_generator(self.model, self.tokenizer, draft)

    def with_memory(self, folder: str | Path, **options: Unpack[MemoryOptions]) -> "LM":
        """Return this model with a kNN memory (kNN-LM): its distribution mixed with that of its nearest neighbours.

        The options are weight, k, temperature, search (exact or index) and probes. This model itself stays as it is.
        """
        config = memory_config(options)
        return LM(
            with_memory(self.model, self.tokenizer, _folder("with_memory", folder), config),
            self._tokenizer,
            self.origin,
        )

    def save(self, folder: str | Path) -> Path:
        """Save the model and its tokenizer as a run, in a new folder; `heddle.load` and every command take it.

        It works for any model, one of another library or one that was trained in a loop of your own:
        `heddle.LM(model, tokenizer).save("runs/mine")`.
        """
        path = _folder("save", folder)
        with system_faults(path):
            save_run(self.model, self._tokenizer, self.origin.template, path, self.origin.description)
        return path

    @overload
    def score(  # type: ignore[overload-overlap]  # to a type checker, a text is a sequence of texts
        self,
        texts: str,
        *,
        source: str | Sequence[str] | None = None,
        context: str | Sequence[str] | None = None,
        **reading: Unpack[ScoringOptions],
    ) -> TextScore: ...

    @overload
    def score(
        self,
        texts: Sequence[str],
        *,
        source: str | Sequence[str] | None = None,
        context: str | Sequence[str] | None = None,
        **reading: Unpack[ScoringOptions],
    ) -> list[TextScore]: ...

    def score(
        self,
        texts: str | Sequence[str],
        *,
        source: str | Sequence[str] | None = None,
        context: str | Sequence[str] | None = None,
        **reading: Unpack[ScoringOptions],
    ) -> TextScore | list[TextScore]:
        """Return the log-probability of a text, or of each of a list, as the beginning of a document.

        An encoder-decoder needs the source of each. An encoder gives the pseudo-log-likelihood: each token masked in
        turn. With a `context` for each, the text that directly follows it is scored: begin it with the space between
        them. The other options are those of `ScoringOptions`: window and stride of a language model, what to mask for
        an encoder, which spaces a word includes.
        """
        if isinstance(texts, str):
            alone = [each if each is None or not isinstance(each, str) else [each] for each in (source, context)]
            return self.score([texts], source=alone[0], context=alone[1], **reading)[0]
        given = as_texts("score", texts)
        contexts = [""] * len(given) if context is None else _each("context", context, len(given))
        sources = [None] * len(given) if source is None else _each("source", source, len(given))
        inputs = [ScoringInput(*each) for each in zip(given, contexts, sources, strict=True)]
        return text_scorer(self.model, self.tokenizer, scoring_config(reading)).run(inputs)

    @torch.no_grad()
    def logits(
        self, ids: Sequence[Sequence[int]], *, source: Sequence[Sequence[int]] | None = None
    ) -> Float[Tensor, "batch length vocab"]:
        """Return the logits of the token after each of the ids, as given.

        With an encoder-decoder the ids are targets, and `source` has the ids of each row's source. With an encoder they
        are the logits of the token at each place itself, or of its only other output.
        """
        rows = [self._check_ids(row) for row in as_id_rows("logits", ids)]
        if len({len(row) for row in rows}) != 1:
            raise UsageError("logits: want one or more rows of one length")
        inputs, _ = pad_rows(rows, next(self.model.parameters()).device)
        with eval_mode(self.model):
            ctx = self._source_context(None if source is None else as_id_rows("logits", source), len(rows))
            return self.model.logits(inputs, ctx)

    def _check_ids(self, ids: Sequence[int]) -> Sequence[int]:
        if self.model.can_generate:
            return check_prompt(self.autoregressive_model, ids)
        return list(check_encoder_input(self.model, ids).tolist())

    def _source_context(self, source: Sequence[Sequence[int]] | None, rows: int) -> Context:
        """Return the context of a forward pass: with the encoded sources, if the model reads any."""
        if not self.model.reads_source:
            if source is not None:
                raise UsageError("logits: source is only used by an encoder-decoder")
            return Context()
        if source is None or len(source) != rows:
            found = "none" if source is None else str(len(source))
            want = f"source=[[...]] with {rows} rows of ids, because the model is an encoder-decoder"
            raise UsageError(f"logits: want {want}, got {found}")
        read = [check_source(self.autoregressive_model, row) for row in source]
        return Context(memory=self.model.encode(*pad_sources(read, next(self.model.parameters()).device)))

    @torch.no_grad()
    def embed(self, texts: str | Sequence[str]) -> Float[Tensor, " width"] | Float[Tensor, "batch width"]:
        """Return an embedding of a text, or of each of a list: that of an output for it, or else the mean of the last
        layer's vectors over its tokens and its beginning.

        With an encoder-decoder it is the mean of the encoder's output, the end token included. An encoder reads a text
        that is longer than its context in windows.
        """
        given, alone = one_or_more("embed", texts)
        if not given:
            raise UsageError("embed: want one or more texts")
        if not self.model.can_generate:
            found = Embedder.of(self.model, self.tokenizer).run(given)
        else:
            found = self._mean_vectors(given)
        return found[0] if alone else found

    def _mean_vectors(self, given: Sequence[str]) -> Float[Tensor, "batch width"]:
        rows = [self._ids(text) for text in given]
        means: dict[int, Tensor] = {}
        with eval_mode(self.model):
            for numbers in length_batches([len(row) for row in rows]):
                vectors, real = self._vectors([rows[number] for number in numbers])
                found = (vectors * real[..., None]).sum(1) / real.sum(1, keepdim=True)
                means |= dict(zip(numbers, found, strict=True))
        return torch.stack([means[number] for number in range(len(rows))])

    def _ids(self, text: str) -> Sequence[int]:
        """Return the ids of a text to embed."""
        if self.model.reads_source:
            return check_source(self.autoregressive_model, self.tokenizer.source(text))
        return self._check_ids([*self.tokenizer.special_tokens.document_start, *self.tokenizer.encode(text)])

    def _vectors(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Return the last layer's vectors of rows, and which of them are not padding."""
        ids, lengths = pad_rows(rows, next(self.model.parameters()).device)
        vectors, real = self.model.token_vectors(ids, lengths)
        return vectors, torch.ones(vectors.shape[:2], dtype=torch.bool, device=ids.device) if real is None else real


@system_faults()
def load(  # noqa: PLR0913 - the options are the contract
    path: str | Path | None = None,
    *,
    device: str = "auto",
    dtype: str | None = None,
    best: bool = False,
    weights: str = "auto",
    trust_run: bool = False,
    base: str | Path | None = None,
) -> LM:
    """Load a model, whatever its format; `lm.origin` and `repr` tell what was found.

    A path is the folder of a run, a checkpoint or a Hugging Face model, or a GGUF file; a name is a run under `runs`,
    `package:NAME` the model of an installed package, None the newest run. A model without tokenizer files takes ids
    only. `dtype` is that of weights and computation, float32 by default. `weights` quantizes large matrices: int8 or
    int4 need less memory (all else is then bfloat16 on a GPU, unless a dtype is given) and cannot be trained (adapters
    are merged); auto follows the dtype; the name of a float is the dtype itself. A run with code of a stranger's is
    refused, unless `trust_run` runs it, or `heddle.use` has loaded it. `base` is where the model is now that a run with
    adapters was trained from.
    """
    with user_code.trusting_runs(trust_run), using_base(None if base is None else str(as_path(base))):
        return _load(as_path(path), device, dtype, best, weights)


def _load(path: str | Path | None, device: str, dtype: str | None, best: bool, weights: str) -> LM:
    check_words(device=device, weights=weights, **({} if dtype is None else {"dtype": dtype}))
    stored = _weight_format(weights, dtype)
    source = find_source(path, best=best)
    hardware = choose_hardware(device, stored.dtype)
    model = source.model(hardware)
    if stored.bits is not None:
        model = merge_adapters(model)
        quantize_model(model, stored.bits)
        if dtype is None and hardware.device.type == "cuda":
            model.to(choose_hardware(device).dtype)  # the kernels for quantized matrices take half-precision vectors
    tokenizer = source.tokenizer()
    roles = source.special_tokens() if tokenizer is None else tokenizer.special_tokens
    saved = source.all_settings(), roles, source.template(), source.is_run, source.held_out()
    origin = Origin(source.path, source.describe(), *saved)
    log.info("%s: %s", origin.path, origin.kind)
    return LM(model, tokenizer, origin)


class _WeightFormat(NamedTuple):
    """The format of weights: a dtype, and the bits of quantized matrices."""

    dtype: str
    bits: Bits | None = None


def _weight_format(weights: str, dtype: str | None) -> _WeightFormat:
    requested = "float32" if dtype is None else dtype
    if weights == "auto":
        return _WeightFormat(requested)
    for bits in get_args(Bits):
        if weights == bits:
            return _WeightFormat(requested, bits)
    if weights in ("float32", "bfloat16"):
        if dtype not in (None, "auto", weights):
            raise ConfigError("dtype", want=f"{weights} or nothing, beside weights={weights!r}", got=dtype)
        return _WeightFormat(weights)
    known = ("auto", "float32", "bfloat16", *get_args(Bits))
    raise ConfigError.unknown("weights", weights, known)


def _folder(caller: str, given: object) -> Path:
    path = as_path(given)
    if path is None:
        raise UsageError(f"{caller}: want a folder, got None")
    return Path(path)


def _each(name: str, given: object, count: int) -> list[str]:
    """Return texts, `count` of them."""
    found = as_texts(name, given)
    if len(found) != count:
        raise UsageError(f"{name}: want {count}, one for each text, got {len(found)}")
    return found
