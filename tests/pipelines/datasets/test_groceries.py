import pytest
from official_layouts import write_groceries

from pipelines.datasets.registry import load_dataset

HEAD = (
    "Class Name (str),Class ID (int),Coarse Class Name (str),Coarse Class ID (int),"
    "Iconic Image Path (str),Product Description Path (str)\n"
)


def test_the_official_boundary_and_a_catalog_of_the_test_classes(tmp_path):
    split = load_dataset("groceries", write_groceries(tmp_path))
    assert split.train.class_names == ("Kind_0", "Kind_1")
    assert split.train.labels.tolist() == [0, 0, 1, 1]
    assert split.test.class_names == split.catalog.class_names == ("Kind_41", "Kind_42")
    # The lists in order. Their division is ignored.
    assert split.test.labels.tolist() == [0, 1, 0, 1, 0]
    assert split.test.paths[0] == str(tmp_path / "val/Fruit/Kind_20/Kind_41/Kind_41_001.jpg")
    assert split.catalog.labels.tolist() == [0, 1]
    picture = "iconic-images-and-descriptions/Fruit/Kind_21/Kind_42/Kind_42_Iconic.jpg"
    assert split.catalog.paths[1] == str(tmp_path / picture)
    assert split.gallery is None and not split.same_classes
    assert list(split.tables) == ["training", "test", "catalog"]


def test_coarse_ids_are_unchanged(tmp_path):
    split = load_dataset("groceries", write_groceries(tmp_path, train=(0, 1, 6, 7)))
    assert split.train.coarse_ids.tolist() == [0, 0, 3, 3]
    assert split.test.coarse_ids.tolist() == split.catalog.coarse_ids.tolist() == [20, 21]
    assert split.train.select_classes([3, 0]).select([0]).coarse_ids.tolist() == [3, 0]


@pytest.mark.parametrize(
    "folder", ["dataset", "GroceryStoreDataset/dataset", "GroceryStoreDataset-master/dataset"]
)
def test_downloaded_and_cloned_layouts(tmp_path, folder):
    write_groceries(tmp_path / folder)
    assert len(load_dataset("groceries", tmp_path).train) == 4


def test_other_boundary_also_splits_the_catalog(tmp_path):
    write_groceries(tmp_path, train=(0, 1, 2, 3))
    split = load_dataset("groceries", tmp_path, train_classes=1, test_classes=2)
    assert split.train.class_names == ("Kind_0",)
    assert split.catalog.class_names == ("Kind_1", "Kind_2")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("classes.csv", "name,id\n", "line 1 must be the columns' names 'Class Name .str.,Class"),
        ("classes.csv", f"{HEAD}A,0,K,0,/a,/b\nB,0,K,0,/a,/b\n", "but got 0 for A and B"),
        ("classes.csv", f"{HEAD}A,0,K,0,/a,/b\n", "all classes in train.txt .* 1 class ids"),
        ("train.txt", "train/a.jpg 0 0\n", "line 1 must be 'path,class_id,coarse_class_id'"),
        ("val.txt", "test/Fruit/Kind_21/Kind_42/Kind_42_000.jpg, 42, 7\n",
         "classes.csv and val.txt in .* class id 42 has the coarse class 21 in the former and 7"),
    ],
)  # fmt: skip
def test_bad_lists(tmp_path, file, text, message):
    write_groceries(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match=message):
        load_dataset("groceries", tmp_path)
