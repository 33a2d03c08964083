"""All commands of `experiments` that write, as small runs of a few seconds."""

import hashlib
import os
import pathlib
import tarfile
from typing import NamedTuple

from kills import Command
from official_layouts import write_cub
from photo_search import save_color_model
from tiny_run import TINY, TINY_EPOCHS

from experiments.exporting.formats import FORMATS

# Runs in the command's process: a complete dataset of five images, from a local file.
_OFFICIAL = """
from pipelines.datasets import cub
from pipelines.datasets.download import ARCHIVES, Archive
cub.NUM_IMAGES, cub.NUM_CLASSES = 5, 4
ARCHIVES["cub"] = (Archive({url!r}, "CUB_200_2011.tgz", "CUB_200_2011", {sha256!r}),)
"""


class SmallCommand(NamedTuple):
    """A command as a function of its output folder.

    Attributes:
        module: name of the command's module.
        words: its arguments; `{to}` stands for the folder.
        setup: Python code that the process runs before the command.
    """

    module: str
    words: list[str]
    setup: str = ""

    def start(self, folder):
        """Start the command and return `Command`."""
        return Command(self.module, [word.format(to=folder) for word in self.words], self.setup)


def small_commands(photos, run, folder):
    """Return all commands by name; their inputs are in `photos`, in `run`, and in `folder`.

    Args:
        photos: folder with a folder of pictures for each class.
        run: folder of a finished run.
        folder: an empty folder.
    """
    model = f"--saved_model={save_color_model(folder / 'model')}"
    training = [*TINY, f"--data_dir={photos}", *TINY_EPOCHS]
    recipes = []
    for loss in ("contrastive", "supcon"):
        recipes.append(folder / f"tiny_{loss}.flags")
        recipes[-1].write_text("\n".join([*training, f"--loss={loss}"]) + "\n")
    read = ["--dataset=folder", f"--data_dir={photos}", "--split=all", "--recall_at=1,2"]
    commands = {
        "run": [*training, "--loss=ce", "--dropout=0.5", "--output_dir={to}"],
        "compare": [f"--recipes={','.join(map(str, recipes))}", "--output_dir={to}"],
        "index": [model, f"--images={photos}", "--output_dir={to}", "--batch_size=3"],
        "evaluate": [model, *read, "--eval_batch_size=3", "--output_dir={to}"],
    }
    found = {name: SmallCommand(f"experiments.{name}", words) for name, words in commands.items()}
    words = ["--dataset=cub", "--data_dir={to}"]
    found["prepare"] = SmallCommand("experiments.prepare", words, _official(folder / "remote"))
    for name in FORMATS:
        words = [f"--run={run}", f"--format={name}", "--output_dir={to}/it"]
        found[f"export {name}"] = SmallCommand("experiments.export", words)
    return found


def _official(folder):
    content = os.urandom(1 << 21)
    root = write_cub(folder / "CUB_200_2011", content=content)
    path = pathlib.Path(folder, "CUB_200_2011.tgz")
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        archive.add(root, "CUB_200_2011")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return _OFFICIAL.format(url=path.as_uri(), sha256=sha256)
