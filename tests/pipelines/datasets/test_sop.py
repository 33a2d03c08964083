import pytest
from official_layouts import write_sop

from pipelines.datasets.registry import load_dataset
from pipelines.datasets.sop import load as sop


def test_lists_define_the_split(tmp_path):
    split = load_dataset("sop", write_sop(tmp_path, (7, 10, 7), (30, 9)))
    assert split.train.class_names == ("7", "10")
    assert split.train.labels.tolist() == [0, 1, 0]
    assert split.test.class_names == ("9", "30")
    assert split.test.labels.tolist() == [1, 0]
    assert split.test.paths[0] == str(tmp_path / "chair_final" / "30_4.JPG")
    assert split.gallery is None
    assert not split.same_classes


def test_kinds_of_products_are_coarse_classes(tmp_path):
    write_sop(tmp_path, (7, 10, 7), (30, 9))
    lines = (tmp_path / "Ebay_train.txt").read_text().replace(" 10 3 ", " 10 5 ")
    (tmp_path / "Ebay_train.txt").write_text(lines)
    assert sop(tmp_path).train.coarse_ids.tolist() == [3, 5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 1 1 a.JPG\n", "test.txt, line 1 must be the columns' names 'image_id class_id super"),
        ("{head}1 9 1 a.JPG\n\n1 9 1 b.JPG", "Ebay_test.txt, line 4: duplicate image_id 1"),
        (
            "{head}1 2 1 a.JPG\n",
            "must not share classes, but got 1 class ids in both. The first: 2",
        ),
    ],
)
def test_bad_lists(tmp_path, text, message):
    write_sop(tmp_path)
    text = text.replace("{head}", "image_id class_id super_class_id path\n")
    (tmp_path / "Ebay_test.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        sop(tmp_path)


def test_other_boundaries_and_boxes_are_refused(tmp_path):
    write_sop(tmp_path)
    for name, count in (("sop", "train_classes"), ("inshop", "test_classes")):
        with pytest.raises(ValueError, match=f"{count} must not be set with {name}, which has an"):
            load_dataset(name, tmp_path, **{count: 1})
    with pytest.raises(ValueError, match="crop_to_box must be False .*cars and cub.* True for sop"):
        load_dataset("sop", tmp_path, crop_to_box=True)


@pytest.mark.parametrize("path", ["/etc/passwd", "../secret.jpg", "chair_final/../../secret.jpg"])
def test_list_cannot_name_files_outside_of_its_folder(path, tmp_path):
    root = write_sop(tmp_path / "sop")
    (tmp_path / "secret.jpg").write_text("")
    listed = root / "Ebay_test.txt"
    lines = listed.read_text().splitlines()
    lines[-1] = f"{lines[-1].rsplit(maxsplit=1)[0]} {path}"
    listed.write_text("\n".join(lines) + "\n")
    with pytest.raises(
        ValueError, match=f"Images listed in Ebay_test.txt must be inside .*1 outside it.*{path}"
    ):
        sop(root)
