"""Few-shot prompting of any model that writes text: classification by scoring labels, answers by generation."""

from heddle.tasks.few_shot.answer import AnswerGenerator, GeneratedAnswer
from heddle.tasks.few_shot.classify import FewShotClassifier
from heddle.tasks.few_shot.options import Examples, FewShot, FewShotOptions, Labels, few_shot
from heddle.tasks.few_shot.prompts import Example, PromptBuilder, draw_examples
from heddle.tasks.few_shot.template import PromptTemplate, prompt_template
