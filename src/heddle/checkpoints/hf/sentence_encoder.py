"""Sentence encoders as sentence-transformers lays them out (Reimers & Gurevych 2019): an encoder, pooling, length 1.

The encoder is a Hugging Face folder like any other; `modules.json` lists what comes after it, and the config in
`1_Pooling` says how a row becomes one vector.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.checkpoints.hf.config_reader import HfConfig
from heddle.checkpoints.store import open_regular_file
from heddle.core import DamageError, fields_of, replace
from heddle.core.system import parse_json, write_json
from heddle.models.networks import Model, ModelConfig
from heddle.models.surgery import rebuild
from heddle.nn.outputs import EmbeddingOutputConfig, FirstTokenConfig, MeanConfig, OutputConfig, PoolingConfig

log = logging.getLogger("heddle")
MODULES, POOLING, NORMALIZE = "modules.json", "1_Pooling", "2_Normalize"
LIMITS = "sentence_bert_config.json"
MODES: dict[str, PoolingConfig] = {
    "pooling_mode_mean_tokens": MeanConfig(),
    "pooling_mode_cls_token": FirstTokenConfig(),
}
OTHERS = ("max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
LARGEST = 1 << 20  # bytes of a file of settings


@dataclass(frozen=True)
class SentenceModules:
    """What comes after the encoder."""

    pooling: PoolingConfig
    normalized: bool

    def write(self, path: Path, width: int, context: int) -> None:
        """Write the files that sentence-transformers reads beside the encoder's."""
        names = [("", "Transformer"), (POOLING, "Pooling"), *([(NORMALIZE, "Normalize")] if self.normalized else [])]
        write_json(
            path / MODULES,
            [
                {"idx": i, "name": str(i), "path": folder, "type": f"sentence_transformers.models.{kind}"}
                for i, (folder, kind) in enumerate(names)
            ],
        )
        for folder, _ in names[1:]:
            (path / folder).mkdir()
        modes = {name: mode == self.pooling for name, mode in MODES.items()}
        others = dict.fromkeys((f"pooling_mode_{name}" for name in OTHERS), False)
        write_json(path / POOLING / "config.json", {"word_embedding_dimension": width, **modes, **others})
        write_json(path / LIMITS, {"max_seq_length": context, "do_lower_case": False})


def without_modules(model: Model) -> tuple[Model, SentenceModules | None]:
    """Return a sentence encoder without what follows the encoder, and that; other models as they are."""
    config = model.config.expand()
    pooling, outputs = _last_parts(config)
    embeds = [output for output in outputs if isinstance(output, EmbeddingOutputConfig)]
    if pooling is None or pooling not in MODES.values() or len(embeds) != len(outputs) or len(embeds) > 1:
        return model, None
    bare, _ = rebuild(model, replace(config, pooling=None, outputs=()))
    return bare, SentenceModules(pooling, bool(embeds) and embeds[0].normalized)


def _last_parts(config: ModelConfig) -> tuple[PoolingConfig | None, tuple[OutputConfig, ...]]:
    """Return pooling and outputs, which encoders alone have."""
    fields = fields_of(config)
    return fields.get("pooling"), fields.get("outputs", ())


def read_modules(path: Path) -> SentenceModules | None:
    """Return what follows the encoder of a folder; None: nothing, or a pooling that is not known."""
    if not (path / MODULES).is_file() or not (path / POOLING / "config.json").is_file():
        return None
    listed, table = _settings(path / MODULES), _settings(path / POOLING / "config.json")
    if not isinstance(listed, list) or not isinstance(table, dict):
        return None
    names = [str(one.get("type", "")).rpartition(".")[2] for one in listed if isinstance(one, dict)]
    found = HfConfig(table, str(path / POOLING / "config.json"))
    chosen = [mode for name, mode in MODES.items() if found.flag(name, False)]
    if names[:2] != ["Transformer", "Pooling"] or set(names[2:]) - {"Normalize"} or len(chosen) != 1:
        return None
    if any(found.flag(f"pooling_mode_{name}", False) for name in OTHERS):
        return None
    return SentenceModules(chosen[0], "Normalize" in names)


def _settings(path: Path) -> Any:
    with open_regular_file(path) as file:
        raw = file.read(LARGEST)
    try:
        return parse_json(raw.decode(), str(path))
    except UnicodeDecodeError:
        raise DamageError(f"{path}: want UTF-8") from None


def with_modules(config: ModelConfig, path: Path) -> ModelConfig:
    """Return the config of an encoder with what its folder says comes after it; a pooler of its own is kept."""
    modules = read_modules(path)
    if modules is None or "pooling" not in fields_of(config) or any(_last_parts(config)):
        return config
    outputs: tuple[OutputConfig, ...] = (EmbeddingOutputConfig(),) if modules.normalized else ()
    return replace(config, pooling=modules.pooling, outputs=outputs)


def add_modules(model: Model, path: Path) -> Model:
    """Return an encoder with what its folder says comes after it; say where that cannot be followed."""
    if (path / MODULES).is_file() and read_modules(path) is None:
        log.warning("%s: not followed: embeddings are the mean over tokens, not this model's own", path / MODULES)
    config = model.config.expand()
    whole = with_modules(config, path)
    return model if whole is config else rebuild(model, whole.expand())[0]
