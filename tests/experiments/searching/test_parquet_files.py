"""Parquet files with the rows of an index."""

import numpy as np
import pytest
import stores

from experiments.options.errors import UsageError

pq = pytest.importorskip("pyarrow.parquet")


def test_written_files(tmp_path, monkeypatch):
    from experiments.searching import parquet_files

    folder, rows = tmp_path / "files", stores.rows()
    monkeypatch.setattr(parquet_files, "ROWS", 10)
    target = parquet_files.ParquetFiles(folder)
    assert target.write(stores.description(), rows) == "written"
    names = sorted(path.name for path in folder.glob("part-*"))
    assert names == [f"part-0000{number}.parquet" for number in range(3)]
    table = pq.read_table(folder)
    assert table.column_names == ["id", "path", "class", "folder", "brand", "digest", "vector"]
    assert table["path"].to_pylist() == rows.columns["path"] and table["id"].to_pylist() == rows.ids
    np.testing.assert_array_equal(np.array(table["vector"].to_pylist(), "f4"), rows.vectors)
    fewer = stores.rows(stores.PATHS[:5])
    assert target.write(stores.description(), fewer)
    assert pq.read_table(folder)["path"].to_pylist() == stores.PATHS[:5]


def test_other_files_are_not_replaced(tmp_path):
    from experiments.searching.parquet_files import ParquetFiles

    (tmp_path / "theirs").mkdir()
    for place in ("theirs", "none/files"):
        with pytest.raises(UsageError, match="to=parquet:FOLDER must be a new folder"):
            ParquetFiles(tmp_path / place)
