"""Evaluation on labelled files: classes and scores, tags, answers, summaries."""

import contextlib
from collections.abc import Iterator, Sequence

from heddle.core import DataError
from heddle.core.metrics import accuracy, answer_f1, entity_f1, exact_match, macro_f1, pearson, spearman
from heddle.data.sources import Answers, Document, DocumentCounter, LabelKind, Score, SourceConfig, source_for
from heddle.tasks.evaluation.registry import EvaluationTask, GradedModel, Metrics, register_task
from heddle.tasks.few_shot import AnswerGenerator, FewShotClassifier
from heddle.tasks.generation import summarizer
from heddle.tasks.labelling import Answerer, ClassifiedText, Classifier, Tagger
from heddle.tasks.metrics import rouge_each, rouge_scorer


def read_documents(source: SourceConfig, path: str) -> Iterator[Document]:
    """Yield all documents of a source; refuse one of which some cannot be read, or that has none."""
    counter = DocumentCounter()
    for document in source.documents(counter):
        counter.keep()
        yield document
    if not counter.seen:
        raise DataError(f"{path}: want one row or more, found none")
    if counter.skipped.total():
        raise DataError(f"{path}: want every row to have a text that can be read: {counter}")


def _documents(path: str, *kinds: LabelKind) -> list[Document]:
    """Return the documents of a file with the first kind of labels whose columns are found."""
    source = None
    for kind in kinds[:-1]:
        with contextlib.suppress(DataError):
            source = source_for(path).resolve(kind)
    found = list(read_documents(source or source_for(path).resolve(kinds[-1]), path))
    if kinds[-1] != "target" and any(one.label is None for one in found):
        raise DataError(f"{path}: want {kinds[-1]}, found texts without labels")
    if kinds[-1] == "target" and any(one.target is None for one in found):
        raise DataError(f"{path}: want pairs of a text and its target, found texts alone")
    return found


def read_pairs(path: str) -> list[Document]:
    """Return the pairs of a file."""
    return _documents(path, "target")


@register_task
class ClassifyTask(EvaluationTask):
    """Classes of texts by accuracy and macro F1; scores by correlation."""

    name = "classify"
    about = "classes (accuracy, macro F1) or scores (Spearman, Pearson) of the texts of a table"
    few_shot = "labels"

    def examples(self, path: str) -> list[Document]:
        return _documents(path, "score", "classes")

    def predict(self, graded: GradedModel, examples: Sequence[Document]) -> list[ClassifiedText]:
        pairs = [one.pair or "" for one in examples] if examples[0].pair is not None else None
        texts = [one.text for one in examples]
        if graded.prompting is None:
            return Classifier.of(graded.model, graded.tokenizer).run(texts, pairs)
        prompted = FewShotClassifier.of(graded.model, graded.tokenizer, graded.prompting, pairs is not None)
        return prompted.run(texts, pairs)

    def metrics(self, predictions: Sequence[ClassifiedText], examples: Sequence[Document]) -> Metrics:
        if isinstance(examples[0].label, Score):
            gold = [one.label.value for one in examples if isinstance(one.label, Score)]
            mine = [one.score for one in predictions if one.score is not None]
            if len(mine) != len(gold):
                raise DataError(f"{examples[0].origin}: has a score, and the model gives classes")
            return {"spearman": spearman(mine, gold), "pearson": pearson(mine, gold)}
        found = [tuple(sorted(one.labels)) for one in predictions]
        wanted = [tuple(sorted(one.label.names)) for one in examples if one.label is not None]
        if any(len(names) != 1 for names in (*found, *wanted)):
            return {"exact_match": accuracy(found, wanted)}
        return {"accuracy": accuracy(found, wanted), "macro_f1": macro_f1(found, wanted)}


@register_task
class TagTask(EvaluationTask):
    """Tags of words, by F1 over entities."""

    name = "tag"
    about = "tags of words (F1 over entities, accuracy) of CoNLL files or JSON lines"

    def examples(self, path: str) -> list[Document]:
        return _documents(path, "tags")

    def predict(self, graded: GradedModel, examples: Sequence[Document]) -> list[list[str]]:
        tagger = Tagger.of(graded.model, graded.tokenizer)
        found = tagger.run([tuple(one.text.split(" ")) for one in examples])
        return [[word.tag for word in one.words] for one in found]

    def metrics(self, predictions: Sequence[Sequence[str]], examples: Sequence[Document]) -> Metrics:
        gold = [one.label.names for one in examples if one.label is not None]
        score = entity_f1(predictions, gold)
        flat, wanted = ([tag for one in tags for tag in one] for tags in (predictions, gold))
        return {"entity_f1": score.f1, "accuracy": accuracy(flat, wanted)}


@register_task
class AnswerTask(EvaluationTask):
    """Answers in contexts, by SQuAD's exact match and F1."""

    name = "answer"
    about = "answers to questions about contexts (exact match, F1) in SQuAD's format"
    few_shot = "answers"

    def examples(self, path: str) -> list[Document]:
        return _documents(path, "answers")

    def predict(self, graded: GradedModel, examples: Sequence[Document]) -> list[str]:
        questions, contexts = [one.text for one in examples], [one.pair or "" for one in examples]
        if graded.prompting is None:
            return [one.text for one in Answerer.of(graded.model, graded.tokenizer).run(questions, contexts)]
        prompted = AnswerGenerator.of(graded.model, graded.tokenizer, graded.prompting, contexts=True)
        return [one.text for one in prompted.run(questions, contexts)]

    def metrics(self, predictions: Sequence[str], examples: Sequence[Document]) -> Metrics:
        return answer_metrics(predictions, [_answers(one) for one in examples])


def answer_metrics(found: Sequence[str], gold: Sequence[Sequence[str]]) -> Metrics:
    """Return exact match and F1 over questions, as SQuAD's script has them."""
    pairs = list(zip(found, gold, strict=True))
    exact, f1 = (sum(metric(*pair) for pair in pairs) / len(pairs) for metric in (exact_match, answer_f1))
    return {"exact_match": exact, "f1": f1}


def _answers(document: Document) -> list[str]:
    spans = document.label.spans if isinstance(document.label, Answers) else ()
    return [(document.pair or "")[start:end] for start, end in spans]


@register_task
class SummarizeTask(EvaluationTask):
    """Summaries, by ROUGE."""

    name = "summarize"
    about = "summaries of the texts of a table (ROUGE)"

    def examples(self, path: str) -> list[Document]:
        rouge_scorer()  # fails before the work if rouge-score is missing
        return _documents(path, "target")

    def predict(self, graded: GradedModel, examples: Sequence[Document]) -> list[Metrics]:
        task = summarizer(graded.model, graded.tokenizer, graded.settings, {})
        found = [one.text for one in task.run([one.text for one in examples])]
        return rouge_each(found, [one.target or "" for one in examples])

    def metrics(self, predictions: Sequence[Metrics], examples: Sequence[Document]) -> Metrics:
        return {name: sum(one[name] for one in predictions) / len(predictions) for name in predictions[0]}
