"""Atomic writes and checksums of files and folders."""

__all__: list[str] = []
