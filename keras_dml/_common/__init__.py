"""Argument checks, errors, extras, deprecation, types, and progress bars.

Imports neither Keras nor TensorFlow.
"""

__all__: list[str] = []
