"""The published datasets: layouts, lists, boundaries, boxes, and damaged or missing parts."""

import json
import pathlib

import pytest
from official_layouts import (
    GROCERIES,
    write_cars,
    write_cars_devkit,
    write_cub,
    write_groceries,
    write_inshop,
    write_mat,
    write_sop,
)

from pipelines.datasets import cars, cub, read_mat
from pipelines.datasets.registry import load_dataset


@pytest.fixture(autouse=True)
def _read_here(request, monkeypatch):
    """Read Cars-196 without its subprocess, which takes half a second, except in its tests."""
    if "subprocess" not in request.node.name:
        printed = lambda *arguments: json.dumps(read_mat.variable_of(*arguments))  # noqa: E731
        monkeypatch.setattr(cars, "_printed", printed)


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
        ("cub", "images"),
        ("cars", "devkit/cars_train_annos.mat"),
        ("cars", "cars_test_annos_withlabels.mat"),
        ("cars", "cars_test"),
        ("sop", "Ebay_test.txt"),
        ("inshop", "list_eval_partition.txt"),
        ("inshop", "img"),
        ("groceries", "classes.csv"),
    ],
)
def test_a_missing_part_is_named(name, part, tmp_path):
    root = WRITE[name](tmp_path / "data")
    (root / part).rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=f"must contain .*{pathlib.Path(part).name}"):
        load_dataset(name, root)


SOP = "image_id class_id super_class_id path\n"
INSHOP = "image_name item_id evaluation_status\n"
BAD_LISTS = [
    ("cub", "images.txt", "1 a.jpg\nb.jpg\n", "line 2 must be 'image_id path'.*b.jpg"),
    ("cub", "images.txt", "\n", "must have lines .* but got an empty file"),
    ("cub", "image_class_labels.txt", f"1 {'9' * 19}\n", "line 1 must be 'image_id class_id'"),
    ("cub", "image_class_labels.txt", "1 1\n", "disagree: 4 image ids .* The first: 2, 3, 4, 5"),
    ("cub", "classes.txt", "1 a\n2 b\n", "must name all classes, but got 2 .*first: 101, 102"),
    ("sop", "Ebay_test.txt", "1 1 1 a.JPG\n", "line 1 must be the columns' names 'image_id class"),
    ("sop", "Ebay_test.txt", f"{SOP}1 9 1 a.JPG\n\n1 9 1 b.JPG", "line 4: duplicate image_id 1"),
    ("sop", "Ebay_test.txt", f"{SOP}1 9 1 a.JPG\n2 9 2 b.JPG", "several for 1 class ids"),
    ("sop", "Ebay_test.txt", f"{SOP}1 2 1 a.JPG\n", "must not share classes, .*The first: 2"),
    ("sop", "Ebay_test.txt", f"{SOP}1 9 1 /etc/passwd\n", "must be inside .*: /etc/passwd"),
    ("sop", "Ebay_test.txt", f"{SOP}1 9 1 chair_final/../../x\n", "must be inside .*1 outside it"),
    ("inshop", "list_eval_partition.txt", f"many\n{INSHOP}", "line 1 must be 'number of images'"),
    ("inshop", "list_eval_partition.txt", f"1\n{INSHOP}img/a.jpg id_1 test\n",
     "line 3 must be 'image_name.*'img/a.jpg id_1 test'"),
    ("inshop", "list_eval_partition.txt", f"2\n{INSHOP}img/a.jpg id_1 train\n",
     "must list 2 images.* but got 1"),
    ("groceries", "classes.csv", f"{GROCERIES}A,0,K,0,/a,/b\nB,0,K,0,/a,/b\n", "but got 0 for A"),
    ("groceries", "classes.csv", f"{GROCERIES}A,0,K,0,/a,/b\n",
     "all classes in train.txt .* 1 class ids"),
    ("groceries", "val.txt", "test/Fruit/Kind_21/Kind_42/Kind_42_000.jpg, 42, 7\n",
     "class id 42 has the coarse class 21 in the former and 7"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "file", "text", "message"), BAD_LISTS)
def test_a_bad_list_is_named(name, file, text, message, tmp_path):
    root = WRITE[name](tmp_path)
    (root / file).write_text(text)
    with pytest.raises(ValueError, match=f"{file}.*{message}"):
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
        ("inshop", "In-shop Clothes Retrieval Benchmark"),
        ("inshop", "inshop"),
        ("groceries", "dataset"),
        ("groceries", "GroceryStoreDataset/dataset"),
        ("groceries", "GroceryStoreDataset-master/dataset"),
    ],
)
def test_the_parent_of_the_downloaded_folder_is_accepted(name, folder, tmp_path):
    WRITE[name](tmp_path / folder)
    assert len(load_dataset(name, tmp_path).train)


def test_rows_classes_and_names_of_cub(tmp_path):
    write_cub(tmp_path, (101, 7, 7, 10))
    (tmp_path / "image_class_labels.txt").write_text("3 7\n\n1 101\n4 10\n2 7\n")
    table = cub.load(tmp_path).table
    assert table.boxes is None
    assert table.class_names == ("007.Bird_7", "010.Bird_10", "101.Bird_101")
    assert table.labels.tolist() == [2, 0, 0, 1]
    assert table.paths[0] == str(tmp_path / "images" / "101.Bird_101" / "Bird_0001.jpg")


def test_boxes_start_at_0_and_are_joined_by_id(tmp_path):
    write_cub(tmp_path, (101, 7, 7))
    lines = (tmp_path / "bounding_boxes.txt").read_text().splitlines()
    (tmp_path / "bounding_boxes.txt").write_text("\n".join(reversed(lines)))
    split = load_dataset("cub", tmp_path, crop_to_box=True)
    assert split.test.boxes.tolist() == [[1, 0, 20, 30]]
    assert split.train.boxes.tolist() == [[3, 1, 20, 30], [5, 2, 20, 30]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "must contain bounding_boxes.txt"),
        *(
            (f"1 1 1 5 5\n2 1 1 {word} 5\n", "boxes.txt, line 2 must be 'image_id x y")
            for word in ("nan", "1e308", "0.2", "-3")
        ),
        ("1 1 1 5 5\n", "images.txt and bounding_boxes.txt .* disagree: 4 image ids"),
    ],
)
def test_bad_boxes_only_matter_if_used(tmp_path, text, message):
    write_cub(tmp_path)
    (tmp_path / "bounding_boxes.txt").unlink()
    if text:
        (tmp_path / "bounding_boxes.txt").write_text(text)
    assert len(cub.load(tmp_path).table) == 5
    with pytest.raises(ValueError, match=message):
        cub.load(tmp_path, crop_to_box=True)


@pytest.mark.parametrize(
    ("name", "write", "boundary", "train", "test"),
    [
        ("cub", lambda root: write_cub(root, (1, 100, 101)), (),
         ("001.Bird_1", "100.Bird_100"), ("101.Bird_101",)),
        ("cub", write_cub, (1, 2), ("001.Bird_1",), ("002.Bird_2", "101.Bird_101")),
        ("cars", lambda root: write_cars(root, (1, 98, 99)), (), ("Car 1", "Car 98"), ("Car 99",)),
        ("groceries", lambda root: write_groceries(root, (0, 1, 2, 3)), (1, 2),
         ("Kind_0",), ("Kind_1", "Kind_2")),
    ],
)  # fmt: skip
def test_the_official_and_other_boundaries(name, write, boundary, train, test, tmp_path):
    arguments = dict(zip(("train_classes", "test_classes"), boundary))
    split = load_dataset(name, write(tmp_path), **arguments)
    assert (split.train.class_names, split.test.class_names) == (train, test)
    assert split.catalog is None or split.catalog.class_names == test


@pytest.mark.parametrize(
    ("class_ids", "side"), [((1, 2, 3), "test"), ((150, 151), "train")], ids=["low", "high"]
)
def test_a_subset_on_one_side_of_the_official_boundary(tmp_path, class_ids, side):
    write_cub(tmp_path, class_ids)
    with pytest.raises(ValueError, match=f"no class to {side}. Set train_classes"):
        load_dataset("cub", tmp_path)
    assert load_dataset("cub", tmp_path, train_classes=1).train.num_classes == 1


def test_lists_of_sop_define_the_split_and_kinds_of_products_are_coarse_classes(tmp_path):
    write_sop(tmp_path, (10, 7, 10), (30, 9))
    lines = (tmp_path / "Ebay_train.txt").read_text().replace(" 10 3 ", " 10 5 ")
    (tmp_path / "Ebay_train.txt").write_text(lines)
    split = load_dataset("sop", tmp_path)
    assert split.train.class_names == ("7", "10")
    assert split.train.coarse_ids.tolist() == [3, 5]
    assert split.train.labels.tolist() == [1, 0, 1]
    assert split.test.class_names == ("9", "30")
    assert split.test.labels.tolist() == [1, 0]
    assert split.test.paths[0] == str(tmp_path / "chair_final" / "30_4.JPG")
    assert split.gallery is None
    assert not split.same_classes


def test_other_boundaries_and_boxes_are_refused(tmp_path):
    write_sop(tmp_path)
    for name, count in (("sop", "train_classes"), ("inshop", "test_classes")):
        with pytest.raises(ValueError, match=f"{count} must not be set with {name}, which has an"):
            load_dataset(name, tmp_path, **{count: 1})
    with pytest.raises(ValueError, match="crop_to_box must be False .*cars and cub.* True for sop"):
        load_dataset("sop", tmp_path, crop_to_box=True)


def test_query_and_gallery_of_inshop_share_their_classes_in_both_layouts(tmp_path):
    split = load_dataset("inshop", write_inshop(tmp_path, (7, 2, 7), (5, 3), (3, 9, 5)))
    assert split.train.class_names == ("id_00000002", "id_00000007")
    assert split.train.labels.tolist() == [1, 0, 1]
    names = ("id_00000003", "id_00000005", "id_00000009")
    assert split.test.class_names == split.gallery.class_names == names
    assert split.test.labels.tolist() == [1, 0]
    assert split.gallery.labels.tolist() == [0, 2, 1]
    assert split.gallery.paths[0].startswith(str(tmp_path / "img" / "WOMEN" / "Tees"))
    assert not split.same_classes
    for folder, name in (("Eval", "list_eval_partition.txt"), ("Img", "img")):  # as downloaded
        (tmp_path / folder).mkdir()
        (tmp_path / name).rename(tmp_path / folder / name)
    again = load_dataset("inshop", tmp_path)
    assert again.gallery.paths[0] == split.gallery.paths[0].replace("/img/", "/Img/img/")


@pytest.mark.parametrize("side", ["train", "query", "gallery"])
def test_an_empty_set_of_inshop(tmp_path, side):
    with pytest.raises(ValueError, match=f"must list images with evaluation_status {side}"):
        load_dataset("inshop", write_inshop(tmp_path, **{side: ()}))


def test_items_in_training_and_test_are_refused(tmp_path):
    with pytest.raises(ValueError, match="items in both train .* got 2.*: id_00000001, id_0000"):
        load_dataset("inshop", write_inshop(tmp_path, (1, 2, 5), (1,), (1, 2)))


def test_the_official_boundary_and_a_catalog_of_the_test_classes(tmp_path):
    split = load_dataset("groceries", write_groceries(tmp_path, (0, 7, 0)))
    assert split.train.class_names == ("Kind_0", "Kind_1", "Kind_7")
    assert split.train.labels.tolist() == [0, 2, 0, 1]
    assert split.train.select([1]).coarse_ids.tolist() == [0, 0, 3]
    assert split.test.coarse_ids.tolist() == split.catalog.coarse_ids.tolist() == [20, 21]
    assert split.test.class_names == split.catalog.class_names == ("Kind_41", "Kind_42")
    # The lists in order. Their division is ignored.
    assert split.test.labels.tolist() == [0, 1, 0, 1, 0]
    assert split.test.paths[0] == str(tmp_path / "val/Fruit/Kind_20/Kind_41/Kind_41_001.jpg")
    assert split.catalog.labels.tolist() == [0, 1]
    picture = "iconic-images-and-descriptions/Fruit/Kind_21/Kind_42/Kind_42_Iconic.jpg"
    assert split.catalog.paths[1] == str(tmp_path / picture)
    assert split.gallery is None and not split.same_classes
    assert list(split.tables) == ["training", "test", "catalog"]


@pytest.mark.slow
def test_rows_classes_and_boxes_of_cars_from_the_subprocess(tmp_path):
    table = cars.load(write_cars(tmp_path, (101, 7, 7, 10)), crop_to_box=True).table
    assert table.class_names == ("Car 7", "Car 10", "Car 101")
    assert table.labels.tolist() == [2, 0, 0, 1]
    assert table.paths[0] == str(tmp_path / "car_ims" / "000001.jpg")
    # They start at 0 and include their last pixel.
    assert table.boxes.tolist() == [[1, 0, 20, 30], [3, 1, 20, 30], [5, 2, 20, 30], [7, 3, 20, 30]]


def test_the_second_layout_of_cars_pools_its_two_sets_also_with_nested_folders(tmp_path):
    root = write_cars_devkit(tmp_path)
    test_list = "cars_test_annos_withlabels.mat"
    (root / test_list).rename(root / "devkit" / test_list)
    (root / "cars_test").rename(root / "moved")
    (root / "cars_test").mkdir()
    (root / "moved").rename(root / "cars_test" / "cars_test")
    table = cars.load(root).table
    assert table.class_names == ("Car 1", "Car 2", "Car 99", "Car 100")
    assert table.labels.tolist() == [0, 2, 1, 3, 0]
    assert table.boxes is None
    assert table.paths[2] == str(root / "cars_train" / "00003.jpg")
    assert table.paths[3] == str(root / "cars_test" / "cars_test" / "00001.jpg")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"class": [1, "x", 3]}, ", annotation 2 must be a file name"),
        ({"class": [1, -(2**40), 3]}, ", annotation 2 must be a file name"),
        ({"bbox_x2": [9, 9, 9.5]}, r", annotation 3 .*\[3, 3, 6, 9.5, 25\]"),
        ({"path_field": "fname"}, ".*fields relative_im_path, class.* but got .*fname"),
        ({"class": [1, 0, 198]}, ".*all classes, but got 196 names, and 2 .*first: 0, 198"),
    ],
)
def test_invalid_annotations_of_cars(tmp_path, fields, message):
    root = write_cars(tmp_path, (1, 2, 3), **fields)
    with pytest.raises(ValueError, match=f"cars_annos.mat{message}"):
        cars.load(root)


def test_a_box_of_cars_that_ends_before_its_start_only_matters_if_used(tmp_path):
    root = write_cars(tmp_path, (1, 2, 3), bbox_x2=[31, 1, 33])
    assert len(cars.load(root).table) == 3
    with pytest.raises(ValueError, match="cars_annos.mat, annotation 2 must have a box whose last"):
        cars.load(root, crop_to_box=True)


def test_a_truncated_matlab_file_in_the_subprocess(tmp_path):
    file = write_cars(tmp_path) / "cars_annos.mat"
    file.write_bytes(file.read_bytes()[:400])
    with pytest.raises(ValueError, match="cars_annos.mat cannot be read as a MATLAB file: "):
        cars.load(tmp_path)


def test_a_matlab_file_without_the_variable(tmp_path):
    from scipy.io import savemat

    savemat(write_cars(tmp_path) / "cars_annos.mat", {"x": 1})
    with pytest.raises(ValueError, match="cars_annos.mat must contain the variable"):
        cars.load(tmp_path)


def test_a_file_that_crashes_the_subprocess(tmp_path, monkeypatch):
    (tmp_path / "child.py").write_text("import os; os.kill(os.getpid(), 11)")
    monkeypatch.setattr(read_mat, "__file__", str(tmp_path / "child.py"))
    with pytest.raises(ValueError, match="MATLAB file: the reader crashed with signal 11"):
        cars.load(write_cars(tmp_path / "data"))


def replace_in(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def sop_twice(root):
    # The image of class 1 is also the one of class 2.
    replace_in(write_sop(root) / "Ebay_train.txt", "chair_final/2_3.JPG", "./chair_final/1_2.JPG")


def cub_twice(root):
    replace_in(
        write_cub(root) / "images.txt",
        "002.Bird_2/Bird_0003.jpg",
        "002.Bird_2/../001.Bird_1/Bird_0001.jpg",
    )


def cars_twice(root):
    write_cars(root)
    paths = [f"car_ims/{image:06}.jpg" for image in (1, 2, 2, 4, 5)]
    write_mat(root / "cars_annos.mat", (1, 1, 2, 99, 100), "relative_im_path", paths)


def inshop_twice(root):
    # The list refuses equal names.
    write_inshop(root)
    list_of = root / "list_eval_partition.txt"
    replace_in(list_of, "img/WOMEN/Tees/id_00000002/02", "img/WOMEN//Tees/id_00000001/00")


def groceries_twice(root):
    write_groceries(root)
    replace_in(
        root / "val.txt", "val/Fruit/Kind_0/Kind_1/Kind_1_000.jpg",
        "train/Fruit/Kind_0/Kind_0/Kind_0_000.jpg",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("sop", sop_twice),
        ("cub", cub_twice),
        ("cars", cars_twice),
        ("inshop", inshop_twice),
        ("groceries", groceries_twice),
    ],
)
def test_a_file_under_two_classes_is_an_error(name, write, tmp_path):
    write(tmp_path)
    with pytest.raises(ValueError, match="list each image under one class, but got 1 images"):
        load_dataset(name, data_dir=tmp_path)


def test_a_file_in_training_and_test_is_an_error(tmp_path):
    write_sop(tmp_path)
    replace_in(tmp_path / "Ebay_test.txt", "chair_final/3_4.JPG", "chair_final/1_1.JPG")
    with pytest.raises(ValueError, match=r"both training and test, but got 1\. .*1_1\.JPG"):
        load_dataset("sop", data_dir=tmp_path)


def test_a_repeated_row_is_a_warning(tmp_path, caplog):
    write_sop(tmp_path)
    replace_in(tmp_path / "Ebay_train.txt", "chair_final/1_2.JPG", "chair_final/1_1.JPG")
    load_dataset("sop", data_dir=tmp_path)
    (line,) = [each for each in caplog.messages if "more than one row" in each]
    assert "Ebay_train.txt: 1 images" in line and line.endswith("1_1.JPG")


LISTS = {
    "sop": (write_sop, "Ebay_train.txt"),
    "cub": (write_cub, "images.txt"),
    "inshop": (write_inshop, "list_eval_partition.txt"),
    "groceries": (write_groceries, "classes.csv"),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_with_a_byte_order_mark_and_other_encodings(name, tmp_path):
    write, file = LISTS[name]
    path = write(tmp_path) / file
    expected = load_dataset(name, data_dir=tmp_path).train.paths.tolist()
    text = path.read_text()
    path.write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))
    assert load_dataset(name, data_dir=tmp_path).train.paths.tolist() == expected
    for encoding in ("utf-16", "utf-16-be", "utf-16-le"):
        path.write_bytes(text.encode(encoding))
        with pytest.raises(ValueError, match=f"{file} must be text in UTF-8, but got UTF-16"):
            load_dataset(name, data_dir=tmp_path)
    path.write_bytes(text.replace("\n", "\r").encode())
    with pytest.raises(ValueError, match=f"{file} must have lines that .* carriage returns only"):
        load_dataset(name, data_dir=tmp_path)
