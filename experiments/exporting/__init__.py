"""A trained model in the formats of other people's servers."""

__all__: list[str] = []
