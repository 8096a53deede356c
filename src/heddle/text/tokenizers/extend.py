"""Vocabulary extension: further tokens for a trained tokenizer, by going on with its merges on other text.

For domain-adaptive (continued) pre-training (Gururangan et al. 2020). All ids stay as they are; the new ones follow.
"""

import heapq
import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from heddle.core import ConfigError, UsageError
from heddle.text.tokenizers.chunks import METASPACE, split_into_chunks
from heddle.text.tokenizers.tokenizer import Pipeline, Tokenizer, catch_panics

Pair = tuple[str, str]
MERGING = ("BPE", "WordPiece", "Unigram")  # models whose tokens are pieces of words
WORD = re.compile(f"{METASPACE}*[^{METASPACE}]+|{METASPACE}+")  # where nothing else divides a text
NEVER = -1e9  # the score of a special token as a unigram piece: any other way to write the text is better
GAIN = 0.01  # by which a new unigram piece scores above the two that it joins, so that it is used


def extend_tokenizer(tokenizer: Tokenizer, texts: Iterable[str], count: int, least: int = 2) -> Tokenizer:
    """Return a tokenizer with `count` more tokens, learnt from texts that it divides into many.

    Pieces of words are merged as in byte-pair encoding, the most frequent pair first, from what the tokenizer makes of
    the texts; a word tokenizer learns the most frequent unknown words. What is seen fewer than `least` times is not
    learnt. Ties go by alphabet, so that the same texts give the same tokens.
    """
    data: dict[str, Any] = tokenizer.to_json()
    model = data["model"]
    _check(tokenizer, data)
    with catch_panics([]):
        words = _words(Pipeline.from_str(json.dumps(data)), texts)
        if model["type"] == "WordLevel":
            found = sorted((word for word in words if word not in model["vocab"]), key=lambda w: (-words[w], w))
            merges, tokens = list[Pair](), [word for word in found if words[word] >= least][:count]
        else:
            merges, tokens = _merges(data, words, count, least)
        if len(tokens) < count:
            raise ConfigError("tokens", want=f"at most {len(tokens)}, all that this text allows", got=count)
        _add(data, tokenizer.names(), merges, tokens)
        made = Pipeline.from_str(json.dumps(data))
    extended = Tokenizer(made, tokenizer.special_tokens if tokenizer.special_tokens_config() else None)
    if extended.names() != [*tokenizer.names(), *tokens] or extended.special != tokenizer.special:
        raise UsageError(
            "init_vocabulary: this tokenizer cannot be extended, because the library numbers its tokens anew"
        )
    return extended


def _check(tokenizer: Tokenizer, data: dict[str, Any]) -> None:
    """Refuse a tokenizer that has no pieces to merge."""
    model = data["model"]
    want = "replaced, because the tokenizer of the model in init"
    if tokenizer.for_target is not tokenizer:
        raise ConfigError("kind", want=f"{want} has another for target texts", got="extended")
    merging = model["type"] in MERGING and model.get("merges") != []
    if not merging and model["type"] != "WordLevel":
        raise ConfigError("kind", want=f"{want} has single bytes or characters", got="extended")
    if model.get("continuing_subword_prefix") and model["type"] == "BPE":
        raise ConfigError("kind", want=f"{want} marks pieces inside words", got="extended")
    outside = [token["content"] for token in data["added_tokens"] if token["id"] >= len(model["vocab"])]
    if model["type"] == "Unigram" and outside and (data["decoder"] or {}).get("type") != "ByteLevel":
        raise ConfigError("kind", want=f"{want} has {outside[0]} beside its pieces", got="extended")


def _words(pipeline: Pipeline, texts: Iterable[str]) -> Counter[str]:
    """Count the words that the tokenizer divides texts into before it divides words."""
    counts: Counter[str] = Counter()
    for chunk in (chunk for text in texts for chunk in split_into_chunks(text)):
        normal = chunk if pipeline.normalizer is None else pipeline.normalizer.normalize_str(chunk)
        if pipeline.pre_tokenizer is None:
            counts.update(WORD.findall(normal))
        else:
            counts.update(word for word, _ in pipeline.pre_tokenizer.pre_tokenize_str(normal))
    return counts


def _merges(data: dict[str, Any], words: Counter[str], count: int, least: int) -> tuple[list[Pair], list[str]]:
    """Return the pairs that are merged, and the new tokens."""
    model = data["model"]
    tokenize = Pipeline.from_str(json.dumps(data)).model.tokenize
    known = {name for name, _ in model["vocab"]} if model["type"] == "Unigram" else set(model["vocab"])
    unknown = {token["content"] for token in data["added_tokens"]} | {str(model.get("unk_token"))}
    if model["type"] == "Unigram" and model["unk_id"] is not None:
        unknown.add(model["vocab"][model["unk_id"]][0])
    prefix = model.get("continuing_subword_prefix") or ""
    divided = []
    for word, times in sorted(words.items()):
        pieces = [token.value for token in tokenize(word)]
        if len(pieces) > 1 and not unknown.intersection(pieces):
            divided.append((pieces, times))

    def join(pair: Pair) -> str:
        return pair[0] + pair[1].removeprefix(prefix)

    merges = _merge_most_frequent(divided, known, join, (count, least))
    return merges, [join(pair) for pair in merges]


def _merge_most_frequent(
    words: list[tuple[list[str], int]], known: set[str], join: Callable[[Pair], str], wanted: tuple[int, int]
) -> list[Pair]:
    """Merge the most frequent pair of all words, again and again; only the words that have it are looked at."""
    count, least = wanted
    counts: Counter[Pair] = Counter()
    where: dict[Pair, set[int]] = defaultdict(set)
    for number, (pieces, times) in enumerate(words):
        for pair in itertools.pairwise(pieces):
            counts[pair] += times
            where[pair].add(number)
    queue = [(-times, pair) for pair, times in counts.items()]
    heapq.heapify(queue)
    found: list[Pair] = []
    while queue and len(found) < count:
        seen, pair = heapq.heappop(queue)
        made = join(pair)
        if counts[pair] != -seen or -seen < least or made in known:
            continue  # counted anew since, too rare, or a token already, which other merges make
        known.add(made)
        found.append(pair)
        changed: set[Pair] = set()
        for number in where.pop(pair):
            pieces, times = words[number]
            merged = _merged(pieces, pair, made)
            for old in itertools.pairwise(pieces):
                counts[old] -= times
                changed.add(old)
            for new in itertools.pairwise(merged):
                counts[new] += times
                where[new].add(number)
                changed.add(new)
            words[number] = merged, times
        for other in changed - {pair}:
            heapq.heappush(queue, (-counts[other], other))
    return found


def _merged(pieces: list[str], pair: Pair, made: str) -> list[str]:
    """Return pieces with each occurrence of a pair joined, from the left."""
    found: list[str] = []
    for piece in pieces:
        if found and (found[-1], piece) == pair:
            found[-1] = made
        else:
            found.append(piece)
    return found


def _add(data: dict[str, Any], names: list[str | None], merges: list[Pair], tokens: list[str]) -> None:
    """Add tokens to the model of a tokenizer, after all ids that it has, those of added tokens included."""
    model = data["model"]
    if model["type"] == "Unigram":
        _add_pieces(model, names, merges, tokens)
        return
    for id, name in enumerate(names):
        if name is not None:
            model["vocab"].setdefault(name, id)  # added tokens too: otherwise the library numbers them after the model
    model["vocab"] |= {token: len(names) + number for number, token in enumerate(tokens)}
    if model["type"] == "BPE":
        model["merges"] += [list(pair) for pair in merges]


def _add_pieces(model: dict[str, Any], names: list[str | None], merges: list[Pair], tokens: list[str]) -> None:
    """Add unigram pieces that score a little above the two that they join, and so are used where those were."""
    scores: dict[str, float] = {name: score for name, score in model["vocab"]}
    for id in range(len(model["vocab"]), len(names)):
        model["vocab"].append([names[id] or f"<|hole_{id}|>", NEVER])
    for pair, token in zip(merges, tokens, strict=True):
        scores[token] = scores[pair[0]] + scores[pair[1]] + GAIN
        model["vocab"].append([token, scores[token]])
