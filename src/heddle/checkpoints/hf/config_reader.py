"""Hugging Face config reader: typed access to keys, errors that name the key, and a list of keys that were not read."""

from collections.abc import Mapping
from typing import Any, TypeVar

from heddle.core import ConfigError, nearest

T = TypeVar("T")
MISSING: Any = object()

# Keys that do not change the logits, in any family.
IGNORED_KEYS = frozenset(
    {
        "_name_or_path", "architectures", "bos_token_id", "chunk_size_feed_forward", "decoder_start_token_id", "dtype",
        "eos_token_id", "forced_bos_token_id", "forced_eos_token_id", "id2label", "initializer_range", "label2id",
        "max_length", "model_type", "num_beams", "output_attentions", "output_hidden_states", "pad_token_id",
        "pretraining_tp", "problem_type", "return_dict", "task_specific_params", "torch_dtype", "transformers_version",
        "use_cache", "heddle_version",
        # of older files, which also held settings of generation and training
        "bad_words_ids", "begin_suppress_tokens", "cross_attention_hidden_size", "diversity_penalty", "do_sample",
        "early_stopping", "encoder_no_repeat_ngram_size", "eos_token_ids", "exponential_decay_length_penalty",
        "finetuning_task", "length_penalty", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_labels",
        "num_return_sequences", "output_past", "output_scores", "prefix", "remove_invalid_values", "repetition_penalty",
        "return_dict_in_generate", "sep_token_id", "suppress_tokens", "temperature", "tf_legacy_loss",
        "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p", "torchscript", "typical_p", "use_bfloat16",
    }
)  # fmt: skip

# Upper bounds: a config must not cost time or memory before the weights agree with it.
MAX_INTEGER = (1 << 31) - 1
DEEPEST, WIDEST_TABLE = 2048, 1 << 18
MAX_VALUES = {
    **dict.fromkeys(
        (
            "num_hidden_layers", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers", "n_layer",
            "n_layers", "num_hidden_groups", "inner_group_num", "num_experts", "num_local_experts", "n_routed_experts",
        ),
        DEEPEST,
    ),
    **dict.fromkeys(("relative_attention_max_distance", "relative_attention_num_buckets"), WIDEST_TABLE),
}  # fmt: skip


class HfConfig:
    """A Hugging Face config that records which keys were read."""

    def __init__(self, data: Mapping[str, Any], where: str = "config.json") -> None:
        self.data, self.where = data, where
        self._read: set[str] = set()

    def integer(self, name: str, default: Any = MISSING) -> int:
        """Return a whole number."""
        return self._bounded(name, int(self._value(name, int, "a whole number", default)))

    def maybe_integer(self, name: str) -> int | None:
        """Return a whole number, or None where the key is missing or null."""
        found: int | None = self._value(name, int, "a whole number or null", None, null=True)
        return None if found is None else self._bounded(name, found)

    def number(self, name: str, default: Any = MISSING) -> float:
        """Return a number."""
        return self._finite(name, self._value(name, int | float, "a number", default))

    def flag(self, name: str, default: Any = MISSING) -> bool:
        """Return true or false."""
        return bool(self._value(name, bool, "true or false", default))

    def choice(self, name: str, words: Mapping[str, T], default: Any = MISSING) -> T:
        """Return the value of one of some known words."""
        found = self._value(name, str, f"one of {', '.join(words)}", default)
        if found not in words:
            near = nearest(str(found)[:80], words)
            raise ConfigError(f"{self.where}: {name}", want=f"one of {', '.join(words)}", got=found, near=near)
        return words[found]

    def choices(self, name: str, words: Mapping[str, T], default: list[str]) -> list[T]:
        """Return the values of a list of known words; the default where it is missing or null."""
        found = self._value(name, list, "a list", None, null=True)
        each = [HfConfig({str(i): value}, f"{self.where}: {name}") for i, value in enumerate(found or default)]
        return [one.choice(str(i), words) for i, one in enumerate(each)]

    def integers(self, name: str) -> list[int]:
        """Return a list of whole numbers; an empty one where it is missing or null."""
        found = self._value(name, list, "a list of whole numbers", None, null=True) or []
        return [HfConfig({str(i): v}, f"{self.where}: {name}").integer(str(i)) for i, v in enumerate(found)]

    def maybe_number(self, name: str) -> float | None:
        """Return a number, or None where the key is missing or null."""
        found: float | None = self._value(name, int | float, "a number or null", None, null=True)
        return None if found is None else self._finite(name, found)

    def nested(self, name: str) -> "HfConfig":
        """Return a nested object; an empty one where it is missing or null."""
        found = self._value(name, dict, "an object", None, null=True)
        return HfConfig(found or {}, f"{self.where}: {name}")

    def require(self, name: str, value: Any, default: Any = MISSING) -> None:
        """Refuse every value but the one that is supported."""
        found = self.data.get(name, value if default is MISSING else default)
        self._read.add(name)
        if found != value:
            raise ConfigError(f"{self.where}: {name}", want=repr(value), got=found)

    def unread(self) -> list[str]:
        """Return the keys that were not read and might change the logits."""
        return sorted(self.data.keys() - self._read - IGNORED_KEYS)

    def _bounded(self, name: str, found: int) -> int:
        most = MAX_VALUES.get(name, MAX_INTEGER)
        if abs(found) > most:
            raise ConfigError(f"{self.where}: {name}", want=f"a whole number of at most {most}", got=found)
        return found

    def _finite(self, name: str, found: float) -> float:
        if not abs(found) < 1e300:  # also refuses NaN, and integers too large for a float
            raise ConfigError(f"{self.where}: {name}", want="a finite number", got=found)
        return float(found)

    def _value(self, name: str, kind: Any, want: str, default: Any, null: bool = False) -> Any:
        self._read.add(name)
        found = self.data.get(name, default)
        if found is MISSING:
            raise ConfigError(f"{self.where}: {name}", want=want, got="nothing")
        if found is None and (null or default is None):
            return None
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
            raise ConfigError(f"{self.where}: {name}", want=want, got=found)
        return found
