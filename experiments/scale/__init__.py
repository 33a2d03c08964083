"""Several machines: training with Ray Train and embedding with Ray Data."""

__all__: list[str] = []
