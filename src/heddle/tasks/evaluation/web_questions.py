"""WebQuestions: questions answered from memory, closed book (Berant et al. 2013; Roberts et al. 2020)."""

from collections.abc import Sequence
from typing import Any

from heddle.core import DataError
from heddle.data.sources import SquadSource
from heddle.tasks.evaluation.labelled import answer_metrics
from heddle.tasks.evaluation.registry import EvaluationTask, GradedModel, Metrics, register_task
from heddle.tasks.few_shot import AnswerGenerator, FewShot


@register_task
class WebQuestionsTask(EvaluationTask):
    """Answers from memory, by exact match and F1 with the best of several right answers, as SQuAD normalizes them."""

    name = "webquestions"
    about = (
        "answers from memory (exact match, F1) to the questions of WebQuestions' JSON, or of JSON lines with answers"
    )
    few_shot = "answers"

    def examples(self, path: str) -> list[Any]:
        found = list(SquadSource(path=path).questions())
        for one in found:
            if not one.answers:
                raise DataError(f"{one.origin}: want one right answer or more, found none")
        return found

    def predict(self, graded: GradedModel, examples: Sequence[Any]) -> list[str]:
        prompting = FewShot() if graded.prompting is None else graded.prompting
        task = AnswerGenerator.of(graded.model, graded.tokenizer, prompting)
        return [one.text for one in task.run([one.text for one in examples])]

    def metrics(self, predictions: Sequence[str], examples: Sequence[Any]) -> Metrics:
        return answer_metrics(predictions, [one.answers for one in examples])
