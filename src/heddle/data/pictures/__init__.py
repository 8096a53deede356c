"""Pictures: images and video with captions, images with classes, and speech in video, as sources of a corpus."""

from heddle.data.pictures.picture_files import AudioVisualSource, ImageClassSource, ImageSource, VideoSource
