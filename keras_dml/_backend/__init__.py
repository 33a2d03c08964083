"""Train steps, replicas, gradients, configurations, and private parts of Keras."""

__all__: list[str] = []
