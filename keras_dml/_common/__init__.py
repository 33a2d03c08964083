"""Argument checks, errors, extras, deprecation, and types. Imports neither Keras nor TensorFlow."""

__all__: list[str] = []
