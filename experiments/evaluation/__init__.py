"""Images to embeddings: by a Keras model or a SavedModel, to a file, resumable."""

__all__: list[str] = []
