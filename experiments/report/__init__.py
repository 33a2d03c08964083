"""Pages: tables, figures, pictures, grids of neighbors."""
