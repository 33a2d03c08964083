"""Visual search in a folder of photographs: index, results, local page."""

__all__: list[str] = []
