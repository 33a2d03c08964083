"""The published datasets: missing parts, missing images, and incomplete copies."""

import pathlib

import pytest
from official_layouts import (
    write_cars_devkit,
    write_cub,
    write_groceries,
    write_inshop,
    write_sop,
)

from pipelines.datasets.registry import load_dataset

WRITE = {
    "cub": write_cub,
    "cars": write_cars_devkit,
    "sop": write_sop,
    "inshop": write_inshop,
    "groceries": write_groceries,
}
every_dataset = pytest.mark.parametrize("name", WRITE)
FULL = {
    "cub": "11788 of 200",
    "cars": "16185 of 196",
    "sop": "59551 of 11318",
    "inshop": "12612 of 3985",
    "groceries": "5421 of 81",
}
"""Images and classes of the complete dataset, or of one of its lists."""


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("cub", "images.txt"),
        ("cub", "image_class_labels.txt"),
        ("cub", "images"),
        ("cars", "devkit/cars_train_annos.mat"),
        ("cars", "cars_test_annos_withlabels.mat"),
        ("cars", "cars_test"),
        ("sop", "Ebay_test.txt"),
        ("inshop", "list_eval_partition.txt"),
        ("inshop", "img"),
        ("groceries", "classes.csv"),
        ("groceries", "test.txt"),
    ],
)
def test_a_missing_part_is_named(name, part, tmp_path):
    root = WRITE[name](tmp_path / "data")
    (root / part).rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=f"must contain .*{pathlib.Path(part).name}"):
        load_dataset(name, root)


@every_dataset
def test_missing_images_are_counted_and_the_first_is_named(name, tmp_path):
    root = WRITE[name](tmp_path)
    lost = [path for path in sorted(root.rglob("*")) if path.suffix.lower() == ".jpg"][-1]
    lost.unlink()
    with pytest.raises(ValueError, match=f"1 images listed in .* are not in .*{lost.name}"):
        load_dataset(name, root)


@every_dataset
def test_an_incomplete_copy_gives_a_warning_with_both_counts(name, tmp_path, caplog):
    load_dataset(name, WRITE[name](tmp_path))
    said = [record.message for record in caplog.records if record.name == "pipelines"]
    assert any(FULL[name] in line for line in said)
    assert all("found " in line for line in said)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("cub", "CUB_200_2011"),
        ("cars", "stanford_cars"),
        ("sop", "Stanford_Online_Products"),
    ],
)
def test_the_parent_of_the_downloaded_folder_is_accepted(name, folder, tmp_path):
    WRITE[name](tmp_path / folder)
    assert len(load_dataset(name, tmp_path).train)
