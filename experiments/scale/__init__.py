"""Several machines: training with Ray Train and embedding with Ray Data."""
