"""Pages: tables, figures, pictures, grids of neighbors."""

__all__: list[str] = []
