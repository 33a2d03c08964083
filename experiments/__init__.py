"""Command-line programs around keras_dml and pipelines: flags, recipes, reports."""
