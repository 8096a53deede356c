"""Adapters: LoRA (low-rank adaptation)."""

from heddle.nn.adapters.lora import AdapterConfig, Lora, LoraConfig, lay, maps_of, named

__all__ = ["AdapterConfig", "Lora", "LoraConfig", "lay", "maps_of", "named"]
