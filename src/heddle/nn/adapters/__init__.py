"""Adapters: LoRA (low-rank adaptation)."""

from heddle.nn.adapters.lora import AdapterConfig, Lora, LoraConfig, find_linears, lay, named

__all__ = ["AdapterConfig", "Lora", "LoraConfig", "find_linears", "lay", "named"]
