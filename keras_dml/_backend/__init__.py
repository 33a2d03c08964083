"""What differs between backends: train steps, replicas, gradients, and private parts of Keras."""

__all__: list[str] = []
