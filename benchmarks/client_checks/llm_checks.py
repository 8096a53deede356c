"""llm against `heddle serve`: it always streams, with usage, on completions too."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(tempfile.mkdtemp(prefix="llm-"))
os.environ["LLM_USER_PATH"] = str(FOLDER)

import llm  # noqa: E402 - it reads the folder when it is imported
from checks import BASE, KEY, SCHEMA, Checks, want  # noqa: E402

check = Checks("llm")
(FOLDER / "keys.json").write_text(json.dumps({"heddle": KEY}))
(FOLDER / "extra-openai-models.yaml").write_text(
    f"""
- {{model_id: chat, model_name: gpt, api_base: "{BASE}", api_key_name: heddle, supports_schema: true,
   supports_tools: true}}
- {{model_id: text, model_name: lstm, api_base: "{BASE}", api_key_name: heddle, completion: true}}
- {{model_id: missing, model_name: other, api_base: "{BASE}", api_key_name: heddle}}
"""
)


@check("chat, streamed and whole, with usage")
def _() -> None:
    options = {"max_tokens": 12, "temperature": 0, "seed": 1}
    found = llm.get_model("chat").prompt("Grüße", system="Be brief.", **options)
    streamed = "".join(found)
    whole = llm.get_model("chat").prompt("Grüße", system="Be brief.", stream=False, **options)
    want(streamed == whole.text() and found.usage().output == whole.usage().output == 12, (streamed, found.usage()))


@check("completions, always streamed with usage")
def _() -> None:
    found = llm.get_model("text").prompt("Grüße", max_tokens=9, temperature=0)
    want("".join(found) == llm.get_model("text").prompt("Grüße", max_tokens=9, temperature=0, stream=False).text())


@check("log-probabilities of completions")
def _() -> None:
    found = llm.get_model("text").prompt("Grüße", max_tokens=5, temperature=0, logprobs=2)
    want(found.text() is not None and found.response_json, found.response_json)


@check("a schema")
def _() -> None:
    found = llm.get_model("chat").prompt("Grüße", schema=SCHEMA, max_tokens=200, temperature=0)
    want(json.loads(found.text()).keys() == {"a", "b"}, found.text())


@check("a conversation, and tools that are offered")
def _() -> None:
    talk = llm.get_model("chat").conversation()
    want(talk.prompt("a", max_tokens=4, temperature=0).text() is not None)
    want(talk.prompt("b", max_tokens=4, temperature=0).text() is not None)

    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    offered = llm.get_model("chat").prompt("a", tools=[add], max_tokens=9, temperature=0)
    want(offered.text() is not None and offered.tool_calls() == [], offered)


@check("an unknown model is one line")
def _() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "llm", "-m", "missing", "a"], capture_output=True, text=True, check=False
    )
    want(done.returncode != 0 and "model: want one of" in done.stderr and "Traceback" not in done.stderr, done.stderr)
