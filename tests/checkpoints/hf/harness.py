"""Harness: a small random model of `transformers` and its copy in Heddle must agree, in both directions."""

import copy
import json
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from torch import Tensor

from heddle.checkpoints.hf import load_model, save_model
from heddle.decoding.generation import GenerationConfig, GreedySearch, generate
from heddle.decoding.search import BeamSearch
from heddle.models.networks import AutoregressiveModel, EncoderDecoder
from heddle.nn.base import Context

VOCAB, CONTEXT, PROMPT, NEW, END = 61, 64, 9, 50, 2
BOUND = 2e-5  # of the spread of the logits
CARRIED = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")


@dataclass(frozen=True)
class Case:
    """A model of theirs to be: which class, and the settings that differ from its config's defaults."""

    name: str
    model: type[hf.PreTrainedModel]
    config: type[hf.PreTrainedConfig]
    settings: dict[str, Any]

    @property
    def family(self) -> str:
        """Return the family that it must be read and written as."""
        return str(self.config.model_type)

    def build(self) -> hf.PreTrainedModel:
        """Build it, with every weight moved so that biases and gains have their say."""
        torch.manual_seed(1)
        model = self.model(self.config(**self.settings)).eval()
        draw = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.requires_grad:
                    # matrices large enough that what a row says next depends on all before, not on its last id alone
                    size = 0.1 if weight.ndim == 1 else 1.5 * weight.shape[-1] ** -0.5
                    weight += size * torch.randn(weight.shape, generator=draw)
        return model


@dataclass(frozen=True)
class Pair:
    """One model, theirs and as it was loaded here."""

    case: Case
    theirs: hf.PreTrainedModel
    ours: AutoregressiveModel


@contextmanager
def no_complaint(but: str | None = None) -> Iterator[None]:
    """Fail where `transformers` logs a warning or worse, `but` one with these words, which it must log."""
    heard: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    listener, logger = Listener(logging.WARNING), logging.getLogger("transformers")
    logger.addHandler(listener)
    hf.utils.logging.warning_once.cache_clear()  # what was said before must be said again
    try:
        yield
    finally:
        logger.removeHandler(listener)
    assert [line for line in heard if but is None or but not in line] == []
    assert but is None or heard, "the exception is not needed any more"


def meet(case: Case, folder: Path) -> Pair:
    """Save a model of theirs and load it here."""
    theirs = case.build()
    hf.logging.disable_progress_bar()
    theirs.save_pretrained(folder)
    ours = load_model(folder)
    assert isinstance(ours, AutoregressiveModel)
    return Pair(case, theirs, ours)


def ids_of(length: int, seed: int = 3) -> Tensor:
    """Draw two rows of ids, none of which is special."""
    return torch.randint(3, VOCAB, (2, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def their_logits(model: hf.PreTrainedModel, ids: Tensor) -> Tensor:
    """Return the logits of a row, or of its beginning given the whole as a source."""
    if model.config.is_encoder_decoder:
        return model(input_ids=ids, decoder_input_ids=ids[:, :PROMPT], use_cache=False).logits  # type: ignore[no-any-return]
    return model(ids, use_cache=False).logits  # type: ignore[no-any-return]


@torch.no_grad()
def our_logits(model: AutoregressiveModel, ids: Tensor) -> Tensor:
    """Return the same of ours."""
    if isinstance(model, EncoderDecoder):
        return model.logits(ids[:, :PROMPT], Context(memory=model.encode(ids)))
    return model.logits(ids)


def check_close(want: Tensor, got: Tensor) -> None:
    """Hold logits to the bound, relative to their spread."""
    assert distance(want, got) <= BOUND


def distance(want: Tensor, got: Tensor) -> float:
    """Return the largest difference, relative to the spread."""
    assert want.std() > 0.1, "logits that are all alike prove nothing"
    return ((got - want).abs().max() / want.std()).item()


def check_logits(pair: Pair, length: int = CONTEXT - 4) -> None:
    """Hold our logits against theirs."""
    ids = ids_of(length)
    want, got = their_logits(pair.theirs, ids), our_logits(pair.ours, ids)
    if distance(want, got) > BOUND:  # some CPUs round more: no more than theirs in float32 is from theirs in float64
        exact = their_logits(copy.deepcopy(pair.theirs).double(), ids)
        assert distance(want, got) <= distance(exact, want.double()) < 5 * BOUND


def check_generation(pair: Pair, beams: int = 1, tokens: int = NEW) -> None:
    """Hold what ours writes, with a cache, against theirs; one beam goes to the last token, more may end before."""
    ids, end = ids_of(PROMPT), None if beams == 1 else END
    start = pair.theirs.config.decoder_start_token_id if isinstance(pair.ours, EncoderDecoder) else None
    settings = hf.GenerationConfig(
        max_new_tokens=tokens, num_beams=beams, early_stopping="never" if beams > 1 else False, do_sample=False,
        pad_token_id=0, eos_token_id=end, decoder_start_token_id=start, length_penalty=1.0,
    )  # fmt: skip
    pair.theirs.generation_config = settings
    want = pair.theirs.generate(ids, attention_mask=torch.ones_like(ids))
    choice = BeamSearch(beams=beams, length_penalty=1.0) if beams > 1 else GreedySearch()
    config = GenerationConfig(max_tokens=tokens, strategy=choice, stop=() if end is None else (end,))
    if start is None:
        want, got = want[:, PROMPT:], generate(pair.ours, ids.tolist(), config)
    else:
        want, got = want[:, 1:], generate(pair.ours, [[start]] * len(ids), config, ids.tolist())
    assert got == [_ended(row, end) for row in want.tolist()]
    if start is None:  # a tied encoder-decoder without training mostly says one thing over and over
        assert len({*got[0], *got[1]}) > 4, "rows that say one thing over and over prove little"


def _ended(row: list[int], end: int | None) -> list[int]:
    """Cut what stands behind the first end of a row, which is padding."""
    return row[: row.index(end) + 1] if end in row else row


def check_back(pair: Pair, folder: Path) -> None:
    """Save ours and let `transformers` load it: nothing missing, left over, misshapen or remarked on, same logits."""
    carried = {key: getattr(pair.theirs.config, key) for key in CARRIED if key in pair.theirs.config.to_dict()}
    save_model(pair.ours, folder, carried, wanted=pair.case.family)
    with no_complaint():
        again, info = pair.case.model.from_pretrained(folder, output_loading_info=True)
    assert {kind: found for kind, found in info.items() if found} == {}
    ids = ids_of(CONTEXT - 4)
    check_close(their_logits(pair.theirs, ids), their_logits(again.eval(), ids))


def case(model: type[hf.PreTrainedModel], name: str, **settings: Any) -> Case:
    """Return a case of a class of theirs, given the settings of its config."""
    return Case(name, model, model.config_class, settings)


def variants(model: type[hf.PreTrainedModel], base: dict[str, Any], **changes: dict[str, Any]) -> list[Case]:
    """Return a case for each change of a base, named by it."""
    short = model.config_class.model_type
    return [case(model, f"{short}-{name}", **(base | change)) for name, change in changes.items()]


def retold(folder: Path, gone: Collection[str] = (), **new: Any) -> None:
    """Write the config of a folder anew, without some keys and with others: as an older version has it, or wrong."""
    path = folder / "config.json"
    kept = {key: value for key, value in json.loads(path.read_text()).items() if key not in gone}
    path.write_text(json.dumps(kept | new))
