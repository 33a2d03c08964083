"""What the losses over pairs share: pairs, distances, and reductions over masks."""

__all__: list[str] = []
