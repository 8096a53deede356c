"""Presets: every named model as a short function, and the registry of their names."""

from heddle.models.presets.registry import PRESETS, Preset, PresetConfig, build, preset, presets, register_preset
