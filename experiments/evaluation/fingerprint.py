"""Checksums of files."""

import hashlib
import os


def file_sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
