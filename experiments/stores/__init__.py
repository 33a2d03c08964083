"""Stores of other people's making that hold an index's images: embeddings, paths, classes."""

__all__: list[str] = []
