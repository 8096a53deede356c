"""Adapters: LoRA (low-rank adaptation)."""

from heddle.nn.adapters.lora import AdapterConfig, Lora, LoraConfig, apply_adapters, find_linears, path_matches
