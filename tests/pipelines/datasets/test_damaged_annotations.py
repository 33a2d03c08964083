"""Damaged and hostile annotation files give a table or one clear line."""

import os
import pathlib
import time

import numpy as np
import pytest
import tiers
from mutations import OF_BYTES, OF_TEXT, mutated
from official_layouts import write_cars, write_cub, write_groceries, write_inshop, write_sop
from trials import Tally, seeds

from keras_dml._common.errors import ArgumentError
from pipelines.datasets import cars, cub, groceries, inshop, sop
from pipelines.datasets.registry import load_dataset

LISTS = {
    "cub": (
        write_cub,
        ["images.txt", "image_class_labels.txt", "bounding_boxes.txt", "classes.txt"],
    ),
    "sop": (write_sop, ["Ebay_train.txt", "Ebay_test.txt"]),
    "inshop": (write_inshop, ["list_eval_partition.txt"]),
    "groceries": (write_groceries, ["classes.csv", "train.txt", "val.txt", "test.txt"]),
}  # fmt: skip
MODULES = {"cub": cub, "sop": sop, "inshop": inshop, "groceries": groceries, "cars": cars}
_SECONDS = 5


def load(name, root):
    boxes = {"crop_to_box": True} if name in ("cub", "cars") else {}
    return load_dataset(name, root, **boxes)


def counts(split):
    return {
        side: (len(table), len(np.unique(table.labels))) for side, table in split.tables.items()
    }


class Good:
    """Write a complete dataset. Its module only warns about the counts."""

    def __init__(self, name, write, root, monkeypatch):
        self.name, self.root = name, write(root)
        self.counts = counts(load(name, self.root))
        module = MODULES[name]
        sides = {"training": "train", "test": "query" if name == "inshop" else "test"}
        for place, attribute in enumerate(("NUM_IMAGES", "NUM_CLASSES")):
            full = {sides.get(side, side): pair[place] for side, pair in self.counts.items()}
            if not isinstance(getattr(module, attribute), dict):
                full = full["train"] + full["test"]
            monkeypatch.setattr(module, attribute, full)

    def end_of(self, file, caplog):
        """Load a dataset whose file `file` is damaged: `(end, None)` or `(None, fault)`."""
        caplog.clear()
        began = time.monotonic()
        try:
            split = load(self.name, self.root)
        except ArgumentError as error:
            return self._refused(str(error), file)
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"
        if time.monotonic() - began > _SECONDS:
            return None, f"took {time.monotonic() - began:.0f} s"
        for table in split.tables.values():
            for path in table.paths:
                inside = os.path.realpath(path).startswith(os.path.realpath(self.root) + os.sep)
                if not inside or not os.path.exists(path):
                    return None, f"names {path!r}"
            if table.boxes is not None and table.boxes[:, 2:].min() < 1:
                return None, f"boxes {table.boxes.tolist()}"
        if counts(split) != self.counts and not caplog.records:
            return None, f"{counts(split)} in place of {self.counts} without a word"
        return ("another table" if counts(split) != self.counts else "a table"), None

    def _refused(self, said, file):
        named = [pathlib.Path(file).name, *LISTS.get(self.name, (None, []))[1], "data_dir"]
        if not any(name in said for name in named):
            return None, f"names no file: {said[:300]}"
        if len(said) > 4000:
            return None, f"a message of {len(said)} characters: {said[:200]}"
        return "refused", None


@tiers.parametrize("count", [40, 2500], [40], tiers.THOROUGH)
@pytest.mark.parametrize("name", LISTS)
def test_damaged_lists(name, count, tmp_path, monkeypatch, caplog, capsys):
    write, files = LISTS[name]
    good = Good(name, write, tmp_path / name, monkeypatch)
    tally = Tally(f"mutated annotation files of {name}")
    for seed in seeds(count):
        rng = np.random.default_rng([seed, 15])
        file = good.root / files[rng.integers(len(files))]
        whole = file.read_bytes()
        what, content = mutated(whole, rng, OF_TEXT)
        file.write_bytes(content)
        end, fault = good.end_of(file, caplog)
        if fault:
            tally.fail(seed, f"{file.name}, {what}: {fault}")
        else:
            tally.add(end)
        file.write_bytes(whole)
    assert good.end_of(files[0], caplog)[0] == "a table"
    tally.check(capsys)


@pytest.mark.slow
@tiers.parametrize("count", [3, 80], [3], pytest.mark.thorough)
def test_damaged_matlab_files(count, tmp_path, monkeypatch, caplog, capsys):
    good = Good("cars", write_cars, tmp_path / "cars", monkeypatch)
    file = good.root / "cars_annos.mat"
    whole = file.read_bytes()
    tally = Tally("damaged annotation files of cars")
    for seed in seeds(count):
        what, content = mutated(whole, np.random.default_rng([seed, 16]), OF_BYTES)
        file.write_bytes(content)
        end, fault = good.end_of(file, caplog)
        if fault:
            tally.fail(seed, f"{what}: {fault}")
        else:
            tally.add(end)
    tally.check(capsys)
