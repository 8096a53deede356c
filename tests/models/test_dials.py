"""Every preset can be made small by its plain dials alone: sizes that follow from others are not kept."""

import pytest

from heddle.models import PRESETS, EncoderConfig, build

DIALS = {"layers": 2, "width": 48, "heads": 6, "vocab": 200}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_resized_by_layers_width_heads_and_vocab(name: str) -> None:
    known = PRESETS[name].known
    model = build(name, **{dial: size for dial, size in DIALS.items() if dial in known})
    assert isinstance(model.config, EncoderConfig) or sum(p.numel() for p in model.parameters()) < 6_000_000
