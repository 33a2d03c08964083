"""A training run: its plan, its folder, its callbacks, its failures, its outcome."""
