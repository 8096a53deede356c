"""Inputs that are not text: images, video and sounds, read as a model was trained to read them."""

from heddle.tasks.inputs.media_inputs import MediaInput, MediaInputs
