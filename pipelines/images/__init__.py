"""Decoding, cropping, resampling, and color jitter of images. Search for unreadable images."""

__all__: list[str] = []
