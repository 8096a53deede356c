"""Presets: every named model as a short function, and the registry that finds it by name."""

from heddle.models.presets.registry import PRESETS, Named, PresetConfig, build, preset, presets

__all__ = ["PRESETS", "Named", "PresetConfig", "build", "preset", "presets"]
