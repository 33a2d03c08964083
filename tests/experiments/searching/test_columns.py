"""Columns of an index, and the answer of a search with copies in it."""

import unicodedata

import numpy as np
import pytest

from experiments.searching.answer import Answer, SearchResult, answer_line, grouped, json_of
from experiments.searching.columns import COLUMNS, Columns, StoredColumns, import_csv, read_columns

PATHS = ["Milk/a.jpg", "Juice/Apple/b.jpg", "Juice/Orange/c.jpg", "d.jpg", "x/Milk/e.jpg"]
ROWS = {"Milk/a.jpg": ["Arla", "1"], "Juice/Apple/b.jpg": ["Bravo", "1"], "gone.jpg": ["Arla", "2"]}


def columns():
    return Columns(PATHS, StoredColumns(["brand", "a=b"], ROWS))


def rows_of(known, *where):
    return np.flatnonzero(known.mask(where)).tolist()


def test_classes_are_composed_once(monkeypatch):
    known = Columns([f"class{number}/a.png" for number in range(500)])
    normalize, calls = unicodedata.normalize, []
    monkeypatch.setattr(
        unicodedata, "normalize", lambda form, text: calls.append(text) or normalize(form, text)
    )
    for number in range(30):
        assert rows_of(known, ("class", f"class{number}")) == [number]
    assert len(calls) == 500 + 30


def test_class_and_folder_without_a_csv():
    known = Columns(PATHS)
    assert known.names == ["class", "folder"]
    assert known.class_names == ["Milk", "Juice/Apple", "Juice/Orange", "", "x/Milk"]
    assert known.mask(()) is None
    # A folder includes its subfolders. If no path is equal, the end of the path is compared.
    assert rows_of(known, ("folder", "Juice")) == rows_of(known, ("folder", "Juice/")) == [1, 2]
    assert rows_of(known, ("class", "Apple")) == rows_of(known, ("folder", "Apple")) == [1]
    assert rows_of(known, ("class", "Milk")) == rows_of(known, ("folder", "Milk")) == [0]
    assert rows_of(known, ("folder", "x")) == rows_of(known, ("class", "x/Milk")) == [4]
    assert rows_of(known, ("class", "")) == rows_of(known, ("folder", "")) == [3]
    assert dict(known.counts("folder"))["Juice"] == 2
    assert known.counts("class")[0] == ("Juice/Apple", 1)


def test_values_of_a_column_are_joined_by_or_and_columns_by_and():
    known = columns()
    assert rows_of(known, ("brand", "Arla")) == [0]
    assert rows_of(known, ("brand", "Arla"), ("brand", "Bravo")) == [0, 1]
    assert rows_of(known, ("brand", "Arla"), ("a=b", "1")) == [0]
    assert rows_of(known, ("brand", "Arla"), ("class", "Juice/Apple")) == []
    assert rows_of(known, ("brand", "")) == [2, 3, 4]
    assert known.counts("brand") == [("Arla", 1), ("Bravo", 1)]


def test_the_csv_overrides_the_class():
    known = Columns(PATHS, StoredColumns(["class"], {"d.jpg": ["melon"]}))
    assert known.names == ["class", "folder"]
    assert known.class_names == ["Milk", "Juice/Apple", "Juice/Orange", "melon", "x/Milk"]


def test_unicode_normal_forms_are_equal():
    for form in ("NFC", "NFD"):
        known = Columns([unicodedata.normalize(form, "Gräddfil/a.jpg")])
        for other in ("NFC", "NFD"):
            assert rows_of(known, ("class", unicodedata.normalize(other, "Gräddfil"))) == [0]


def test_conditions_as_text():
    known = columns()
    assert known.parsed("class=Milk", "=") == ("class", "Milk")
    assert known.parsed("a=b=1=2", "=") == ("a=b", "1=2")
    assert known.parsed("brand: Arla ", ":") == ("brand", "Arla")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class", "where must be COLUMN=VALUE, .* of class, folder, brand, a=b, but got class"),
        ("x" * 10_000, "x{100}….$"),
        ("class=milky", "no image has class=milky. Did you mean Milk"),
        ("brand=ARLA", "no image has brand=ARLA. Did you mean Arla?"),
    ],
)
def test_invalid_conditions(text, message):
    with pytest.raises(ValueError, match=message) as error:
        columns().mask([columns().parsed(text, "=")])
    assert len(str(error.value)) < 500


@pytest.fixture
def imported(tmp_path):
    def run(text):
        (tmp_path / "known.csv").write_text(text)
        return import_csv(tmp_path, tmp_path / "known.csv", str(tmp_path / "photos"), PATHS)

    return run


def test_rows_are_stored_by_path_also_for_missing_images(tmp_path, imported):
    whole = tmp_path / "photos" / "d.jpg"
    lines = imported(
        "\ufeff;Path; brand\n"
        f"0;Milk\\a.jpg;Arla \n1;./Juice//Apple/b.jpg;Bravo\n2;{whole};Åre\n\n3;later.jpg;Arla\n"
    )
    assert lines == [
        "columns: brand, of 3 of 5 images",
        f"1 paths in {tmp_path / 'known.csv'} are not images: later.jpg",
        f"2 images have no row in {tmp_path / 'known.csv'}: Juice/Orange/c.jpg, x/Milk/e.jpg",
    ]
    assert read_columns(tmp_path, PATHS).counts("brand") == [("Arla", 1), ("Bravo", 1), ("Åre", 1)]
    assert rows_of(read_columns(tmp_path, ["later.jpg", "new.jpg"]), ("brand", "Arla")) == [0]
    imported("file,price\nd.jpg,3\n")
    assert read_columns(tmp_path, PATHS).names == ["class", "folder", "price"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,folder\nd.jpg,x\n", "column 'folder', which every index has, but got .*folder"),
        ("path\nd.jpg\n", "column of paths and other columns, .* but got .* with path"),
        ("path,brand\nx/y.jpg,x\n", "none of the 1 paths .* first path is x/y.jpg"),
        ("path,brand\nd.jpg,x\n./d.jpg,x\n", "one row for each path, .* several rows for d.jpg"),
        ("path,brand\nd.jpg\n", "columns must have 2 cells in each line, but got 1 in line 2"),
    ],
)
def test_csv_files_that_are_refused(tmp_path, imported, text, message):
    with pytest.raises(ValueError, match=message):
        imported(text)
    assert not (tmp_path / COLUMNS).exists()


def test_damage_is_named(tmp_path, imported):
    imported("path,brand\nd.jpg,Arla\n")
    whole = (tmp_path / COLUMNS).read_text()
    for text in (whole.replace("Arla", "Bravo"), whole[:50], "", "[]"):
        (tmp_path / COLUMNS).write_text(text)
        with pytest.raises(ValueError, match=r"columns.json is damaged: .*\. keras-dml index"):
            read_columns(tmp_path, PATHS)


def test_the_text_of_an_answer_by_class():
    names = ["juice", "milk", "juice", "", "juice"]
    results = [SearchResult(row, f"{row}.jpg", 1.0, name) for row, name in enumerate(names)]
    assert answer_line(Answer(tuple(results))) == "juice, 3 of 5; milk, 1"
    assert answer_line(Answer(tuple(results[3:4]))) == ""
    assert answer_line(Answer(())) == "no image of the index meets all conditions"


# The similarities of a query whose first three answers are right.
SIMILARITIES = [0.943, 0.833, 0.828, 0.81, 0.8, 0.8, 0.79, 0.79, 0.78, 0.78]


def test_many_distant_results_do_not_outvote_the_nearest():
    names = ["juice"] * 3 + ["milk"] * 7
    for metric in ("cosine", "l2"):
        scores = SIMILARITIES
        if metric == "l2":  # the same as distances, of another scale
            scores = 7 * np.sqrt(2 - 2 * np.array(scores))
        results = [SearchResult(row, "", *each) for row, each in enumerate(zip(scores, names))]
        answer = Answer(tuple(results), metric=metric)
        assert answer_line(answer) == "juice, 3 of 10; milk, 7"
        votes = json_of(answer, metric)["classes"]
        assert [each["class"] for each in votes] == ["juice", "milk"]
        assert votes[0]["votes"] > 0.99 and sum(each["votes"] for each in votes) == 1


def test_results_at_nearly_equal_distances_vote_by_their_number():
    names = ["juice", "milk", "milk", ""]
    results = [SearchResult(row, "", 0.9 - row / 1e4, name) for row, name in enumerate(names)]
    assert [each.name for each in Answer(tuple(results)).classes] == ["milk", "juice"]
    # Copies of the query have no distance, or the distance of a rounding error.
    copies = [SearchResult(0, "", 1.0, "milk"), SearchResult(1, "", 1 - 1e-7, "milk")]
    answer = Answer((*copies, SearchResult(2, "", 0.5, "juice")))
    assert [each.name for each in answer.classes] == ["milk", "juice"]
    assert Answer((*copies, SearchResult(2, "", 1.0, "juice"))).classes[0].results == 2
    assert Answer(tuple(each._replace(score=0.0) for each in copies), metric="l2").classes == [
        ("milk", 2, 1.0)
    ]


RESULTS = [SearchResult(row, f"{row}.jpg", 1 - row / 10) for row in range(5)]


def unit(*degrees):
    return np.stack([np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))], axis=1)


def shown(found):
    return {result.path: list(result.alike) for result in found}


def test_a_result_joins_the_first_similar_group():
    """The cosine of 10 degrees is 0.985, and the cosine of 20 degrees is 0.940."""
    rows = unit(0, 10, 20, 90, 91) * np.array([[1], [7], [1], [0.1], [1]])
    found = grouped(RESULTS, rows, 0.98, 5)
    assert shown(found) == {"0.jpg": ["1.jpg"], "2.jpg": [], "3.jpg": ["4.jpg"]}
    assert [one.score for one in found] == [1, 0.8, 0.7]
    # After k groups, a result can only join a group.
    assert shown(grouped(RESULTS, rows, 0.98, 2)) == {"0.jpg": ["1.jpg"], "2.jpg": []}


def test_copies_zeros_one_result_and_no_results():
    rows = np.full((5, 3), 1 / 3, np.float32)
    assert shown(grouped(RESULTS, rows, 1, 5)) == {"0.jpg": ["1.jpg", "2.jpg", "3.jpg", "4.jpg"]}
    assert len(grouped(RESULTS, np.zeros((5, 3)), 0.995, 5)) == 5
    assert grouped([], np.empty((0, 3)), 0.995, 5) == []
    assert grouped(RESULTS[:1], rows[:1], 0.995, 1) == RESULTS[:1]


def test_an_exact_path_wins_over_another_form_of_its_accents(tmp_path):
    composed, decomposed = (unicodedata.normalize(form, "café.jpg") for form in ("NFC", "NFD"))
    file = tmp_path / "known.csv"
    file.write_text(f"path,brand\n{composed},one\n{decomposed},two\n", encoding="utf-8")
    for paths in ([composed, decomposed], [decomposed, composed]):
        import_csv(tmp_path, file, "/photos", paths)
        values = read_columns(tmp_path, paths).values_of("brand")
        assert dict(zip(paths, values)) == {composed: "one", decomposed: "two"}
    # A row in the other form belongs to the only file.
    file.write_text(f"path,brand\n{composed},one\n", encoding="utf-8")
    import_csv(tmp_path, file, "/photos", [decomposed])
    assert read_columns(tmp_path, [decomposed]).values_of("brand") == ["one"]
