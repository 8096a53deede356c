"""N-best rescoring with language models: log-linear interpolation (second-pass rescoring in speech, reranking in MT).

The total of a candidate is a weighted sum of features: its first-pass scores, its log-probability in nats under each
model, and its number of words, since models favour short texts. The weights come from the user, or from minimum error
rate training on a development file with references.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from heddle.core import Config, ConfigError, DamageError, DataError, UsageError, settings
from heddle.decoding.scoring import Continuation, MaskedText, SharedPrefix, score_continuations, scoring_windows
from heddle.models.networks import Encoder, EncoderDecoder, LanguageModel, Model, require
from heddle.tasks.metrics import CorpusMetric, MetricCounts
from heddle.tasks.rescoring.mert import Floats, Mert, NBestArrays
from heddle.tasks.rescoring.nbest import NBest
from heddle.tasks.scoring import conditional_token_nll, mask_id, masked_token_nll, token_nll
from heddle.text.normalize import NormalizerConfig, normalize_text
from heddle.text.tokenizers import Tokenizer

WORDS = "words"  # the feature that counts words
Weights = Mapping[str, float]
Features = Mapping[str, Floats]  # of the candidates of a list, by name
BOUNDS = {WORDS: (-20.0, 20.0)}  # of a tuned weight
OTHER_BOUNDS = (0.0, 5.0)
STARTS = (0.1, 0.3, 1.0)  # for the weight of every model


@dataclass(frozen=True)
class ScoringModel:
    """A model that scores candidates, and the name of its feature."""

    name: str
    model: Model
    tokenizer: Tokenizer


@settings
class RescoringConfig(Config):
    """How models score candidates: how text is normalized, and what ends it."""

    form: NormalizerConfig | None = None  # None: as written
    ending: Literal["document", "line", "none"] = "document"  # what ends a text, and is scored with it

    def text(self, text: str) -> str:
        """Return a text as a model scores it."""
        shown = text if self.form is None else normalize_text(text, self.form)
        return f"{shown}\n" if self.ending == "line" else shown


DEFAULT = RescoringConfig()


class _ScoringRequest(NamedTuple):
    """A text to score; equal requests are scored once."""

    text: str
    context: str
    source: str | None


@dataclass(frozen=True)
class Rescorer:
    """Models, and how they score candidates."""

    scoring_models: tuple[ScoringModel, ...]
    config: RescoringConfig = DEFAULT

    def __post_init__(self) -> None:
        names = [scoring_model.name for scoring_model in self.scoring_models]
        if len(set(names)) < len(names) or WORDS in names:
            raise ConfigError("model", want=f"models of different names, none called {WORDS}", got=", ".join(names))

    def features(self, lists: Sequence[NBest]) -> list[dict[str, Floats]]:
        """Return the features of each list's candidates, by name; a model replaces a score of its own name."""
        found: list[dict[str, Floats]] = []
        for each in lists:
            if WORDS in each.names:
                raise DataError(f"scores: want a name other than {WORDS}, which rescoring counts itself")
            scores = {name: np.array([c.scores[name] for c in each.candidates]) for name in each.names}
            counts = [len(self.config.text(c.text).split()) for c in each.candidates]
            found.append(scores | {WORDS: np.array(counts, dtype=np.float64)})
        for scoring_model in self.scoring_models:
            for features, logprobs in zip(found, self._logprobs(scoring_model, lists), strict=True):
                features[scoring_model.name] = logprobs
        return found

    def _logprobs(self, scoring_model: ScoringModel, lists: Sequence[NBest]) -> list[Floats]:
        requests = [[self._request(each, c.text, scoring_model) for c in each.candidates] for each in lists]
        distinct = list(dict.fromkeys(request for some in requests for request in some))
        known = dict(zip(distinct, text_logprobs(scoring_model, distinct, self.config), strict=True))
        return [np.array([known[request] for request in some]) for some in requests]

    def _request(self, each: NBest, text: str, scoring_model: ScoringModel) -> _ScoringRequest:
        source = each.source if scoring_model.model.reads_source else None
        if source is None and scoring_model.model.reads_source:
            want = "the text that was translated"
            raise DataError(f"source: want {want}, since {scoring_model.name} is an encoder-decoder")
        return _ScoringRequest(self.config.text(text), each.context, source)


def text_logprobs(
    scoring_model: ScoringModel, requests: Sequence[_ScoringRequest], config: RescoringConfig
) -> list[float]:
    """Return the log-probability in nats of each text given its context; for an encoder, the pseudo-log-likelihood."""
    found = _logprobs(scoring_model, requests, config)
    if not all(map(math.isfinite, found)):
        fault = "log-probabilities are not finite: the weights are damaged or the training diverged"
        raise DamageError(f"{scoring_model.name}: {fault}")
    return found


def _logprobs(scoring_model: ScoringModel, requests: Sequence[_ScoringRequest], config: RescoringConfig) -> list[float]:
    model, tokenizer = scoring_model.model, scoring_model.tokenizer
    refusal = UsageError(f"{scoring_model.name}: want a language model, an encoder-decoder or an encoder")
    own = tokenizer.for_target if model.reads_source else tokenizer
    ids = own.encode_many([request.text for request in requests])
    after = own.encode_many([request.context for request in requests])
    if not model.can_generate:
        mask_id(tokenizer, scoring_model.name)
        hidings = (MaskedText(*each) for each in zip(ids, after, strict=True))
        losses = masked_token_nll(require(model, Encoder, refusal), tokenizer, hidings)
        return [-float(x.double().sum()) for x in losses]
    closed = [[*own, tokenizer.end] for own in ids] if config.ending == "document" else ids
    rows = [Continuation(*each) for each in zip(closed, after, strict=True)]
    if model.reads_source:
        translator, sources = require(model, EncoderDecoder, refusal), [request.source or "" for request in requests]
        return [-float(x.double().sum()) for x in conditional_token_nll(translator, tokenizer, sources, rows)]
    return _causal_logprobs(require(model, LanguageModel, refusal), tokenizer, rows)


def _causal_logprobs(model: LanguageModel, tokenizer: Tokenizer, rows: Sequence[Continuation]) -> list[float]:
    """Return the log-probability of each row; a context that several rows share is read once, if all of it fits."""
    found = [0.0] * len(rows)
    together: dict[tuple[int, ...], list[int]] = {}
    for i, row in enumerate(rows):
        together.setdefault(tuple(row.context), []).append(i)
    opening = tokenizer.special_tokens.document_start
    size = model.context - len(opening)
    shared = {after: some for after, some in together.items() if _shares_context(size, after, [rows[i] for i in some])}
    forks = [SharedPrefix([*opening, *after], [list(rows[i].ids) for i in some]) for after, some in shared.items()]
    for some, logprobs in zip(shared.values(), score_continuations(model, forks), strict=True):
        for i, logprob in zip(some, logprobs, strict=True):
            found[i] = logprob
    alone = [i for after, some in together.items() if after not in shared for i in some]
    losses = token_nll(model, tokenizer, [rows[i] for i in alone], scoring_windows(model))
    for i, loss in zip(alone, losses, strict=True):
        found[i] = -float(loss.double().sum())
    return found


def _shares_context(size: int, after: Sequence[int], rows: Sequence[Continuation]) -> bool:
    """Tell whether several rows share a context, and fit with it into `size` tokens."""
    sizes = [len(row.ids) for row in rows]
    return len(after) > 0 and len(rows) > 1 and min(sizes) > 0 and len(after) + max(sizes) <= size


# --- choosing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FeatureWeights:
    """The weight of each feature in the total, and the feature by which the candidates were first ranked."""

    weights: Weights
    first: str | None  # None: by their order in the list

    def arrays(self, features: Sequence[Features], counts: Sequence[MetricCounts] | None = None) -> NBestArrays:
        """Return features as arrays; a feature that a list lacks is 0 there, one without a weight is refused."""
        rows = []
        for each in features:
            for name in each:
                if name not in self.weights:
                    raise DataError(f"scores: want {', '.join(self.weights)}, found {name}, which has no weight")
            zero = np.zeros_like(each[WORDS])
            rows.append(np.stack([each.get(name, zero) for name in self.weights], axis=1))
        return NBestArrays.of(rows, counts)

    @property
    def vector(self) -> Floats:
        """Return the weights in order."""
        return np.array(list(self.weights.values()))

    @property
    def before(self) -> Floats:
        """Return the weights of the first pass alone."""
        return np.array([float(name == self.first) for name in self.weights])


def feature_weights(
    names: Sequence[str], models: Sequence[str], given: Weights, *, weight: float = 0.5, bonus: float = 0.0
) -> FeatureWeights:
    """Return the weights of scores and models: as given by name, else the default.

    The default is 1 for a score, `weight` for a model, and `bonus` for the number of words.
    """
    weights = dict.fromkeys(names, 1.0) | dict.fromkeys(models, weight) | {WORDS: bonus}
    for name in given:
        if name not in weights:
            raise ConfigError.unknown("weight", name, weights)
    return FeatureWeights(weights | dict(given), next(iter(names), None))


def metric_counts(lists: Sequence[NBest], measure: CorpusMetric) -> list[MetricCounts]:
    """Return the metric counts of every candidate; all lists must have a reference."""
    return [measure.counts([c.text for c in each.candidates], each.reference or "") for each in lists]


def tune_weights(
    features: Sequence[Features], counts: Sequence[MetricCounts], measure: CorpusMetric, weighting: FeatureWeights
) -> FeatureWeights:
    """Return the weights that are best by a metric (MERT); one weight is fixed, since only proportions matter."""
    if not features:
        raise DataError("tune: want one list or more with a reference, found none")
    names = list(weighting.weights)
    fixed = names[0] if names[0] != WORDS else names[-1]
    bounds = {i: BOUNDS.get(name, OTHER_BOUNDS) for i, name in enumerate(names) if name != fixed}
    starts = [weighting.vector]
    for weight in STARTS:
        starts.append(np.array([1.0 if n == fixed else 0.0 if n == WORDS else weight for n in names]))
    found = Mert(weighting.arrays(features, counts), measure, bounds).run(starts)
    return FeatureWeights(dict(zip(names, found.tolist(), strict=True)), weighting.first)


@dataclass(frozen=True)
class RescoringReport:
    """A metric before and after rescoring, and of the oracle choice, over a number of lists."""

    measure: str
    before: float
    after: float
    oracle: float
    lists: int
    changed: int  # lists whose choice changed
    better: int  # of these, by the metric
    worse: int
    signature: str


@dataclass
class MetricTally:
    """Accumulates metric counts over the lists of a file."""

    measure: CorpusMetric
    sums: list[MetricCounts] = field(default_factory=list)  # before, after, oracle
    lists: int = 0
    changed: int = 0
    better: int = 0
    worse: int = 0

    def add(self, lists: NBestArrays, weighting: FeatureWeights) -> None:
        """Add some lists."""
        before, after = lists.choose(weighting.before), lists.choose(weighting.vector)
        chosen = [lists.gathered(rows) for rows in (before, after, lists.oracle(self.measure))]
        sums = [rows.sum(axis=0) for rows in chosen]
        self.sums = [a + b for a, b in zip(self.sums, sums, strict=True)] if self.sums else sums
        gain = self.measure.cost(chosen[0]) - self.measure.cost(chosen[1])
        self.lists += len(before)
        self.changed += int((before != after).sum())
        self.better += int((gain > 0).sum())
        self.worse += int((gain < 0).sum())

    def report(self) -> RescoringReport:
        """Return the metric over all lists so far."""
        before, after, oracle = (float(self.measure.value(sums)) for sums in self.sums)
        numbers = (self.lists, self.changed, self.better, self.worse)
        return RescoringReport(self.measure.name, before, after, oracle, *numbers, self.measure.signature())


def measure_weights(
    features: Sequence[Features], counts: Sequence[MetricCounts], measure: CorpusMetric, weighting: FeatureWeights
) -> RescoringReport:
    """Measure the candidates chosen by some weights."""
    tally = MetricTally(measure)
    tally.add(weighting.arrays(features, counts), weighting)
    return tally.report()
