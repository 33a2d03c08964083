import pytest
from official_layouts import write_inshop

from pipelines.datasets.inshop import load as inshop
from pipelines.datasets.registry import load_dataset

HEAD = "image_name item_id evaluation_status\n"


def test_query_and_gallery_share_their_classes(tmp_path):
    split = load_dataset("inshop", write_inshop(tmp_path, (7, 2, 7), (5, 3), (3, 9, 5)))
    assert split.train.class_names == ("id_00000002", "id_00000007")
    assert split.train.labels.tolist() == [1, 0, 1]
    names = ("id_00000003", "id_00000005", "id_00000009")
    assert split.test.class_names == split.gallery.class_names == names
    assert split.test.labels.tolist() == [1, 0]
    assert split.gallery.labels.tolist() == [0, 2, 1]
    assert split.gallery.paths[0].startswith(str(tmp_path / "img" / "WOMEN" / "Tees"))
    assert not split.same_classes


def test_downloaded_folder_layout(tmp_path):
    write_inshop(tmp_path)
    for folder, name in (("Eval", "list_eval_partition.txt"), ("Img", "img")):
        (tmp_path / folder).mkdir()
        (tmp_path / name).rename(tmp_path / folder / name)
    split = inshop(tmp_path)
    assert split.test.paths[0].startswith(str(tmp_path / "Img" / "img"))
    assert len(split.gallery) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"many\n{HEAD}", "partition.txt, line 1 must be 'number of images', but got 'many'"),
        (f"1\n{HEAD}img/a.jpg id_1 test\n", "line 3 must be 'image_name.*'img/a.jpg id_1 test'"),
        (f"2\n{HEAD}img/a.jpg id_1 train\n", "must list 2 images.* but got 1"),
    ],
)
def test_bad_lists(tmp_path, text, message):
    write_inshop(tmp_path)
    (tmp_path / "list_eval_partition.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        inshop(tmp_path)


@pytest.mark.parametrize("side", ["train", "query", "gallery"])
def test_an_empty_set(tmp_path, side):
    with pytest.raises(ValueError, match=f"must list images with evaluation_status {side}"):
        inshop(write_inshop(tmp_path, **{side: ()}))


def test_items_in_training_and_test_are_refused(tmp_path):
    with pytest.raises(ValueError, match="items in both train .* got 2.*: id_00000001, id_0000"):
        inshop(write_inshop(tmp_path, train=(1, 2, 5), query=(1,), gallery=(1, 2)))
