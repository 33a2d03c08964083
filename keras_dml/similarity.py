"""A module that was removed: the names of TensorFlow Similarity."""

raise ImportError(
    "keras_dml.similarity was removed in 0.3.0. For each of its names, "
    "docs/pages/guides/migrating.md lists the name to use instead."
)
