"""Damage files: cut, change, replace, or delete them."""

import pathlib


def _cut(data, generator, other):
    return data[: generator.integers(len(data))]


def _flipped(data, generator, other):
    changed = bytearray(data)
    changed[generator.integers(len(data))] ^= 1 << int(generator.integers(8))
    return bytes(changed)


def _another_byte(data, generator, other):
    changed = bytearray(data)
    changed[generator.integers(len(data))] = int(generator.integers(256))
    return bytes(changed)


def _zeros(data, generator, other):
    """Write a page of zeros, which a machine can leave after a crash."""
    start = int(generator.integers(len(data)))
    length = min(int(generator.integers(1, 4097)), len(data) - start)
    return data[:start] + bytes(length) + data[start + length :]


def _longer(data, generator, other):
    return data + generator.bytes(int(generator.integers(1, 100)))


def _another_file(data, generator, other):
    return other


def _empty(data, generator, other):
    return b""


def _missing(data, generator, other):
    return None


_KINDS = {
    "cut": _cut,
    "one bit flipped": _flipped,
    "one byte changed": _another_byte,
    "zeros within": _zeros,
    "longer": _longer,
    "another file": _another_file,
    "empty": _empty,
    "missing": _missing,
}


def files_of(folder):
    """Return the paths of all nonempty files below a folder, sorted."""
    folder = pathlib.Path(folder)
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size)
    return [path.relative_to(folder).as_posix() for path in found]


def damage(folder, generator, names=None):
    """Damage a file that `generator` chooses; return its name and the damage as text.

    Args:
        folder: folder of the files.
        generator: `numpy.random.Generator`; with the folder, it determines the damage.
        names: paths in the folder to choose from. None: `files_of`.
    """
    folder = pathlib.Path(folder)
    names = files_of(folder) if names is None else names
    while True:
        name = names[generator.integers(len(names))]
        kind = list(_KINDS)[generator.integers(len(_KINDS))]
        data = (folder / name).read_bytes()
        other = (folder / names[generator.integers(len(names))]).read_bytes()
        changed = _KINDS[kind](data, generator, other)
        if changed == data:
            continue
        (folder / name).unlink()
        if changed is not None:
            (folder / name).write_bytes(changed)
        return f"{name}, {kind}"
