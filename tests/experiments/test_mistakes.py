"""A user's mistake in any command: exit code 2, one line, and no file."""

import importlib
import re
import shutil

import keras
import numpy as np
import pytest
from official_layouts import write_groceries
from photo_search import png
from tiny_run import TINY, small_encoder

from experiments.options import run_command
from experiments.searching.index_folder import read_settings, write_settings

LABELS = np.repeat([f"class {number}" for number in range(6)], 5)
EMBEDDINGS = np.random.default_rng(0).normal(size=(30, 4)).astype("float32")
TRAIN = {"train_embeddings": EMBEDDINGS, "train_labels": LABELS}
NAN_IN_ROW_3 = EMBEDDINGS + np.where(np.arange(30) == 3, np.nan, 0)[:, None]
MISTAKES = {
    "audit": [
        ("", "Set one of --run, --index, and --embeddings, but got none"),
        ("--run=/nowhere", "run must be the folder of a run, with flags.txt in it"),
        ("--run={begun}", "best.keras is missing.*keras-dml run --flagfile="),
        ("--embeddings=/nowhere.npz", "embeddings must be a .npz file.*nowhere.npz is not a file"),
        ("--embeddings={npz} --resize=8", "resize has no effect on --embeddings"),
        ("--embeddings={npz} --max_leaks=0", "max_leaks must be unset"),
    ],
    "benchmark": [
        ("speed", r"must be a benchmark \(losses, .*\), but got speed"),
        ("losses --losses=hinge", "losses must be .*hinge"),
        ("losses --sizes=1", "sizes must be at least 2"),
    ],
    "calibrate": [
        ("", "--embeddings, but got none"),
        ("--run={root}", "run must be the folder of a finished run"),
        ("--run={root} --saved_model=x", "saved_model must be unset without"),
        ("--embeddings={npz} --saved_model=/no", "saved_model must be the folder of a SavedModel"),
        ("--embeddings={npz} --false_match_rate=1e-6", "3,000,000 pairs of two classes"),
        ("--embeddings={npz} --false_match_rate=0", "false_match_rate must be .*above 0"),
    ],
    "compare": [
        ("", "recipes must name at least one recipe"),
        ("--recipes=nothing.flags", "flagfile must be a file or a recipe"),
        ("--recipes=zebra_*", "recipes must match at least one recipe"),
        ("--recipes=cub.flags,cub.flags", "recipes must differ in name"),
    ],
    "evaluate": [
        ("", "one of --run, --model, .*but got none of them"),
        ("--run=/nowhere", "run must be the folder of a run"),
        ("--model=b --epochs=3", "--epochs=3.*It is a flag of keras-dml run"),
        ("--model=b --pooling=max", "pooling has no effect on --model"),
        ("--embeddings={root}/text.jpg", "embeddings must be a .npz file.*text.jpg"),
        ("--embeddings={npz} --recall_at=30", "recall_at must be from 1 to 29.*30"),
        ("--embeddings={npz} --relation=hierarchy", "relation has no effect on --embeddings"),
        ("--embeddings={npz} --flagfile={root}/relation.flags", "dataset must have coarse classes"),
        ("--embeddings={npz} --neighbors=faiss", "neighbors.*scann.*faiss"),
        ("--embeddings={npz} --matryoshka=2,1", "matryoshka must .*4.*2,1"),
        ("--embeddings={npz} --matryoshka=3,5", "matryoshka must .*4.*3,5"),
        ("{encoder} {photos} --relation=hierarchy", "must have coarse classes"),
        ("{encoder} --dataset=groceries {candidate} --split=train", "must come with split=test"),
        ("{candidate} --saved_model={root}", "candidate_model must be unset without --model"),
    ],
    "export": [
        ("", "run and format must be set"),
        ("--run={begun} --format=saved_model", "run must be the folder of a run"),
    ],
    "index": [
        ("{images} --images=/no/where", "images must be a folder, but got /no/where"),
        ("{images} --images={root}/begun", "which holds none"),
        ("{images} --images={root}/phone", "holds none, but 1 file is not read: 1 .heic; convert"),
        ("{images} --images=s3://bucket/photos", "images must be a folder"),
        ("{images} --saved_model=/no/where", "saved_model must be the folder of a SavedModel"),
        ("{images} --saved_model={root}/run", "Did you mean .*/run/saved_model"),
        ("{images} --output_dir={root}", "output_dir must be a new or empty folder, or an index"),
        ("{images} --prefix=2 --target_recall=0.8", "prefix must be unset with --target_recall"),
        ("{images} --backbone=x", "Set either --saved_model or --backbone, but got both"),
        ("{images} --engine=ray", "to must be set with --engine=ray"),
        ("{images} --engine=ray --to=parquet:x --prefix=2", "prefix must be unset with"),
        ("{images} --workers=2", "workers must be unset without --engine=ray"),
    ],
    "preview": [("{tiny} --image_size=32 --resize=20", "resize must be at least image_size")],
    "run": [
        *(
            (f"--dataset={name}", f"keras-dml prepare --dataset={name} --data_dir=data$")
            for name in ("cub", "cars", "sop", "groceries")
        ),
        ("--dataset=cub --data_dir={root}", "images.txt, .* prepare --dataset=cub --data_dir=/"),
        ("--flagfile=cub.flags", "prepare --dataset=cub"),
        ("", "dataset must be one of"),
        ("--flagfile=glyph.flags", "glyph.flags.*Did you mean glyphs.flags or .*keras-dml recipes"),
        ("--flagfile={root}/circle.flags", "circle.flags names itself"),
        ("--flagfile={root}/utf16.flags", "utf16.flags cannot be read"),
        ("--optimizer=adma", "optimizer must be .*sgd, adam, .*adma.*Did you mean adam "),
        ("--dataset=glyph", r"dataset must be .*tfds:NAME.*Did you mean glyphs\?"),
        ("--loss=tripplet", r"loss must be .*tripplet.*Did you mean triplet\b"),
        ("{tiny} --output_dir={root}", "has other files"),
        ("{tiny} --output_dir={root}/text.jpg/run", "output_dir must be a writable folder"),
        ("{tiny} --backbone=resnet51", "backbone must be one of .*resnet50.*resnet51"),
        ("{tiny} --backbone=inceptionv3", "inceptionv3, but got 16.*at least 75"),
        (
            "{tiny} --images_per_class=1 --batch_size=4",
            "images_per_class must be at least 2 for loss=.*but got 1",
        ),
        ("{tiny} --weights=imagenet", "small_convnet"),
        ("{bare} --backbone=hub:{root}", "with a config.json"),
        ("{bare} --backbone={root}/gone.keras", "No such file"),
        ("{bare} --backbone={maps} --pooling=cls", "pooling must be one of 'average', 'm"),
        ("{bare} --backbone={maps} --import_modules=no_module", "import_modules must be mod"),
        ("{bare} --backbone={maps} --weights=none", "weights must be "),
        ("{bare} --backbone={root}/named.keras --output_dir=new", "'_maps'. Rename"),
        ("{tiny} --train_classes=3", "batch_size must be .* 3 classes, but got 8. Lower"),
        ("{tiny} --epochs=3 --head_epochs=3", "head_epochs must be below epochs=3"),
        ("{tiny} --batch_size=9", "batch_size must be a multiple of images_per_class=2.*9"),
        ("{tiny} --resize=12by12", "resize must be N or HxW"),
        ("{tiny} --crop_area=a,b", "crop_area must be 2 numbers"),
        ("{tiny} --recall_at=50", "recall_at must be from 1 to 19.*50"),
        ("{tiny} --filters=8,x", "filters must be whole numbers with commas between them.*8,x"),
        ("{tiny} --freeze_backbone --embedding_size=none", "embedding_size must be set with"),
        ("{tiny} --log_to=tensorboard:x", "log_to must be mlflow:URI or wandb:PROJECT"),
        ("{tiny} --keep=best_fold", "keep must be last or best_test without --fold"),
        ("{tiny} --fold=1/2 --patience=2", "schedule must be constant or step .*warm_cosine"),
        ("{tiny} --refit --dataset=sop", "refit must be false for dataset=sop"),
        ("{tiny} --class_split=every_class --measured_in={begun}", "the folder of a finished run"),
        ("{tiny} --candidates=catalog --loss=nt_xent", "candidates must be batch for a dataset"),
        ("{catalog} --loss=arcface", "candidates must be batch for loss=arcface"),
        ("{catalog} --also=tcm", "candidates must be batch with --also"),
        ("{catalog} --candidate_weights=none", "without --candidate_backbone"),
        ("{catalog} --candidate_backbone=resnet1", "candidate_backbone, backbone must be one of"),
        ("{catalog} --candidate_backbone={maps} --embedding_size=none", "candidate_backbone must"),
        ("{tiny} --strategy=multi_worker", "TF_CONFIG must have the addresses.*got nothing"),
        ("{tiny} --candidate_backbone=resnet50", "without --candidates=catalog"),
    ],
    "search": [
        ("--index={index}", "Set either --query=IMAGE"),
        ("--index={index} --query=/no/x.jpg", "query /no/x.jpg cannot be read .No such file"),
        ("--index={index} --query={root}/text.jpg", "query .*text.jpg cannot be searched"),
        ("--index={index} --query={photo} --query=", "query must not be empty"),
        ("--index={index} --query={photo} --port=80", "port must be 8000 without --serve"),
        ("--index={index} --query={photo} --images=/no", "the folder of .* images is gone"),
        ("--index={index} --query={photo} --saved_model={other}", "saved_model must be"),
        ("--index={index} --query_text=red", "query_text must be unset without --query_model"),
        ("--index={index} --query_text= --query_model={other}", "query_text must not be empty"),
        ("--index={index} --query_text=red --query_model={other}", "query_model must take text"),
        ("--index={index} --query_text=1 --query_model=a --saved_model=b", "be unset with --saved"),
        ("--index={index} --serve --query_model=a", "query_model must be unset with --serve"),
        ("--index={index} --serve --allowed_host=*.org", "allowed_host must be one"),
        ("--index={index} --serve --k=5", "k must be unset with --serve"),
        ("--index={root} --query={photo}", "has no settings.json"),
        (
            "--index={root}/unfinished --query={photo}",
            "not finished: repeat its keras-dml index",
        ),
        ("--index={root}/cut --query={photo}", "settings.json is damaged"),
        ("--index={root}/damaged --query={photo}", "keras-dml index command builds it again"),
        ("--index={root}/moved --query={photo}", "is gone: /no/model. If it has moved, set"),
    ],
    "study": [
        ("--recipes=glyphs.flags --seeds=0,1,2", "0,1,2. Number of runs .* --seed, --seed [+] 1"),
        ("--recipes=glyphs.flags --trials=3", "trials must be unset without --search=.*3"),
        ("--recipes=glyphs.flags --storage=x://me:secret@y", "storage .*--search.*x://…@y"),
        ("--recipes=glyphs_ice.flags --grid=scale=1,2 --search=scale=1:2", "grid must not be"),
        ("{search} --storage=study.db", "storage must be a URL.*study.db"),
        ("{search} --search=glyphs/margin=1:2", "one of the recipes glyphs_contrastive before"),
        ("{search} --search=margin=-1:1", "margin must be .*-1"),
        ("{search} --fold=1/2", "fold must be unset with --search.*1/2"),
        ("{search} --class_split=every_class", "class_split must keep classes for the test"),
        ("{search} --train_classes=3", "folds must be at most 3, the .*4"),
    ],
}


@pytest.fixture(scope="module")
def places(photos, index, tmp_path_factory):
    """Placeholder -> words, with files in the folder `root`."""
    root = tmp_path_factory.mktemp("places")
    np.savez(root / "mine.npz", embeddings=EMBEDDINGS, labels=LABELS)
    (root / "begun").mkdir()  # the folder of an unfinished run
    (root / "begun" / "flags.txt").write_text("\n".join([*TINY, f"--data_dir={photos}"]) + "\n")
    (root / "phone").mkdir()
    (root / "phone" / "x.HEIC").touch()
    (root / "circle.flags").write_text("--flagfile=circle.flags\n")
    (root / "relation.flags").write_text("--relation=hierarchy\n")
    (root / "utf16.flags").write_text("--epochs=2\n", encoding="utf-16")
    small_encoder().save(root / "encoder.keras")
    ids = [41, 42, 43]  # test classes
    groceries = write_groceries(root / "data", [0, 0, 1, 1], ids, ids, png(5))
    catalog = [word for word in TINY if not word.startswith(("--dataset", "--batch_size"))]
    catalog += ["--dataset=groceries", f"--data_dir={groceries}", "--candidates=catalog"]
    maps = keras.Sequential([keras.Input([16, 16, 3]), keras.layers.Conv2D(5, 3, strides=4)])
    maps.save(root / "maps.keras")
    maps.name = "_maps"
    maps.save(root / "named.keras")
    (root / "text.jpg").write_text("no image")
    # The settings of the index, changed or cut, and the index with damaged embeddings.
    settings = read_settings(index)
    for name, changes in (("unfinished", {"built": None}), ("moved", {"saved_model": "/no/model"})):
        shutil.copytree(index, root / name)
        write_settings(root / name, settings | changes)
    (root / "cut").mkdir()
    (root / "cut" / "settings.json").write_text((index / "settings.json").read_text()[:40])
    shutil.copytree(index, root / "damaged")
    (root / "damaged" / "index" / "embeddings.npy").write_bytes(b"no array")
    other = shutil.copytree(index.parent / "model", root / "run" / "saved_model")
    (other / "variables" / "more").touch()
    tiny = " ".join([*TINY, f"--data_dir={photos}"])
    return {
        "root": root,
        "index": index,
        "photo": index.parent / "photos" / "4.webp",
        "npz": root / "mine.npz",
        "begun": root / "begun",
        "other": other,
        "photos": f"--data_dir={photos}",
        "encoder": f"--model={root / 'encoder.keras'} --resize=20 --output_dir=out",
        "candidate": f"--candidate_model={root / 'encoder.keras'} --data_dir={groceries}",
        "images": (
            f"--saved_model={index.parent}/model --images={index.parent}/photos --output_dir=new"
        ),
        "tiny": tiny,
        "bare": tiny.replace("--backbone=small_convnet --weights=none", ""),
        "catalog": " ".join([*catalog, "--loss=nt_xent", "--batch_size=4"]),
        "maps": root / "maps.keras",
        "search": "--recipes=glyphs_contrastive.flags --search=learning_rate=1e-4:1e-2:log",
    }


def check_refused(command, words, message, capsys):
    """Check the exit code and the only line of stderr."""
    main = importlib.import_module(f"experiments.{command}").main
    assert run_command(main, [command, *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and re.search(message, line), line


def cases_of(table):
    """Return the cases; a preset is slow, because KerasHub takes seconds to import."""
    return [
        pytest.param(command, given, message, marks=[pytest.mark.slow] * ("hub:" in given))
        for command, cases in table.items()
        for given, message in cases
    ]


@pytest.mark.parametrize(("command", "words", "message"), cases_of(MISTAKES))
def test_a_mistake_is_one_line_and_writes_no_file(
    command, words, message, places, tmp_path, monkeypatch, capsys
):
    if "hub:" in words:
        pytest.importorskip("keras_hub")
    monkeypatch.chdir(tmp_path)
    before = list(places["root"].rglob("*"))
    check_refused(command, words.format(**places).split(), message, capsys)
    assert not list(tmp_path.iterdir()) and list(places["root"].rglob("*")) == before


def test_a_recipe_without_its_data_prints_only_the_mistake(capsys):
    main = importlib.import_module("experiments.run").main
    assert run_command(main, ["run", "--flagfile=cub.flags"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: data_dir must be set")


# Changes of a file with the arrays EMBEDDINGS and LABELS. None removes an array.
WRONG_ARRAYS = {
    "audit": [
        ({"embeddings": np.zeros((0, 4)), "labels": LABELS[:0]}, "The sets must have an image"),
        ({"train_embeddings": EMBEDDINGS}, "must have the array train_labels"),
        (TRAIN | {"train_embeddings": EMBEDDINGS[:, :3]}, r"one width, but got train \(30, 3\)"),
        (TRAIN | {"train_labels": np.arange(30)}, "labels and test labels must be of one kind"),
    ],
    "calibrate": [
        ({"embeddings": np.full((30, 2), np.inf)}, "embeddings must be finite"),
    ],
    "evaluate": [
        ({"labels": None}, "must have the array labels.*with the arrays embeddings"),
        ({"embeddings": None, "labels": None, "x": LABELS}, "must have .* embeddings.* arrays x"),
        ({"gallery_labels": LABELS}, "must have the array gallery_embeddings"),
        ({"labels": ["a"] * 30}, "The queries must have at least 2 classes, but got 1"),
        ({"labels": range(30)}, "at least 2 images of a class, but got 1 of each class"),
        ({"labels": LABELS[:7]}, r"labels shape \[n\].*\(30, 4\) and \(7,\)"),
        ({"embeddings": EMBEDDINGS[0]}, r"embeddings must have .*\[n, d\].*\(4,\)"),
        ({"embeddings": NAN_IN_ROW_3}, r"NaN or infinity in 1 of 30 rows \(row numbers 3\)"),
        ({"embeddings": EMBEDDINGS[:1], "labels": LABELS[:1]}, "at least 2 images.*1"),
        ({"paths": LABELS + "\udc80"}, "must be valid UTF-8"),
        ({"paths": LABELS[:4]}, "one label for each image.*4 images and 30 labels"),
    ],
}


@pytest.mark.parametrize(("command", "changed", "message"), cases_of(WRONG_ARRAYS))
def test_wrong_arrays_are_one_line_and_write_no_result(command, changed, message, tmp_path, capsys):
    arrays = {"embeddings": EMBEDDINGS, "labels": LABELS, **changed}
    arrays = {name: array for name, array in arrays.items() if array is not None}
    np.savez(tmp_path / "mine.npz", **arrays)
    check_refused(command, [f"--embeddings={tmp_path / 'mine.npz'}"], message, capsys)
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left <= {"mine.npz", ".lock"}
