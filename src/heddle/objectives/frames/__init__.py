"""Objectives of frames: connectionist temporal classification (CTC), alone and jointly with attention."""

from heddle.objectives.frames.ctc import CtcAttentionConfig, CtcConfig
