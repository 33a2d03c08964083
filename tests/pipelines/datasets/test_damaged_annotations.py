"""Damaged and hostile annotation files give a table or one clear line."""

import os
import time

import numpy as np
import pytest
import tiers
from mutations import OF_BYTES, OF_TEXT, mutated
from official_layouts import write_cars, write_cub, write_groceries, write_inshop, write_sop
from trials import Tally, seeds

from keras_dml._common.errors import ArgumentError
from pipelines.datasets.registry import load_dataset

LISTS = {
    "cub": (
        write_cub,
        ["images.txt", "image_class_labels.txt", "bounding_boxes.txt", "classes.txt"],
    ),
    "sop": (write_sop, ["Ebay_train.txt", "Ebay_test.txt"]),
    "inshop": (write_inshop, ["list_eval_partition.txt"]),
    "groceries": (write_groceries, ["classes.csv", "train.txt", "val.txt", "test.txt"]),
    "cars": (write_cars, ["cars_annos.mat"]),
}
MOST_SECONDS = 5


def load(name, root):
    boxes = {"crop_to_box": True} if name in ("cub", "cars") else {}
    return load_dataset(name, root, **boxes)


def counts(split):
    tables = split.tables.values()
    return sum(map(len, tables)), sum(len(np.unique(table.labels)) for table in tables)


class Good:
    """Write an intact dataset. The loader warns that it is small, with its counts."""

    def __init__(self, name, root, caplog):
        write, self.files = LISTS[name]
        self.name, self.root = name, write(root)
        self.counts = counts(load(name, self.root))
        self.warnings = caplog.messages

    def end(self, caplog):
        """Load the dataset, of which a file may be damaged: `(end, None)` or `(None, fault)`."""
        caplog.clear()
        began = time.monotonic()
        try:
            split = load(self.name, self.root)
        except ArgumentError as error:
            said = str(error)
            if not any(name in said for name in [*self.files, "data_dir"]):
                return None, f"names no file: {said[:300]}"
            if len(said) > 4000:
                return None, f"a message of {len(said)} characters: {said[:200]}"
            return "refused", None
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"
        if time.monotonic() - began > MOST_SECONDS:
            return None, f"took {time.monotonic() - began:.0f} s"
        for table in split.tables.values():
            for path in table.paths:
                inside = os.path.realpath(path).startswith(os.path.realpath(self.root) + os.sep)
                if not inside or not os.path.exists(path):
                    return None, f"names {path!r}"
            if table.boxes is not None and table.boxes[:, 2:].min() < 1:
                return None, f"boxes {table.boxes.tolist()}"
        if counts(split) != self.counts and caplog.messages == self.warnings:
            return None, f"{counts(split)} in place of {self.counts} without a word"
        return ("another table" if counts(split) != self.counts else "a table"), None


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *((name, 40) for name in LISTS if name != "cars"),
        pytest.param("cars", 3, marks=pytest.mark.slow),
        *(
            pytest.param(name, 80 if name == "cars" else 2500, marks=tiers.THOROUGH)
            for name in LISTS
        ),
    ],
)
def test_damaged_lists(name, count, tmp_path, caplog, capsys):
    good = Good(name, tmp_path / name, caplog)
    tally = Tally(f"mutated annotation files of {name}")
    for seed in seeds(count):
        rng = np.random.default_rng([seed, 15])
        file = good.root / good.files[rng.integers(len(good.files))]
        whole = file.read_bytes()
        what, content = mutated(whole, rng, OF_BYTES if name == "cars" else OF_TEXT)
        file.write_bytes(content)
        end, fault = good.end(caplog)
        if fault:
            tally.fail(seed, f"{file.name}, {what}: {fault}")
        else:
            tally.add(end)
        file.write_bytes(whole)
    assert good.end(caplog)[0] == "a table"
    tally.check(capsys)
