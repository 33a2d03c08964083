"""What is wrong with a set of labeled images: duplicates, label errors, outliers, confusions."""

__all__: list[str] = []
