"""Adapter for lm-eval, EleutherAI's evaluation harness: a model class `heddle` beside its `hf`.

    python -m heddle.harness run --model heddle --model_args pretrained=runs/first --tasks NAME --include_path FOLDER

Importing this module registers the class. Texts are tokenized, and long ones cut or read in windows, as the harness
does for `hf`, so that both give the same numbers on the same weights. It needs the extra `harness`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from heddle.core import ConfigError, MissingExtra, UsageError
from heddle.decoding import GenerationOptions
from heddle.decoding.runtime import Request, device_of, eval_mode, pad_rows
from heddle.decoding.scoring import length_batches
from heddle.lm import load
from heddle.nn.base import Context
from heddle.tasks.generation import TextGenerator, text_generator

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ImportError:
    raise MissingExtra("lm-eval", "harness", "heddle.harness") from None

Pair = tuple[list[int], list[int]]  # context, continuation
MAX_NEW = 256  # tokens, where a task names no number, as for `hf`
TOKENS = 1 << 14  # of all rows that are generated side by side
OPTIONS = ("until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p")


@register_model("heddle")
class HeddleLM(TemplateLM):  # type: ignore[misc]  # lm-eval has no types
    """A model of Heddle, or one that it loads, as lm-eval's models are.

    pretrained: what `heddle.load` takes: a run, a Hugging Face folder, a GGUF file; None: the newest run.
    batch_size, max_batch_size: accepted because the harness passes them; batches are bounded by tokens.
    """

    def __init__(  # noqa: PLR0913 - the harness names the arguments
        self,
        pretrained: str | None = None,
        device: str = "auto",
        dtype: str = "float32",
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        max_length: int | None = None,
        best: bool = False,
    ) -> None:
        super().__init__()
        self._lm = load(pretrained, device=_device(device), dtype=dtype, best=best)
        self._model = self._lm.autoregressive_model
        if max_length is not None and not 1 <= max_length <= self._model.context:
            raise ConfigError("max_length", want=f"1 to the model's context of {self._model.context}", got=max_length)
        self.max_length = self._model.context if max_length is None else max_length
        self.backend = "seq2seq" if self._model.reads_source else "causal"

    @property
    def eot_token_id(self) -> int:
        """Return the id that ends a text."""
        return self._lm.tokenizer.end

    @property
    def prefix_token_id(self) -> int:
        """Return the id that begins a text without context."""
        return self._lm.tokenizer.special_tokens.begin

    @property
    def tokenizer_name(self) -> str:
        """Return a name for the harness's cache of requests."""
        return f"heddle-{self._lm.tokenizer.fingerprint}"

    def tok_encode(self, string: str, add_special_tokens: bool | None = None) -> list[int]:
        """Return the ids of a text, with the special tokens that the model's tokenizer puts around it by itself."""
        tokenizer = self._lm.tokenizer
        if add_special_tokens is False:
            return tokenizer.for_target.encode(string)
        return tokenizer.source(string) if self._model.reads_source else tokenizer.encode_prompt(string)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return the log-probability of each continuation, and whether it is the greedy one."""
        for _, _, continuation in requests:
            if len(continuation) > self.max_length:
                got = f"one of {len(continuation)}"
                raise UsageError(f"harness: want continuations of at most {self.max_length} tokens, got {got}")
        return self._scored([(context, continuation) for _, context, continuation in requests])

    def _scored(self, pairs: Sequence[Pair]) -> list[tuple[float, bool]]:
        score = self._score_targets if self._model.reads_source else self._score_rows
        found: dict[int, tuple[float, bool]] = {}
        with torch.inference_mode(), eval_mode(self._model):
            for numbers in length_batches([len(context) + len(continuation) for context, continuation in pairs]):
                found |= dict(zip(numbers, score([pairs[number] for number in numbers]), strict=True))
        return [found[number] for number in range(len(pairs))]

    def _score_rows(self, pairs: Sequence[Pair]) -> Iterator[tuple[float, bool]]:
        """Score continuations with a decoder; what is before the last `max_length` tokens is cut, as for `hf`."""
        rows = [(context + continuation)[-(self.max_length + 1) :] for context, continuation in pairs]
        ids, _ = pad_rows([row[:-1] for row in rows], device_of(self._model))
        self._model.reserve(ids.shape[1])
        vectors = self._model(ids)  # padding is on the right, where no token sees it
        for vector, row, (_, continuation) in zip(vectors, rows, pairs, strict=True):
            yield self._graded(vector[len(row) - 1 - len(continuation) : len(row) - 1], continuation)

    def _score_targets(self, pairs: Sequence[Pair]) -> Iterator[tuple[float, bool]]:
        """Score continuations as targets of an encoder-decoder, with their contexts as sources."""
        start = list(self._lm.tokenizer.special_tokens.decoder_start)
        sources = [context[-self.max_length :] for context, _ in pairs]
        targets = [continuation for _, continuation in pairs]
        memory = self._model.encode(*pad_rows(sources, device_of(self._model)))
        ids, _ = pad_rows([[*start, *target[:-1]] for target in targets], device_of(self._model))
        vectors = self._model(ids, Context(memory=memory))
        for vector, target in zip(vectors, targets, strict=True):
            yield self._graded(vector[len(start) - 1 : len(start) - 1 + len(target)], target)

    def _graded(self, vectors: Tensor, targets: list[int]) -> tuple[float, bool]:
        logprobs = self._model.head.logits(vectors[None])[0].float().log_softmax(-1)
        wanted = torch.tensor(targets, device=logprobs.device)
        chosen = logprobs.gather(-1, wanted[:, None])
        return float(chosen.sum(dtype=torch.float64)), bool((logprobs.argmax(-1) == wanted).all())

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability of whole texts, in windows that do not overlap, as the harness has them."""
        windows: list[Pair] = []
        counts = []
        for request in requests:
            (text,) = request.args
            ids = self.tok_encode(text)
            rolling = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, 1)
            own = [make_disjoint_window(window) for window in rolling]
            windows += own
            counts.append(len(own))
        scores = iter(self._scored(windows))
        return [sum(next(scores)[0] for _ in range(count)) for count in counts]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the text that follows each context, up to the first of its stop strings."""
        generator = text_generator(self._model, self._lm.tokenizer)
        found: dict[int, str] = {}
        settings = [repr(sorted(request.args[1].items())) for request in requests]
        for same in dict.fromkeys(settings):
            numbers = [number for number, own in enumerate(settings) if own == same]
            texts = [requests[number].args[0] for number in numbers]
            found |= dict(zip(numbers, self._generated(generator, texts, requests[numbers[0]].args[1]), strict=True))
        return [found[number] for number in range(len(requests))]

    def _generated(self, generator: TextGenerator, texts: Sequence[str], requested: dict[str, Any]) -> list[str]:
        """Generate with the settings of a task."""
        until, options = _generation_options(requested)
        length = int(options["max_tokens"] or MAX_NEW)
        longest = self.max_length - (0 if self._model.reads_source else length)
        if longest < 1:
            want = f"fewer than the model's {self.max_length} tokens"
            raise ConfigError("max_gen_toks", want=want, got=length)
        start = self._lm.tokenizer.special_tokens.decoder_start
        rows = [self.tok_encode(text)[-longest:] for text in texts]
        requests = [Request(start, row) if self._model.reads_source else Request(row) for row in rows]
        config, found = generator.generation_config(options), dict[int, str]()
        for batch in _batches([len(row) + length for row in rows]):
            made = generator.generate([requests[number] for number in batch], config, until)
            found |= {number: one.text for number, one in zip(batch, made, strict=True)}
        return [found[number] for number in range(len(texts))]


def _device(name: str) -> str:
    """Return a device; the harness's own default is a GPU, whether there is one or not."""
    return "auto" if name.partition(":")[0] == "cuda" and not torch.cuda.is_available() else name


def _batches(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Yield numbers of rows of similar length, bounded by tokens."""
    order = sorted(range(len(sizes)), key=lambda number: sizes[number])
    while order:
        count = max(1, TOKENS // sizes[order[-1]])
        yield order[-count:]
        del order[-count:]


def _generation_options(requested: dict[str, Any]) -> tuple[list[str], GenerationOptions]:
    """Return stop strings and options; refuse an option that would have no effect."""
    for name in requested:
        if name not in OPTIONS:
            raise UsageError(f"generation_kwargs: want {', '.join(OPTIONS)}, got {name}")
    until = requested.get("until") or []
    drawn = bool(requested.get("do_sample", (requested.get("temperature") or 0) > 0))
    options: dict[str, Any] = {"max_tokens": int(requested.get("max_gen_toks", MAX_NEW))}
    options["temperature"] = float(requested.get("temperature") or 1.0) if drawn else 0.0
    options |= {name: requested[name] for name in ("top_k", "top_p") if drawn and requested.get(name) is not None}
    return [until] if isinstance(until, str) else list(until), GenerationOptions(**options)  # type: ignore[typeddict-item]


def main() -> None:
    """Run lm-eval's command line, with the model class registered."""
    from lm_eval.__main__ import cli_evaluate

    run: Callable[[], None] = cli_evaluate
    run()


if __name__ == "__main__":
    main()
