"""Random damage to the files of commands: the same result, or one line that names the damage.

Covers index folders, exported models, embeddings, and evaluations.
`training/test_damaged_run.py` covers the folder of a run.
"""

import contextlib
import io
import pathlib
import shutil
import sys

import numpy as np
import tiers
from damage import damage, files_of
from left_behind import differences, left_behind
from photo_search import save_color_model, write_photos
from trial_process import run_trials, trials_of_this_process
from trials import Tally, seeds

from experiments import evaluate, index, search
from experiments.options.command_line import run_command
from keras_dml._files.checksums import write_checksums

NAMES = [f"class{number % 3}/{number}.png" for number in range(9)]


def run(module, *words):
    """Run a command in this process. Return its exit code, stdout, and stderr."""
    printed, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        code = run_command(module.main, [module.__name__, *map(str, words)])
    return code, printed.getvalue(), said.getvalue()


def commands_of(root):
    """Return command lines on the files in a folder, by name."""
    model, photos = f"--saved_model={root / 'model'}", root / "photos"
    given = [model, f"--images={photos}", "--batch_size=2"]
    classes = ["--dataset=folder", f"--data_dir={photos}", "--split=all", "--recall_at=1,2"]
    file = [f"--embeddings={root / 'file.npz'}", "--noclustering"]
    return {
        "index": (index, *given, f"--output={root / 'index'}"),
        "search": (search, f"--index={root / 'index'}", f"--query={photos / NAMES[4]}", "--k=9"),
        "new index": (index, *given, f"--output={root / 'out'}"),
        "embeddings": (evaluate, *file, f"--output_dir={root / 'out'}"),
        "evaluation": (evaluate, model, *classes, f"--output_dir={root / 'evaluation'}"),
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
        ended = run(*commands_of(root)[name])
        assert ended[0] == 0, ended


class Trials:
    """Trials on copies of a folder that `prepare` wrote."""

    def __init__(self, root):
        self._whole = pathlib.Path(root)
        self._expected = {}

    def _ended(self, name, damaged_by=None):
        """Damage a copy and run its command. Return the damage, exit code, outputs, and files."""
        # Always use the same folder, because the files contain its path.
        root = self._whole.parent / "work"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self._whole, root)
        path, names, output = KINDS[name]
        target, how = root / path, ""
        if damaged_by is not None:
            folder = target if target.is_dir() else root
            how = f"{name}: {damage(folder, damaged_by, files_of(target) or [path])}"
        for command in names:
            code, printed, said = run(*commands_of(root)[command])
            if code:
                break
        return how, code, printed, said, left_behind(root / output) if output and not code else {}

    def __call__(self, seed):
        generator = np.random.default_rng(seed)
        name = list(KINDS)[generator.integers(len(KINDS))]
        if name not in self._expected:
            self._expected[name] = self._ended(name)
            assert self._expected[name][1] == 0, self._expected[name]
        how, code, printed, said, left = self._ended(name, generator)
        failure = self._failure(name, code, printed, said, left)
        end = "named in one line" if code else "with the same result"
        return how, None if failure else f"{name}: {end}", failure

    def _failure(self, name, code, printed, said, left):
        if "Traceback" in said or code not in (0, 2):
            return f"ended with {code}: {said[-2000:]}"
        if code:
            lines = [line for line in said.splitlines() if line.startswith("error: ")]
            named = str(self._whole.parent / "work")
            clear = len(lines) == 1 and named in lines[0]
            return None if clear else f"no line that names it: {said}"
        _, _, expected_print, _, expected = self._expected[name]
        if different := differences(expected, left):
            return f"another result without a message: {different}"
        if name == "index, searched" and printed != expected_print:
            return f"other neighbors without a message: {printed}"
        return None


@tiers.thorough
def test_damaged_files_are_named_or_change_nothing(tmp_path, capsys):
    # Write the files in the folder where the trials read them, because they contain its path.
    prepare(tmp_path / "work")
    shutil.copytree(tmp_path / "work", tmp_path / "whole")
    tally = Tally("damaged files of index, search and evaluate")
    run_trials(__file__, tmp_path / "whole", seeds(200), tally)
    tally.check(capsys)


if __name__ == "__main__":
    trials_of_this_process(Trials(sys.argv[1]), sys.argv[2:])
