"""`read_npz` returns the arrays of a file and raises an error for damaged files."""

import numpy as np
import pytest

from experiments.evaluation.npz_file import UnreadableError, read_npz


def test_arrays_by_name(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, a=np.arange(3), b=np.eye(2))
    arrays, held = read_npz(path, ["a", "c"])
    assert list(arrays) == ["a"] and arrays["a"].tolist() == [0, 1, 2] and held == ["a", "b"]
    assert list(read_npz(path)[0]) == ["a", "b"]
    with pytest.raises(FileNotFoundError):
        read_npz(tmp_path / "gone.npz")


def test_a_changed_shape_is_detected_although_numpy_reads_it(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, a=np.ones((4000, 8)))
    data = path.read_bytes()
    assert data.count(b"(4000, 8)") == 1
    path.write_bytes(data.replace(b"(4000, 8)", b"(4000, 4)"))
    with np.load(path) as saved:
        assert saved["a"].shape == (4000, 4)
    with pytest.raises(UnreadableError):
        read_npz(path)


@pytest.mark.parametrize("place", range(0, 400, 25))
def test_a_changed_bit_is_detected_or_has_no_effect(place, tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, a=np.arange(10))
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 4
    path.write_bytes(data)
    try:
        arrays, _ = read_npz(path)
    except UnreadableError:
        return
    assert arrays["a"].tolist() == list(range(10))


def test_python_objects_are_not_loaded(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.array([{}], object))
    with pytest.raises(UnreadableError, match="allow_pickle"):
        read_npz(tmp_path / "a.npz")
