"""Checksums of the files of a folder."""

import pytest

from keras_dml._files.checksums import check_saved_model, write_checksums


def test_checksums_of_a_saved_model_are_checked(tmp_path):
    (tmp_path / "variables").mkdir()
    for name in ("saved_model.pb", "variables/variables.index", "fingerprint.pb"):
        (tmp_path / name).write_text(name)
    check_saved_model(tmp_path)  # written before checksums existed
    write_checksums(tmp_path)
    check_saved_model(tmp_path)
    # Another export of the same model has another fingerprint.
    (tmp_path / "fingerprint.pb").write_text("another number")
    check_saved_model(tmp_path)
    for name, what in (
        ("saved_model.pb", "has changed since"),
        ("variables/variables.index", "missing"),
    ):
        kept = (tmp_path / name).read_bytes()
        (tmp_path / name).unlink()
        if what != "missing":
            (tmp_path / name).write_bytes(b"another" + kept)
        with pytest.raises(ValueError, match=f"{name}.*{what}"):
            check_saved_model(tmp_path)
        (tmp_path / name).write_bytes(kept)
    for damaged in (b"", b"[]", b"{"):
        (tmp_path / "assets.extra" / "sha256.json").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"sha256\.json has changed since it was written"):
            check_saved_model(tmp_path)
