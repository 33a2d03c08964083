"""The benchmarks of `experiments.benchmark`: one file each, with its options and `measure`."""

__all__: list[str] = []
