"""Recognition: the features of sounds to candidates, by the search that suits what the model has learnt."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from heddle.core import UsageError
from heddle.decoding.ctc.joint import CtcPrefixScorer, JointBeamSearch, JointDecoder
from heddle.decoding.ctc.language_model import PrefixLanguageModel
from heddle.decoding.ctc.prefix_beam import FrameLogprobs, PrefixBeamSearch, Recognized, best_path, prefix_beam_search
from heddle.decoding.runtime import device_of, eval_mode, pad_sources
from heddle.models.networks import EncoderDecoder, LanguageModel, Model, require
from heddle.nn.base import Context
from heddle.nn.outputs import CtcOutput
from heddle.nn.state import Memory

SearchKind = PrefixBeamSearch | JointBeamSearch | None  # None: the most probable path of CTC


@dataclass(frozen=True)
class Recognizer:
    """A model of frames, how it is searched, and the ids before and after a target.

    lm: a language model of the same tokens, for shallow fusion, and the ids that it begins a text with.
    """

    model: Model
    search: SearchKind
    start: tuple[int, ...]
    end: int
    lm: LanguageModel | None = None
    lm_start: tuple[int, ...] = ()

    @torch.inference_mode()
    def run(self, sources: Sequence[Tensor]) -> list[list[Recognized]]:
        """Return the candidates of each source, best first."""
        reader = self.model.towers[0].embedding
        for source in sources:
            reader.check_input(source)
        device = device_of(self.model)
        with eval_mode(self.model):
            if isinstance(self.search, JointBeamSearch):
                memory = self.model.encode(*pad_sources(sources, device))
                wanted = self.search.ctc_weight > 0
                frames = self._logprobs(memory.layers[-1], _real(memory)) if wanted else [None] * len(sources)
                return [self._joint(memory, row, found) for row, found in enumerate(frames)]
            vectors, real = self.model.token_vectors(*pad_sources(sources, device))
            return [self._ctc(found) for found in self._logprobs(vectors, real)]

    def _logprobs(self, vectors: Tensor, real: Tensor | None) -> list[FrameLogprobs]:
        output = ctc_output(self.model)
        if output is None:
            raise UsageError("ctc_weight: want 0, because the model has no CTC output")
        found = output.scores(vectors, Context()).double().log_softmax(-1).cpu().numpy()
        counts = [found.shape[1]] * len(found) if real is None else real.sum(1).tolist()
        return [np.asarray(row[:count]) for row, count in zip(found, counts, strict=True)]

    def _ctc(self, frames: FrameLogprobs) -> list[Recognized]:
        if not isinstance(self.search, PrefixBeamSearch):
            return [best_path(frames)]
        return prefix_beam_search(frames, self.search, self._language_model(len(frames)), self.end)

    def _joint(self, memory: Memory, row: int, frames: FrameLogprobs | None) -> list[Recognized]:
        assert isinstance(self.search, JointBeamSearch)
        own = memory.map(lambda tensor: tensor[row : row + 1])
        ctc = None if frames is None else CtcPrefixScorer(frames)
        lm = self._language_model(self.search.max_tokens)
        refusal = UsageError(f"want an encoder-decoder, got {self.model.config.noun}")
        model = require(self.model, EncoderDecoder, refusal)
        return JointDecoder(model, own, self.search, self.start, self.end, ctc, lm).run()

    def _language_model(self, longest: int) -> PrefixLanguageModel | None:
        return None if self.lm is None else PrefixLanguageModel(self.lm, self.lm_start, longest + 1)


def _real(memory: Memory) -> Tensor | None:
    return None if memory.allowed is None else memory.allowed[:, 0, 0]


def ctc_output(model: Model) -> CtcOutput | None:
    """Return the CTC output of a model; None: it has none."""
    found = [output for output in model.modules() if isinstance(output, CtcOutput)]
    return found[0] if found else None
