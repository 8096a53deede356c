"""Renames: every change of a user-visible name since the contract was frozen, one declared line for each.

The frozen names are put through these tables before they are compared with today's. What is not declared here and
differs makes the contract's tests fail; so does what is declared and is not so.
"""

from typing import Any

# "TABLE.KEY": "NEW KEY", where a table is `family/kind` ("optimizer/adamw.rate": "learning_rate") or the name of a
# table without kinds ("training.micro": "micro_batch", "run.also": "mix"); a key that moved to another table:
# "hardware.sums": "training.reduction". A family that is called after the key goes with it. Recipes and defaults follow
# by themselves.
CONFIG_KEYS: dict[str, str] = {}

# "FAMILY/KIND": "NEW KIND".
CONFIG_KINDS: dict[str, str] = {}

# "FAMILY": "NEW FAMILY", where it does not follow from CONFIG_KEYS: families are called after the key that holds them.
CONFIG_FAMILIES: dict[str, str] = {}

# "VERB" or "VERB --option": new name; with a verb its options go.
OPTIONS: dict[str, str] = {}

# As in names.json: "heddle.rules", "LM.follow", "LM.generate(draft)", "preset t5-base"; parameters go with a method.
PUBLIC: dict[str, str] = {}

# Regular expression: replacement, for names of weights: r"\.up\.weight$": ".rise.weight".
STATE_DICT: dict[str, str] = {}

# Names in metrics.jsonl: "rate": "learning_rate".
METRICS: dict[str, str] = {}

# What came, went, or got another value (here with the new one), by category: configs, recipes, options, public,
# state_dict; each as the test names it, such as "configs": ["training.pace"].
ADDED: dict[str, list[str]] = {}
REMOVED: dict[str, list[str]] = {}
CHANGED: dict[str, dict[str, Any]] = {}

# Goldens that differ on purpose, each with the reason: "runs: lora: weights", "logits: gpt2".
OTHER_NUMBERS: dict[str, str] = {}
