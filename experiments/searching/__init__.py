"""Visual search: a folder of images becomes an index or a store, and answers queries."""

__all__: list[str] = []
