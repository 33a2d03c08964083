"""Random damage to the files of commands: the same result, or one line that names the damage.

Covers index folders, exported models, embeddings, and evaluations.
`training/test_damaged_run.py` covers the folder of a run.
"""

import shutil

import numpy as np
import tiers
from damage import damage, files_of
from left_behind import differences, left_behind
from photo_search import save_color_model, write_photos
from tiny_run import command_of
from trials import Tally, seeds

from keras_dml._files.checksums import write_checksums

NAMES = [f"class{number % 3}/{number}.png" for number in range(9)]


def commands_of(root):
    """Return command lines on the files in a folder, by name."""
    model, photos = f"--saved_model={root / 'model'}", root / "photos"
    given = [model, f"--images={photos}", "--batch_size=2"]
    classes = ["--dataset=folder", f"--data_dir={photos}", "--split=all", "--recall_at=1,2"]
    file = [f"--embeddings={root / 'file.npz'}", "--noclustering"]
    return {
        "index": ("index", *given, f"--output_dir={root / 'index'}"),
        "search": ("search", f"--index={root / 'index'}", f"--query={photos / NAMES[4]}", "--k=9"),
        "new index": ("index", *given, f"--output_dir={root / 'out'}"),
        "embeddings": ("evaluate", *file, f"--output_dir={root / 'out'}"),
        "evaluation": ("evaluate", model, *classes, f"--output_dir={root / 'evaluation'}"),
    }


# Name of a trial -> the damaged file or folder, the commands that read it, and their output.
KINDS = {
    "index": ("index", ["index", "search"], "index"),
    "index, searched": ("index", ["search"], None),
    "exported model": ("model", ["new index"], "out"),
    "embeddings": ("file.npz", ["embeddings"], "out"),
    "evaluation": ("evaluation", ["evaluation"], "evaluation"),
}


def prepare(root):
    """Write all files, undamaged."""
    write_photos(root / "photos", NAMES)
    save_color_model(root / "model")
    write_checksums(root / "model")
    # The array is so large that NumPy does not reach its end if the header's shape is too small.
    rows = np.random.default_rng(0).normal(size=(300, 16))
    np.savez(root / "file.npz", embeddings=rows, labels=np.repeat(np.arange(100), 3))
    for name in ("index", "evaluation"):
        command, *words = commands_of(root)[name]
        assert command_of(command)(*words) == 0


def ended(root, name, capsys):
    """Run the commands of a trial. Return the exit code, stdout, stderr, and the files."""
    _, names, output = KINDS[name]
    for each in names:
        command, *words = commands_of(root)[each]
        code = command_of(command)(*words)
        printed, said = capsys.readouterr()
        if code:
            break
    return code, printed, said, left_behind(root / output) if output and not code else {}


def failure(root, name, expected, found):
    """Return why a trial failed, or None."""
    code, printed, said, left = found
    if "Traceback" in said or code not in (0, 2):
        return f"ended with {code}: {said[-2000:]}"
    if code:
        lines = [line for line in said.splitlines() if line.startswith("error: ")]
        clear = len(lines) == 1 and str(root) in lines[0]
        return None if clear else f"no line that names it: {said}"
    if different := differences(expected[3], left):
        return f"another result without a message: {different}"
    if name == "index, searched" and printed != expected[1]:
        return f"other neighbors without a message: {printed}"
    return None


@tiers.thorough
def test_damaged_files_are_named_or_change_nothing(tmp_path, capsys):
    # Always use the same folder, because the files contain its path.
    work, whole = tmp_path / "work", tmp_path / "whole"
    prepare(work)
    work.rename(whole)
    expected, tally = {}, Tally("damaged files of index, search and evaluate")
    for name in KINDS:
        shutil.copytree(whole, work)
        expected[name] = ended(work, name, capsys)
        assert expected[name][0] == 0, expected[name]
        shutil.rmtree(work)
    for seed in seeds(200):
        generator = np.random.default_rng(seed)
        name = list(KINDS)[generator.integers(len(KINDS))]
        shutil.copytree(whole, work)
        target = work / KINDS[name][0]
        folder = target if target.is_dir() else work
        how = damage(folder, generator, files_of(target) or [target.name])
        found = ended(work, name, capsys)
        if why := failure(work, name, expected[name], found):
            tally.fail(seed, f"{name}: {how}: {why}")
        else:
            tally.add(f"{name}: {'named in one line' if found[0] else 'with the same result'}")
        shutil.rmtree(work)
    tally.check(capsys)
