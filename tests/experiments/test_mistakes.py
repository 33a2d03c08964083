"""A user's mistake in any command: exit code 2, one line, and no file."""

import importlib
import re
import shutil

import keras
import numpy as np
import pytest
from official_layouts import write_groceries
from photo_search import png
from PIL import Image
from tiny_run import TINY

from experiments.evaluation.checked_json import checked_text, read_checked
from experiments.options import run_command

MISTAKES = {
    "audit": [
        ("", "Set one of --run and --embeddings, but got neither"),
        ("--run=a --embeddings=b", "but got both"),
        ("--run=/nowhere", "run must be the folder of a run, with flags.txt in it"),
        ("--run={begun}", "best.keras is missing.*experiments.run --flagfile="),
        ("--embeddings=/nowhere.npz", "embeddings must be a .npz file"),
        ("--embeddings={npz} --resize=8", "resize has no effect on --embeddings"),
        ("--embeddings={npz} --max_leaks=0", "max_leaks must be unset"),
    ],
    "benchmark": [
        ("speed", r"must be a benchmark \(losses, .*\), but got speed"),
        ("", "but got nothing"),
        ("losses --losses=hinge", "losses must be .*hinge"),
        ("losses --sizes=1", "sizes must be at least 2"),
    ],
    "calibrate": [
        ("", "--embeddings, but got none"),
        ("--run={root}", "run must be the folder of a finished run"),
        ("--run=/no --embeddings={npz}", "and --embeddings, but got run and embeddings"),
        ("--run={root} --saved_model=x", "saved_model must be unset without"),
        ("--embeddings=/no.npz", "embeddings must be a .npz file"),
        ("--embeddings={npz} --saved_model=/no", "saved_model must be the folder of a SavedModel"),
        ("--embeddings={npz} --false_match_rate=1e-6", "3,000,000 pairs of two classes"),
        ("--embeddings={npz} --false_match_rate=0", "false_match_rate must be .*above 0"),
    ],
    "compare": [
        ("", "recipes must name at least one recipe"),
        ("--recipes=nothing.flags", "flagfile must be a file or a recipe"),
        ("--recipes=zebra_*", "recipes must match at least one recipe"),
        ("--recipes=cub.flags,cub.flags", "recipes must differ in name"),
        ("--recipes=cub.flags word", "start with --, but got word"),
    ],
    "evaluate": [
        ("", "one of --run, --model, .*but got none of them"),
        ("--run=/nowhere", "run must be the folder of a run"),
        ("--run=a --model=b", "but got --run and --model"),
        ("--run=a --backbone=small_convnet", "but got --run and --backbone"),
        ("--model=b --epochs=3", "--epochs=3.*It is a flag of experiments.run"),
        ("--model=b --nodeterministic", "It is a flag of experiments.run"),
        ("--model=b --pooling=max", "pooling has no effect on --model"),
        ("--embeddings={npz} --recall_at=30", "recall_at must be from 1 to 29.*30"),
        ("--embeddings={npz} --split=train", "split has no effect on --embeddings"),
        ("--embeddings={npz} --dataset=cub", "dataset has no effect on --embeddings"),
        ("--embeddings={npz} --relation=hierarchy", "relation has no effect on --embeddings"),
        ("--embeddings={npz} --flagfile={root}/relation.flags", "dataset must have coarse classes"),
        ("--embeddings={npz} --neighbors=faiss", "neighbors.*scann.*faiss"),
        ("--embeddings={npz} --matryoshka=2,1", "matryoshka must .*4.*2,1"),
        ("--embeddings={npz} --matryoshka=0,1", "matryoshka must .*4.*0,1"),
        ("--embeddings={npz} --matryoshka=3,5", "matryoshka must .*4.*3,5"),
        ("--embeddings={npz} --matryoshka=1,1", "matryoshka must .*4.*1,1"),
    ],
    "export": [
        ("", "run and format must be set"),
        ("--run=/nowhere --format=onnx", "with flags.txt in it, but got /nowhere"),
        ("--run={begun} --format=saved_model --int8", "format must be litert or onnx"),
        ("--run={begun} --format=onnx --examples=9", "examples must be 200 without --int8"),
        ("--run={begun} --format=saved_model", "run must be the folder of a run"),
    ],
    "preview": [("{tiny} --image_size=32 --resize=20", "resize must be at least image_size")],
    "run": [
        ("", "dataset must be one of"),
        ("--flagfile=glyph.flags", "glyph.flags.*Did you mean glyphs.flags or .*keras-dml recipes"),
        ("--flagfile={root}/circle.flags", "circle.flags names itself"),
        ("--flagfile={root}/utf16.flags", "utf16.flags cannot be read"),
        ("--optimizer=adma", "optimizer must be .*sgd, adam, .*adma.*Did you mean adam "),
        ("--dataset=glyph", r"dataset must be .*tfds:NAME.*Did you mean glyphs\?"),
        ("--loss=tripplet", r"loss must be .*tripplet.*Did you mean triplet\b"),
        ("{tiny} --output_dir={root}", "has other files"),
        ("{tiny} --output_dir={root}/text.jpg", "output_dir must be a writable folder"),
        ("{tiny} --output_dir={root}/text.jpg/run", "output_dir must be a writable folder"),
        ("{tiny} --backbone=resnet51", "backbone must be one of .*resnet50.*resnet51"),
        ("{tiny} --backbone=inceptionv3", "inceptionv3, but got 16.*at least 75"),
        ("{tiny} --weights=imagenet", "small_convnet"),
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
        ("{tiny} --class_split=every_class --measured_in=/nowhere", "measured_in must be"),
        ("{tiny} --candidates=catalog --loss=nt_xent", "candidates must be batch for a dataset"),
        ("{catalog} --loss=arcface", "candidates must be batch for loss=arcface"),
        ("{catalog} --loss=n_pairs", "candidates must be batch for loss=n_pairs"),
        ("{catalog} --also=tcm", "candidates must be batch with --also"),
        ("{catalog} --candidate_weights=none", "without --candidate_backbone"),
        ("{catalog} --candidate_backbone=resnet1", "candidate_backbone, backbone must be one of"),
        ("{catalog} --candidate_backbone={maps} --embedding_size=none", "candidate_backbone must"),
        ("{tiny} --candidate_backbone=resnet50", "without --candidates=catalog"),
    ],
    "search": [
        ("--index={index}", "Set either --query=IMAGE"),
        ("--index={index} --query=/no/x.jpg", "query /no/x.jpg cannot be read .No such file"),
        ("--index={index} --query={root}/text.jpg", "query .*text.jpg cannot be searched"),
        ("--index={index} --query={root}/huge.png", "an image of more than 50 million pixels"),
        ("--index={index} --query={photo} --query=", "query must not be empty"),
        ("--index={index} --query={photo} --k=6", "k must be at most the number of images, 5"),
        ("--index={index} --query={photo} --port=80", "port must be 8000 without --serve"),
        ("--index={index} --query={photo} --images=/no", "the folder of .* images is gone"),
        ("--index={index} --query={photo} --saved_model={root}/model", "saved_model must be"),
        ("--index={index} --serve --allowed_host=*.org", "allowed_host must be one"),
        ("--index={index} --serve --k=5", "k must be unset with --serve"),
        ("--index={root} --query={photo}", "has no settings.json"),
        ("--index={root}/unfinished --query={photo}", "is not finished: repeat its python -m"),
        ("--index={root}/cut --query={photo}", "settings.json is damaged"),
        ("--index={root}/damaged --query={photo}", "experiments.index command builds it again"),
        ("--index={root}/moved --query={photo}", "is gone: /no/model. If it has moved, set"),
    ],
    "study": [
        ("", "recipes must name at least one recipe"),
        ("--recipes=nothing_*.flags", "recipes must match at least one recipe"),
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


def changed_indexes(index, root):
    """Copy the settings of an index, changed or cut, and the index with damaged embeddings."""
    settings = read_checked(index / "settings.json")
    for name, changes in (("unfinished", {"built": None}), ("moved", {"saved_model": "/no/model"})):
        shutil.copytree(index, root / name)
        (root / name / "settings.json").write_text(checked_text(settings | changes))
    (root / "cut").mkdir()
    (root / "cut" / "settings.json").write_text((index / "settings.json").read_text()[:40])
    shutil.copytree(index, root / "damaged")
    (root / "damaged" / "index" / "embeddings.npy").write_bytes(b"no array")


@pytest.fixture(scope="module")
def places(photos, index, tmp_path_factory):
    """Placeholder -> words, with files in the folder `root`."""
    root = tmp_path_factory.mktemp("places")
    labels = np.repeat([f"class {number}" for number in range(6)], 5)
    embeddings = np.random.default_rng(0).normal(size=(30, 4))
    np.savez(root / "mine.npz", embeddings=embeddings, labels=labels)
    (root / "begun").mkdir()  # the folder of an unfinished run
    (root / "begun" / "flags.txt").write_text("\n".join([*TINY, f"--data_dir={photos}"]) + "\n")
    (root / "circle.flags").write_text("--flagfile=circle.flags\n")
    (root / "relation.flags").write_text("--relation=hierarchy\n")
    (root / "utf16.flags").write_text("--epochs=2\n", encoding="utf-16")
    ids = [41, 42, 43]  # test classes
    groceries = write_groceries(root / "data", [0, 0, 1, 1], ids, ids, png(5))
    catalog = [word for word in TINY if not word.startswith(("--dataset", "--batch_size"))]
    catalog += ["--dataset=groceries", f"--data_dir={groceries}", "--candidates=catalog"]
    maps = keras.Sequential([keras.Input([16, 16, 3]), keras.layers.Conv2D(5, 3, strides=4)])
    maps.save(root / "maps.keras")
    (root / "text.jpg").write_text("no image")
    Image.new("1", (8000, 8000)).save(root / "huge.png")  # 8 KB
    changed_indexes(index, root)
    shutil.copytree(index.parent / "model", root / "model")
    (root / "model" / "variables" / "more").touch()
    return {
        "root": root,
        "index": index,
        "photo": index.parent / "photos" / "4.webp",
        "npz": root / "mine.npz",
        "begun": root / "begun",
        "tiny": " ".join([*TINY, f"--data_dir={photos}"]),
        "catalog": " ".join([*catalog, "--loss=nt_xent", "--batch_size=4"]),
        "maps": root / "maps.keras",
        "search": "--recipes=glyphs_contrastive.flags --search=learning_rate=1e-4:1e-2:log",
    }


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [(command, *case) for command, cases in MISTAKES.items() for case in cases],
)
def test_a_mistake_is_one_line_and_writes_no_file(
    command, words, message, places, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    before = list(places["root"].rglob("*"))
    main = importlib.import_module(f"experiments.{command}").main
    assert run_command(main, [command, *words.format(**places).split()]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and re.search(message, line), line
    assert not list(tmp_path.iterdir()) and list(places["root"].rglob("*")) == before
