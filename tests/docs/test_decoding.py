"""The decoding strategy of docs/decoding.md works as the page says."""

import re
from pathlib import Path
from typing import Any

from cli.runs import TOKENIZER, config, loud_model

from heddle import LM

PAGE = (Path(__file__).parents[2] / "docs" / "decoding.md").read_text(encoding="utf-8")


def test_the_strategy_of_the_page_takes_the_second_best_token() -> None:
    section = PAGE.partition("## Adding a decoding strategy")[2]
    code = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0].replace("second_best", "second_best_of_the_page")
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, "decoding.md", "exec", dont_inherit=True), names)
    lm = LM(loud_model(config()).eval(), TOKENIZER)
    (ids,) = lm.generate_ids([[5, 6, 7]], max_tokens=1, strategy=names["SecondBest"]())
    assert ids == [int(lm.logits([[5, 6, 7]])[0, -1].topk(2).indices[1])]
    found = lm.generate("the", max_tokens=5, strategy=names["SecondBest"]())
    assert (
        found
        == lm.generate("the", max_tokens=5, strategy="second_best_of_the_page")
        != lm.generate("the", max_tokens=5)
    )
