"""Damage a file of a folder: change, replace, or delete it."""

import pathlib

import mutations


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
        data = (folder / name).read_bytes()
        kind = generator.integers(9)
        if kind == 0:
            (folder / name).unlink()
            return f"{name}, missing"
        if kind == 1:
            how, changed = "empty", b""
        elif kind == 2:
            other = names[generator.integers(len(names))]
            how, changed = f"the content of {other}", (folder / other).read_bytes()
        else:
            how, changed = mutations.mutated(data, generator, mutations.OF_BYTES)
        if changed != data:
            (folder / name).unlink()
            (folder / name).write_bytes(changed)
            return f"{name}, {how}"
