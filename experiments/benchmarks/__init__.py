"""What `experiments.benchmark` measures, one file a benchmark."""
