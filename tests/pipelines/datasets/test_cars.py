import numpy as np
import pytest
from official_layouts import write_cars, write_cars_devkit, write_mat

from pipelines.datasets import cars as cars_module
from pipelines.datasets.cars import load
from pipelines.datasets.registry import load_dataset


def cars(*arguments, **named):
    return load(*arguments, **named).table


def test_rows_classes_and_names(tmp_path):
    table = cars(write_cars(tmp_path, (101, 7, 7, 10)))
    assert table.class_names == ("Car 7", "Car 10", "Car 101")
    assert table.labels.tolist() == [2, 0, 0, 1]
    assert table.paths[0] == str(tmp_path / "car_ims" / "000001.jpg")
    assert table.boxes is None


def test_the_second_layout_pools_its_two_sets(tmp_path):
    table = cars(write_cars_devkit(tmp_path))
    assert table.class_names == ("Car 1", "Car 2", "Car 99", "Car 100")
    assert table.labels.tolist() == [0, 2, 1, 3, 0]
    assert table.paths[2] == str(tmp_path / "cars_train" / "00003.jpg")
    assert table.paths[3] == str(tmp_path / "cars_test" / "00001.jpg")


def test_layouts_with_lists_in_devkit_and_nested_folders(tmp_path):
    write_cars_devkit(tmp_path / "stanford_cars")
    root = tmp_path / "stanford_cars"
    (root / "cars_test_annos_withlabels.mat").rename(
        root / "devkit" / "cars_test_annos_withlabels.mat"
    )
    for side in ("cars_train", "cars_test"):
        (root / side).rename(root / "moved")
        (root / side).mkdir()
        (root / "moved").rename(root / side / side)
    table = cars(tmp_path)
    assert len(table) == 5
    assert table.paths[4] == str(root / "cars_test" / "cars_test" / "00002.jpg")


@pytest.mark.parametrize("write", [write_cars, write_cars_devkit])
def test_class_ids_up_to_98_are_for_training(tmp_path, write):
    split = load_dataset("cars", write(tmp_path))
    assert split.train.class_names == ("Car 1", "Car 2")
    assert split.test.class_names == ("Car 99", "Car 100")
    assert load_dataset("cars", tmp_path, train_classes=3).test.class_names == ("Car 100",)


def test_boxes_start_at_0_and_include_their_last_pixel(tmp_path):
    split = load_dataset("cars", write_cars(tmp_path), crop_to_box=True)
    assert split.train.boxes.tolist() == [[1, 0, 20, 30], [3, 1, 20, 30], [5, 2, 20, 30]]
    assert split.test.boxes[0].tolist() == [7, 3, 20, 30]


def test_invalid_annotations(tmp_path):
    write_cars(tmp_path, (1, 2, 3))
    file, paths = tmp_path / "cars_annos.mat", [f"car_ims/{i:06}.jpg" for i in (1, 2, 3)]
    write_mat(file, (1, 2, 3), "relative_im_path", paths, **{"class": [1, "x", 3]})
    with pytest.raises(ValueError, match="cars_annos.mat, annotation 2 must be a file name"):
        cars(tmp_path)
    write_mat(file, (1, 2, 3), "relative_im_path", paths, bbox_x2=[9, 9, 9.5])
    with pytest.raises(ValueError, match=r"cars_annos.mat, annotation 3 .*\[3, 3, 6, 9.5, 25\]"):
        cars(tmp_path)
    write_mat(file, (1, 2, 3), "fname", paths)
    with pytest.raises(ValueError, match="fields relative_im_path, class.* but got .*fname"):
        cars(tmp_path)
    write_mat(file, (1, 0, 198), "relative_im_path", paths)
    with pytest.raises(ValueError, match="all classes, but got 196 names, and 2 .*first: 0, 198"):
        cars(tmp_path)


def test_huge_numbers_and_boxes_that_end_before_they_start(tmp_path):
    write_cars(tmp_path, (1, 2, 3))
    file, paths = tmp_path / "cars_annos.mat", [f"car_ims/{i:06}.jpg" for i in (1, 2, 3)]
    for value in (np.uint64(2**63), 2**40, -(2**40)):
        write_mat(file, (1, 2, 3), "relative_im_path", paths, **{"class": [1, value, 3]})
        with pytest.raises(ValueError, match="cars_annos.mat, annotation 2 must be a file name"):
            cars(tmp_path)
    write_mat(file, (1, 2, 3), "relative_im_path", paths, bbox_x2=[31, 1, 33])
    assert len(cars(tmp_path)) == 3
    with pytest.raises(ValueError, match="cars_annos.mat, annotation 2 must have a box whose last"):
        cars(tmp_path, crop_to_box=True)


@pytest.mark.parametrize("size", [0, 100, 400])
def test_a_truncated_annotation_file(tmp_path, size):
    file = write_cars(tmp_path) / "cars_annos.mat"
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(ValueError, match="cars_annos.mat cannot be read as a MATLAB file: "):
        cars(tmp_path)


def test_matlab_file_without_the_variable(tmp_path):
    from scipy.io import savemat

    savemat(write_cars(tmp_path) / "cars_annos.mat", {"x": 1})
    with pytest.raises(ValueError, match="cars_annos.mat must contain the variable"):
        cars(tmp_path)


def test_subprocess_reads_the_lists(tmp_path):
    table = cars(write_cars(tmp_path, (101, 7, 7, 10)), crop_to_box=True)
    assert table.class_names == ("Car 7", "Car 10", "Car 101")
    assert table.boxes.shape == (4, 4)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import os; os.kill(os.getpid(), 11)", "the reader crashed with signal 11"),
        ("import sys; sys.exit('Unknown mat file type')", "Unknown mat file type"),
    ],
)
def test_file_that_crashes_the_subprocess_is_a_one_line_error(
    program, message, tmp_path, monkeypatch
):
    (tmp_path / "child.py").write_text(program)
    monkeypatch.setattr(cars_module.read_mat, "__file__", str(tmp_path / "child.py"))
    with pytest.raises(ValueError, match=f"cannot be read as a MATLAB file: {message}"):
        cars(write_cars(tmp_path / "data"))
