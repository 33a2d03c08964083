import pytest
from official_layouts import write_cub

from pipelines.datasets.cub import load
from pipelines.datasets.registry import load_dataset


def cub(*arguments, **named):
    return load(*arguments, **named).table


def test_rows_classes_and_names(tmp_path):
    table = cub(write_cub(tmp_path, (101, 7, 7, 10)))
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
        ("1 1 1 5 5\n2 1 nan 5 5\n", r"boxes.txt, line 2 must be 'image_id x y width height'"),
        ("1 1 1 5 5\n2 1 1 5\n", "boxes.txt, line 2 must be"),
        ("1 1 1 5 5\n", "images.txt and bounding_boxes.txt .* disagree: 4 image ids"),
    ],
)
def test_bad_boxes_only_matter_if_used(tmp_path, text, message):
    write_cub(tmp_path)
    (tmp_path / "bounding_boxes.txt").unlink()
    if text:
        (tmp_path / "bounding_boxes.txt").write_text(text)
    assert len(cub(tmp_path)) == 5
    with pytest.raises(ValueError, match=message):
        cub(tmp_path, crop_to_box=True)


def test_labels_are_joined_by_id_not_by_line(tmp_path):
    write_cub(tmp_path, (5, 6, 6))
    (tmp_path / "image_class_labels.txt").write_text("3 6\n\n1 5\n2 6\n")
    assert cub(tmp_path).labels.tolist() == [0, 1, 1]


def test_class_ids_up_to_100_are_for_training(tmp_path):
    split = load_dataset("cub", write_cub(tmp_path, range(1, 201)))
    assert split.train.class_names[-1] == "100.Bird_100"
    assert split.test.class_names[0] == "101.Bird_101"
    assert (split.train.num_classes, split.test.num_classes) == (100, 100)


def test_the_boundary_of_a_subset(tmp_path):
    write_cub(tmp_path)
    split = load_dataset("cub", tmp_path)
    assert split.train.class_names == ("001.Bird_1", "002.Bird_2")
    split = load_dataset("cub", tmp_path, train_classes=1, test_classes=2)
    assert split.train.class_names == ("001.Bird_1",)
    assert split.test.class_names == ("002.Bird_2", "101.Bird_101")


@pytest.mark.parametrize(
    ("class_ids", "side"), [((1, 2, 3), "test"), ((150, 151), "train")], ids=["low", "high"]
)
def test_a_subset_on_one_side_of_the_official_boundary(tmp_path, class_ids, side):
    write_cub(tmp_path, class_ids)
    with pytest.raises(ValueError, match=f"no class to {side}. Set train_classes"):
        load_dataset("cub", tmp_path)
    assert load_dataset("cub", tmp_path, train_classes=1).train.num_classes == 1


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("images.txt", "1 a.jpg\nb.jpg\n", "images.txt, line 2 must be 'image_id path'.*b.jpg"),
        ("images.txt", "1 a.jpg\n1 b.jpg\n", "images.txt, line 2: duplicate image_id 1"),
        ("images.txt", "\n", "images.txt must have lines .* but got an empty file"),
        (
            "image_class_labels.txt",
            "1 1\n2 x\n",
            "labels.txt, line 2 must be .*class_id', but got '2 x'",
        ),
        ("image_class_labels.txt", "1 1\n", "disagree: 4 image ids .* The first: 2, 3, 4, 5"),
        (
            "classes.txt",
            "1 a\n2 b\n",
            "classes.txt must name all classes, but got 2 .* The first: 101, 102",
        ),
    ],
)
def test_bad_annotations(tmp_path, file, text, message):
    write_cub(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match=message):
        cub(tmp_path)


@pytest.mark.parametrize("word", ["9" * 19, "1.0"])
def test_unusual_number_formats_are_refused(tmp_path, word):
    write_cub(tmp_path)
    (tmp_path / "image_class_labels.txt").write_text(f"1 {word}\n2 1\n3 2\n4 101\n5 102\n")
    with pytest.raises(ValueError, match="image_class_labels.txt, line 1 must be 'image_id clas"):
        cub(tmp_path)


@pytest.mark.parametrize("word", ["1e308", "0.2", "-3", "nan"])
def test_impossible_box_names_its_line(tmp_path, word):
    write_cub(tmp_path, [1, 101])
    (tmp_path / "bounding_boxes.txt").write_text(f"1 1 1 30 20\n2 1 1 {word} 20\n")
    with pytest.raises(ValueError, match="bounding_boxes.txt, line 2 must be 'image_id x y w"):
        cub(tmp_path, crop_to_box=True)


def test_long_line_is_shortened_in_the_message(tmp_path):
    write_cub(tmp_path)
    (tmp_path / "images.txt").write_text("x" * 10**6)
    with pytest.raises(ValueError, match=r"xxx\.\.\. \(1000002 characters\)") as refused:
        cub(tmp_path)
    assert len(str(refused.value)) < 1000
