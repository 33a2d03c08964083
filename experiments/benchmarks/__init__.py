"""What `experiments.benchmark` measures, one file a benchmark."""

__all__: list[str] = []
