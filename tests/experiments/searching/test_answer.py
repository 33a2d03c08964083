"""The answer of a search."""

from experiments.searching.answer import Answer, SearchResult, answer_line, class_counts, folder_of


def test_classes_are_sorted_by_count_then_similarity():
    assert class_counts(["b", "a", "", "a", "c"]) == [("a", 2), ("b", 1), ("c", 1)]
    assert class_counts([]) == class_counts(["", ""]) == []


def test_the_text_of_an_answer_by_class():
    names = ["juice", "milk", "juice", "", "juice"]
    results = [SearchResult(row, f"{row}.jpg", 1.0, name) for row, name in enumerate(names)]
    assert answer_line(Answer(tuple(results))) == "juice, 3 of 5; milk, 1"
    assert answer_line(Answer(tuple(results[3:4]))) == ""
    assert answer_line(Answer(())) == "no image of the index meets all conditions"


def test_the_folder_of_a_path():
    assert [folder_of(path) for path in ("a.jpg", "a/b.jpg", "a/b/c.jpg")] == ["", "a", "a/b"]
