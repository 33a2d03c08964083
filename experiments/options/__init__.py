"""The command line: what flags there are, how they are read, explained and refused."""

__all__: list[str] = []
