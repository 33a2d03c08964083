"""Maps between two models' embeddings, their files, and scores of searches with both models."""

import math
import tracemalloc
import warnings
import zipfile

import numpy as np
import pytest

from keras_dml import upgrade


def rows(count=300, length=8, seed=0):
    return np.random.default_rng(seed).normal(size=(count, length))


def unit(array):
    return array / np.linalg.norm(array, axis=1, keepdims=True)


def orthogonal(length, seed=1):
    return np.linalg.qr(rows(length, length, seed))[0]


def classes_of(count=40, each=10, length=12, noise=0.6, seed=0):
    """Return (old, new, labels): the old embeddings are noisy, turned new ones."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(count), each)
    new = rng.normal(size=(count, length))[labels] + 0.4 * rng.normal(size=(len(labels), length))
    old = (new + noise * rng.normal(size=new.shape)) @ orthogonal(length)
    return old, new, labels


@pytest.mark.parametrize("source, target", [(8, 8), (5, 8), (8, 5)])
def test_orthogonal_gives_the_rotation_back(source, target):
    """A shorter side is padded with zeros: the map has orthonormal rows or columns."""
    turn = orthogonal(8)[:source, :target]
    x = rows(400, source)
    if source > target:  # rows that lie in the span of the columns keep their length
        x = rows(400, target) @ turn.T
    found = upgrade.fit_map(x, x @ turn, kind="orthogonal")
    np.testing.assert_allclose(found(x), unit(x @ turn), atol=1e-6)
    product = found.matrix @ found.matrix.T if source <= target else found.matrix.T @ found.matrix
    np.testing.assert_allclose(product, np.eye(min(source, target)), atol=1e-6)
    if source <= target:
        np.testing.assert_allclose(found.matrix, turn, atol=1e-6)


def test_orthogonal_is_the_best_rotation():
    """No small turn brings the rows nearer, also if no rotation maps them exactly."""
    x, y = rows(200, 4), rows(200, 4, seed=2)
    found = upgrade.fit_map(x, y, kind="orthogonal").matrix.astype(float)

    def error(matrix):
        return np.square(unit(x) @ matrix - unit(y)).sum()

    for i, j in [(0, 1), (0, 2), (1, 3), (2, 3)]:
        for angle in (-1e-2, 1e-2):
            turn = np.eye(4)
            turn[[i, i, j, j], [i, j, i, j]] = (
                math.cos(angle), -math.sin(angle), math.sin(angle), math.cos(angle)
            )  # fmt: skip
            assert error(found @ turn) > error(found)


@pytest.mark.parametrize("count", [400, 60])
def test_affine_is_the_ridge_of_scikit_learn(count):
    from sklearn.linear_model import Ridge

    x = rows(count, 40)
    y = x @ rows(40, 6, seed=3) + 2 + rows(count, 6, seed=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = upgrade.fit_map(x, y)
    ridge = Ridge(alpha=found.strength).fit(unit(x), unit(y))
    np.testing.assert_allclose(found.matrix, ridge.coef_.T, atol=1e-6)
    np.testing.assert_allclose(found.intercept, ridge.intercept_, atol=1e-6)
    np.testing.assert_allclose(found(x), unit(ridge.predict(unit(x))), atol=1e-5)


def test_the_strength_is_cross_validated_over_classes():
    """Copies of a row in another fold reward a weak ridge, unless a class is in one fold."""
    x, y = (np.repeat(rows(80, 30, seed), 4, axis=0) for seed in (5, 6))
    of_rows = upgrade.fit_map(x, y)
    of_classes = upgrade.fit_map(x, y, classes=np.repeat(np.arange(80), 4))
    assert of_classes.strength > 10 * of_rows.strength
    names = np.repeat([f"class {number}" for number in range(80)], 4)
    assert upgrade.fit_map(x, y, classes=names).strength == of_classes.strength


@pytest.mark.slow
@pytest.mark.any_backend
def test_residual_learns_what_a_line_cannot():
    x = rows(800, 6)
    y = np.abs(unit(x)) @ rows(6, 5, seed=7)
    train, test = slice(600), slice(600, None)
    of = {kind: upgrade.fit_map(x[train], y[train], kind) for kind in ("affine", "residual")}
    cosines = {kind: np.mean(np.sum(each(x[test]) * unit(y[test]), 1)) for kind, each in of.items()}
    assert cosines["residual"] > 1 - (1 - cosines["affine"]) / 2
    assert (of["residual"].kind, of["residual"].fitted_rows) == ("residual", 600)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.any_backend
def test_residual_is_a_function_of_the_seed():
    x, y = rows(60, 4), np.abs(rows(60, 4))
    first, again, other = (upgrade.fit_map(x, y, "residual", seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(again(x), first(x))
    assert not np.array_equal(other(x), first(x))


@pytest.mark.slow
def test_residual_of_two_classes_in_half_precision():
    import keras

    x = rows(100, 4)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        found = upgrade.fit_map(x, np.abs(x), "residual", classes=np.arange(100) % 2)
    finally:
        keras.config.set_dtype_policy("float32")
    assert found.matrix.dtype == np.float32 and np.isfinite(found(x)).all()


@pytest.mark.slow
def test_residual_without_a_gain_is_affine():
    x = rows(200, 4)
    found = upgrade.fit_map(x, x @ orthogonal(4), "residual")
    assert found.kind == "residual"
    np.testing.assert_allclose(found(x), unit(x @ orthogonal(4)), atol=2e-2)


@pytest.mark.parametrize("kind", ["orthogonal", "affine"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_mapped_rows_have_length_1_and_zeros_stay(kind, dtype):
    found = upgrade.fit_map(rows(), rows(300, 5, seed=1) + 1, kind)
    x = rows(20)
    x[3], x[4] = 0, 1e-4
    mapped = found(x.astype(dtype))
    lengths = np.linalg.norm(mapped, axis=1)
    assert mapped.shape == (20, 5) and mapped.dtype == np.float32
    np.testing.assert_allclose(lengths, np.arange(20) != 3, atol=1e-6)
    assert found(x[:0]).shape == (0, 5)
    # The length of a row does not matter.
    np.testing.assert_allclose(found(7 * x), found(x), atol=1e-6)


def test_equal_rows_give_a_map():
    """Collapsed embeddings have no direction in which they differ."""
    x, y = np.ones((60, 4)), rows(60, 3)
    for kind in ("orthogonal", "affine"):
        assert np.isfinite(upgrade.fit_map(x, y, kind)(x)).all()
        assert np.isfinite(upgrade.fit_map(y, x, kind)(y)).all()


def check_memory(found, many):
    """Beyond the result, a map takes the memory of a block, however many rows it maps."""
    tracemalloc.start()
    try:
        mapped = found(many)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < mapped.nbytes + 160 * 2**20


def test_memory_is_bounded():
    found = upgrade.fit_map(rows(), rows(300, 5, seed=1))
    check_memory(found, np.ones((1_000_000, 8), np.float16))


def test_memory_is_bounded_if_the_target_is_long():
    with pytest.warns(UserWarning, match="uncertain"):
        found = upgrade.fit_map(rows(50, 2), rows(50, 2048, seed=1), "orthogonal")
    check_memory(found, np.ones((20_000, 2), np.float32))


def test_an_error_names_the_row_of_a_later_block():
    found = upgrade.fit_map(rows(), rows(300, 5, seed=1))
    many = np.ones((600_000, 8), np.float32)
    many[599_990] = np.nan
    with pytest.raises(ValueError, match="599990"):
        found(many)


@pytest.mark.parametrize(
    "kind", ["orthogonal", "affine", pytest.param("residual", marks=pytest.mark.slow)]
)
def test_a_file_gives_the_same_map(tmp_path, kind):
    path, x = tmp_path / "old to new.map", rows(60)
    found = upgrade.fit_map(x, np.tanh(3 * x)[:, ::-1], kind)
    found.save(path)
    found.save(path)  # replaces it
    loaded = upgrade.load_map(path)
    np.testing.assert_array_equal(loaded(x), found(x))
    for name in ("kind", "fitted_rows", "strength", "source_dimensions", "target_dimensions"):
        assert getattr(loaded, name) == getattr(found, name)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_damaged_file_is_refused(tmp_path):
    path, x = tmp_path / "a.map", rows()
    found = upgrade.fit_map(x, x @ orthogonal(8))
    found.save(path)
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    refused = 0
    for place in rng.integers(len(whole), size=300):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        try:
            # A date in the file can change without an effect.
            np.testing.assert_array_equal(upgrade.load_map(path)(x), found(x))
        except ValueError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > 200
    for content in (whole[:-100], whole[100:], b"", b"\0" * 1000):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="path"):
            upgrade.load_map(path)


def test_other_files_are_refused(tmp_path):
    arrays = dict(vars(upgrade.fit_map(rows(), rows(300, 5, seed=1))), format=1)
    nan = np.full_like(arrays["matrix"], np.nan)
    for name, changes, words in (
        ("newer", {"format": 2}, "newer"),
        ("kind", {"kind": "cubic"}, "kind"),
        ("nan", {"matrix": nan}, "matrix"),
        ("lengths", {"intercept": np.zeros(4, "f4")}, "intercept"),
        ("dtype", {"matrix": arrays["matrix"].astype(str)}, "matrix"),
        ("objects", {"intercept": np.array([print], object)}, "undamaged"),
        ("missing", None, "undamaged"),
    ):
        path = tmp_path / f"{name}.npz"
        np.savez(path, **({"format": 1} if changes is None else {**arrays, **changes}))
        with pytest.raises(ValueError, match=words):
            upgrade.load_map(path)
    with zipfile.ZipFile(tmp_path / "kind.npz") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "header.npz", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content.replace(b"False", b"(alse"))
    with pytest.raises(ValueError, match="undamaged"):
        upgrade.load_map(tmp_path / "header.npz")
    with pytest.raises(ValueError, match="EmbeddingMap.save"):
        upgrade.load_map(tmp_path / "none.map")
    with pytest.raises(ValueError, match="existing folder"):
        upgrade.fit_map(rows(), rows()).save(tmp_path / "no" / "a.map")


def with_row(value, count=60):
    array = rows(count)
    array[7] = value
    return array


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"source": with_row(np.nan)}, "source.*row numbers 7"),
        ({"target": with_row(np.inf)}, "target.*row numbers 7"),
        ({"source": with_row(0)}, "source.*zeros.*7"),
        ({"target": rows(59)}, "target.*60 rows"),
        ({"source": rows(49), "target": rows(49)}, "source.*at least 50"),
        ({"source": rows(0), "target": rows(0)}, "source.*at least 50"),
        ({"source": rows(60)[0]}, "source"),
        ({"kind": "cubic"}, "kind.*orthogonal"),
        ({"seed": -1}, "seed"),
        ({"classes": np.zeros(60)}, "classes.*two"),
        ({"classes": np.zeros(7)}, "classes.*60"),
        ({"classes": np.full(60, np.nan)}, "classes"),
    ],
)
def test_wrong_rows(arguments, words):
    given = {"source": rows(60), "target": rows(60, 5), **arguments}
    with pytest.raises(ValueError, match=words):
        upgrade.fit_map(**given)


def test_few_rows_are_a_warning():
    with pytest.warns(UserWarning, match="at least 128"):
        upgrade.fit_map(rows(127, 64), rows(127, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        upgrade.fit_map(rows(128, 64), rows(128, 8))


def test_rows_of_another_length_are_refused():
    found = upgrade.fit_map(rows(), rows(300, 5, seed=1))
    for wrong in (rows(3, 7), rows(3)[0], np.array([["a"] * 8])):
        with pytest.raises(ValueError, match="rows"):
            found(wrong)


def by_loops(queries, gallery, labels, searched=None):
    """Return R@1 and MAP@R. Row i of both sides is one image, which does not find itself."""
    queries, gallery = unit(queries), unit(gallery)
    recall, precision = [], []
    for i, query in enumerate(queries):
        if searched is not None and not searched[i]:
            continue
        order = [j for j in np.argsort(-(gallery @ query), kind="stable") if j != i]
        relevant = sum(labels[j] == labels[i] for j in order)
        recall.append(labels[order[0]] == labels[i])
        hits, total = 0, 0.0
        for rank, j in enumerate(order[:relevant], start=1):
            if labels[j] == labels[i]:
                hits += 1
                total += hits / rank
        if relevant:
            precision.append(total / relevant)
    return {"recall@1": np.mean(recall), "map@r": np.mean(precision)}


def test_cross_scores_match_the_loops():
    old, new, labels = classes_of(12, 6)
    old, labels[-1] = old[:, :7], 99  # a class of one image
    to_new = upgrade.fit_map(old, new, "orthogonal")
    to_old = upgrade.fit_map(new, old)
    maps = {"old to new": to_new, "new to old": [to_old]}
    table = {row[:3]: row for row in upgrade.cross_scores(old, new, labels, maps)}
    pairs = {
        ("old", "old"): (old, old),
        ("new", "new"): (new, new),
        ("old", "new"): (old, new[:, :7]),
        ("old to new, orthogonal", "new"): (to_new(old), new),
        ("old", "new to old, affine"): (old, to_old(new)),
    }
    scores = {
        pair: by_loops(queries, gallery, labels) for pair, (gallery, queries) in pairs.items()
    }
    before, after = scores["old", "old"], scores["new", "new"]
    for pair, found in scores.items():
        for score, value in found.items():
            row = table[*pair, score]
            assert row.value == pytest.approx(value, abs=1e-9)
            assert row.low <= row.value <= row.high
            if pair not in (("old", "old"), ("new", "new")):
                gain = (value - before[score]) / (after[score] - before[score])
                assert table[*pair, f"gain in {score}"].value == pytest.approx(gain)
            if pair != ("old", "old"):
                step = table[*pair, f"difference in {score}"]
                assert step.value == pytest.approx(value - before[score])
    assert len(table) == 2 * (5 + 4 + 3)


def test_other_images_than_the_queries_are_in_the_gallery_only():
    old, new, labels = classes_of(12, 6)
    queries = labels % 3 == 1
    table = {row[:3]: row for row in upgrade.cross_scores(old, new, labels, queries=queries)}
    for pair, rows in {("old", "old"): (old, old), ("old", "new"): (new, old)}.items():
        for score, value in by_loops(*rows, labels, queries).items():
            assert table[*pair, score].value == pytest.approx(value, abs=1e-9)
    alone = upgrade.cross_scores(old[queries], new[queries], labels[queries])
    harder = table["old", "old", "map@r"]
    assert harder.value < {row[:3]: row for row in alone}["old", "old", "map@r"].value
    # An interval is of the classes of the queries.
    one_class = upgrade.cross_scores(old, new, labels, queries=labels == 2)
    assert all(row.low == row.high for row in one_class if row.score == "map@r")
    # Without labels, too.
    shares = upgrade.cross_scores(old, new, None, queries=queries)
    both = [np.argsort(-unit(each) @ unit(each).T, axis=1)[:, 1:11] for each in (old, new)]
    kept = np.mean([len({*a} & {*b}) / 10 for a, b in zip(*(each[queries] for each in both))])
    assert shares[0].value == pytest.approx(kept)


def test_an_interval_is_of_the_classes():
    """Copies of every image do not make it narrower, but more classes do."""
    found = []
    for count, copies in ((10, 1), (10, 4), (160, 1)):
        old, new, labels = (
            np.repeat(each, copies, axis=0) for each in classes_of(count, 6, 6, noise=2.0)
        )
        table = {row[:3]: row for row in upgrade.cross_scores(old, new, labels)}
        found.append(table["new", "new", "difference in map@r"])
    widths = [row.high - row.low for row in found]
    assert widths[1] > 0.5 * widths[0] and widths[2] < 0.5 * widths[0]


def test_a_new_model_that_is_not_better_has_no_gain():
    old, new, labels = classes_of(12, 6)
    for first, second in ((new, old), (new, new @ orthogonal(12))):
        with pytest.warns(UserWarning, match="not better.*map@r"):
            table = upgrade.cross_scores(first, second, labels)
        names = {row.score for row in table}
        assert names == {
            "recall@1", "map@r", "difference in recall@1", "difference in map@r"
        }  # fmt: skip


def test_a_shorter_new_model_cannot_search_the_old_rows():
    old, new, labels = classes_of(12, 6)
    table = upgrade.cross_scores(old, new[:, :6], labels)
    assert ("old", "new") not in {(row.gallery, row.queries) for row in table}


def test_without_labels_the_score_is_the_share_of_kept_neighbors():
    old, new, _ = classes_of(12, 6)
    table = upgrade.cross_scores(old, new, None)
    nearest = {}
    for name, queries, gallery in (("new", new, new), ("old", old, old), ("both", new, old)):
        cosines = unit(queries) @ unit(gallery).T
        np.fill_diagonal(cosines, -2)
        nearest[name] = np.argsort(-cosines, axis=1)[:, :10]
    for row, name in zip(table, ("old", "new", "both")):
        shares = [len({*a} & {*b}) / 10 for a, b in zip(nearest[name], nearest["new"])]
        assert row.score == "neighbors@10" and row.value == pytest.approx(np.mean(shares))


def test_l2_compares_mapped_rows_with_unit_rows():
    old, new, labels = classes_of(12, 6)
    new = new * np.linspace(1, 9, len(new))[:, None]
    maps = {"old to new": upgrade.fit_map(old, new)}
    found = [
        {row[:3]: row for row in upgrade.cross_scores(old, new, labels, maps, metric)}
        for metric in ("cosine", "l2")
    ]
    place = ("old to new, affine", "new", "map@r")
    assert found[0][place].value == pytest.approx(found[1][place].value)
    assert found[0]["new", "new", "map@r"] != found[1]["new", "new", "map@r"]


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"new": rows(59)}, "new.*60 rows"),
        ({"labels": np.arange(59)}, "labels.*60"),
        ({"labels": np.arange(60)}, "labels.*two rows"),
        ({"maps": {"old": upgrade.fit_map(rows(), rows())}}, "maps.*old to new"),
        ({"maps": {"old to new": "a.map"}}, "maps"),
        ({"maps": {"old to new": upgrade.fit_map(rows(), rows(300, 5))}}, "maps.*from 8 to 8"),
        ({"maps": [1]}, "maps.*dictionary"),
        ({"metric": "dot"}, "metric"),
        ({"old": with_row(np.nan)}, "old.*7"),
        ({"seed": 1.5}, "seed"),
        ({"queries": np.zeros(60, bool)}, "queries.*one of them True"),
        ({"queries": np.arange(60)}, "queries.*60 booleans"),
        ({"queries": np.ones(59, bool)}, "queries.*60 booleans"),
    ],
)
def test_wrong_tables(changes, words):
    given = {"old": rows(60), "new": rows(60), "labels": np.arange(60) // 5, **changes}
    with pytest.raises(ValueError, match=words):
        upgrade.cross_scores(**given)
