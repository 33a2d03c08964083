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
import pytest
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


class Places:
    """Paths of the files that the commands read and write, relative to a fixed root."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.photos, self.model = self.root / "photos", self.root / "model"
        self.index, self.file = self.root / "index", self.root / "file.npz"
        self.evaluation, self.out = self.root / "evaluation", self.root / "out"

    def index_command(self, output=None):
        """Index all photos."""
        given = [f"--saved_model={self.model}", f"--images={self.photos}", "--batch_size=2"]
        return run(index, *given, f"--output={output or self.index}")

    def search_command(self):
        """Search for the neighbors of a photo."""
        query = self.photos / NAMES[4]
        return run(search, f"--index={self.index}", f"--query={query}", "--k=9")

    def evaluate_command(self):
        """Evaluate the embeddings."""
        words = [f"--embeddings={self.file}", "--noclustering", f"--output_dir={self.out}"]
        return run(evaluate, *words)

    def evaluate_model_command(self):
        """Evaluate the exported model on all photos."""
        words = [f"--saved_model={self.model}", "--dataset=folder", f"--data_dir={self.photos}"]
        words += ["--split=all", "--recall_at=1,2"]
        return run(evaluate, *words, f"--output_dir={self.evaluation}")


def index_again(places):
    """Run the index command, then a search."""
    ended = places.index_command()
    return ended if ended[0] else places.search_command()


# Name of the damaged file or folder -> its path, the command that reads it, the output's path.
KINDS = {
    "index": (lambda p: p.index, index_again, lambda p: p.index),
    "index, searched": (lambda p: p.index, Places.search_command, None),
    "exported model": (lambda p: p.model, lambda p: p.index_command(p.out), lambda p: p.out),
    "embeddings": (lambda p: p.file, Places.evaluate_command, lambda p: p.out),
    "evaluation": (lambda p: p.evaluation, Places.evaluate_model_command, lambda p: p.evaluation),
}


def prepare(root):
    """Write all files, undamaged."""
    places = Places(root)
    write_photos(places.photos, NAMES)
    save_color_model(places.model)
    write_checksums(places.model)
    # The array is so large that NumPy does not reach its end if the header's shape is too small.
    rows = np.random.default_rng(0).normal(size=(300, 16))
    np.savez(places.file, embeddings=rows, labels=np.repeat(np.arange(100), 3))
    for ended in (places.index_command(), places.evaluate_model_command()):
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
        places = Places(root)
        path, command, left = KINDS[name]
        target = path(places)
        how = ""
        if damaged_by is not None:
            folder = target if target.is_dir() else target.parent
            names = files_of(folder) if target.is_dir() else [target.name]
            how = f"{name}: {damage(folder, damaged_by, names)}"
        code, printed, said = command(places)
        return how, code, printed, said, left_behind(left(places)) if left and not code else {}

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


@pytest.mark.slow
@pytest.mark.thorough
def test_damaged_files_are_named_or_change_nothing(tmp_path, capsys):
    # Write the files in the folder where the trials read them, because they contain its path.
    prepare(tmp_path / "work")
    shutil.copytree(tmp_path / "work", tmp_path / "whole")
    tally = Tally("damaged files of index, search and evaluate")
    run_trials(__file__, tmp_path / "whole", seeds(200), tally)
    tally.check(capsys)


if __name__ == "__main__":
    trials_of_this_process(Trials(sys.argv[1]), sys.argv[2:])
