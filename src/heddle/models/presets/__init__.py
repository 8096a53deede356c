"""Presets: every named model as a short function, and the registry that finds it by name."""

from heddle.models.presets.registry import PRESETS, Preset, PresetConfig, build, preset, presets
