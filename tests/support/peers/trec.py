"""Write tests/support/peers/trec.npz: scores of TREC files by ir-measures and ranx.

The two packages are not in the test environment. For this reason, the tests read stored results. To
rebuild the file, run these commands from the root of the project:

    python3.11 -m venv /tmp/trec
    /tmp/trec/bin/pip install -e . 'jax' ir-measures==0.4.3 ranx==0.3.21
    KERAS_BACKEND=jax /tmp/trec/bin/python tests/support/peers/trec.py

The program draws random embeddings with classes and with tags, writes the files with
`metrics.write_trec`, and reads them with both packages. Names of the arrays: `embeddings`,
`gallery`, and for a case `CASE/labels`, `CASE/gallery_labels`, and `CASE/PEER`, the scores in the
order of MEASURES. The case "classes, gallery" searches the gallery.
"""

import pathlib
import tempfile

import numpy as np

FILE = pathlib.Path(__file__).with_name("trec.npz")
KS = (1, 5, 10)
MEASURES = [f"{name}@{k}" for k in KS for name in ("ndcg", "mrr", "precision")]
CASES = ("classes", "classes, gallery", "tags")


def inputs():
    """Draw the inputs."""
    rng = np.random.default_rng(7)
    arrays = {"embeddings": rng.normal(size=(60, 6)), "gallery": rng.normal(size=(45, 6))}
    for case in CASES:
        if case == "tags":
            tags = rng.random((60, 5)) < 0.25
            tags[np.arange(60), rng.integers(0, 5, 60)] = True  # each row has a tag
            arrays[f"{case}/labels"] = tags.astype(np.int64)
        else:
            arrays[f"{case}/labels"] = rng.integers(0, 9, 60)
            arrays[f"{case}/gallery_labels"] = rng.integers(0, 9, 45)
    return arrays


def arguments(case, arrays):
    """Return the arguments of `ranking_scores` for a case."""
    from keras_dml import relations

    found = {"labels": arrays[f"{case}/labels"]}
    if case == "tags":
        found["relation"] = relations.SharesLabel()
    if case.endswith("gallery"):
        found |= {"gallery": arrays["gallery"], "gallery_labels": arrays[f"{case}/gallery_labels"]}
    return {"embeddings": arrays["embeddings"], **found}


def by_ir_measures(run, qrels):
    """Return the scores of two files."""
    import ir_measures

    theirs = {"ndcg": "nDCG", "mrr": "RR", "precision": "P"}
    names = (name.split("@") for name in MEASURES)
    measures = [ir_measures.parse_measure(f"{theirs[name]}@{k}") for name, k in names]
    found = ir_measures.calc_aggregate(
        measures,
        list(ir_measures.read_trec_qrels(str(qrels))),
        list(ir_measures.read_trec_run(str(run))),
    )
    return [found[measure] for measure in measures]


def by_ranx(run, qrels):
    """Return the scores of two files."""
    import ranx

    found = ranx.evaluate(
        ranx.Qrels.from_file(str(qrels), kind="trec"),
        ranx.Run.from_file(str(run), kind="trec"),
        MEASURES,
    )
    return [float(found[name]) for name in MEASURES]


def main():
    """Write the file."""
    from keras_dml import metrics

    arrays = inputs()
    with tempfile.TemporaryDirectory() as folder:
        run, qrels = (pathlib.Path(folder, name) for name in ("run.txt", "qrels.txt"))
        for case in CASES:
            metrics.write_trec(run, qrels, k=max(KS), **arguments(case, arrays))
            arrays[f"{case}/ir-measures"] = by_ir_measures(run, qrels)
            arrays[f"{case}/ranx"] = by_ranx(run, qrels)
    np.savez_compressed(FILE, **arrays)


if __name__ == "__main__":
    main()
