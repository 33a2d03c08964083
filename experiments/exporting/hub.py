"""Publication of a run's model, its card, threshold, and index on the Hugging Face Hub."""

from __future__ import annotations

import pathlib
import posixpath
import re
import tempfile

from experiments.evaluation.calibration import calibration_path
from experiments.exporting.exported_run import FACTS
from experiments.options import RunOptions, UsageError
from experiments.pages.model_card import MODEL_CARD
from experiments.training.run_files import kept_model
from keras_dml._common.errors import ArgumentError
from keras_dml._common.extras import needing
from keras_dml._files.copies import check_files, copy_file, copy_files, names_of_files
from keras_dml._files.json_files import read_json
from keras_dml.models.from_hub import MODEL_FILE
from keras_dml.retrieval.files import index_files

PREFIX = "hf:"
CARD, THRESHOLD, INDEX = "README.md", "threshold.json", "index"
"""Names in the repository."""


def check_target(to: str, index: pathlib.Path | None) -> tuple[str, pathlib.Path | None]:
    """Return the repository USER/NAME of `--to`, and the folder of the index to upload.

    The folder of `experiments.index` also has names of local folders. Only the index in it, which
    `keras_dml.retrieval.load_index` reads, is uploaded: the files that it names, and no links.

    Raises:
        UsageError: The target is not hf:USER/NAME, or `index` is not an index, or has links.
        MissingExtraError: The extra `hf` is not installed.
    """
    repository = to.removeprefix(PREFIX)
    if to == repository or not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise UsageError(f"to must be hf:USER/NAME, but got {to}.")
    with needing("hf", "to=hf"):
        import huggingface_hub  # noqa: F401
    if index is None:
        return repository, None
    for place in (INDEX, ""):
        folder = index / place
        if (folder / "index.json").is_file():
            try:
                names = [posixpath.join(place, name) for name in index_files(folder)]
                check_files(index, names)
            except ArgumentError as error:
                raise UsageError(f"index must be a whole index without links. {error}") from error
            return repository, folder
    raise UsageError(f"index must be a folder of keras-dml index, but got {index}.")


def publish(
    run: pathlib.Path,
    of_run: RunOptions,
    export: pathlib.Path,
    repository: str,
    index: pathlib.Path | None,
) -> str:
    """Upload a finished export together with the run's `.keras` file, and return the address.

    A new repository is private. The uploaded files replace the files of the same names.

    Args:
        run: Folder of the run.
        of_run: Options of the run.
        export: Folder of the export, with its model card.
        repository: USER/NAME.
        index: Folder of an index to upload as `index/`, or None.

    Raises:
        UsageError: The Hub cannot be reached, or refuses the upload.
        ArgumentError: A file to upload is a link.
    """
    import huggingface_hub

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        exported = [file for file in names_of_files(export) if file != MODEL_CARD]
        copy_files(export, exported, folder)
        copy_file(kept_model(run), folder / MODEL_FILE)
        threshold = calibration_path(run / "saved_model")
        if threshold.is_file():
            copy_file(threshold, folder / THRESHOLD)
        if index is not None:
            copy_files(index, index_files(index), folder / INDEX)
        (folder / CARD).write_text(_card(of_run, export, repository), encoding="utf-8")
        try:
            api = huggingface_hub.HfApi()
            address = api.create_repo(repository, private=True, exist_ok=True)
            message = f"Upload {run.resolve().name}"
            api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message)
        except Exception as error:  # of the Hub, of the network, and of a missing token
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UsageError(
                f"to must be a repository that you can write, but got {PREFIX}{repository}. "
                f"{reason}. The export is complete: {export}"
            ) from error
    return str(address)


def _card(of_run: RunOptions, export: pathlib.Path, repository: str) -> str:
    """Return the model card of the export with the metadata of the Hub."""
    card = (export / MODEL_CARD).read_text(encoding="utf-8")
    load = (
        "```python\nimport keras_dml\n\n"
        f'model = keras_dml.models.from_hub("{repository}")\n```\n\n'
        "The model takes images float32 [n, height, width, 3] of RGB in 0 to 255, and returns "
        "embeddings."
    )
    card = card.replace("\n## Use\n", f"\n## Use\n\nIn Keras, on any backend:\n\n{load}\n", 1)
    recalls = read_json(export / FACTS, {"keras_recalls": dict[str, float]})["keras_recalls"]
    return f"---\n{_metadata(of_run, recalls, repository)}\n---\n\n{card}"


def _metadata(of_run: RunOptions, recalls: dict[str, float], repository: str) -> str:
    """Return the metadata of the card, with the scores as a `model-index`, in YAML."""
    from huggingface_hub import EvalResult, ModelCardData

    scores = [
        EvalResult(
            task_type="image-feature-extraction",
            dataset_type=of_run.dataset or "folder",
            dataset_name=of_run.dataset or "folder",
            metric_type="recall",
            metric_name=f"R@{k}, cosine",
            metric_value=round(share, 4),
        )
        for k, share in recalls.items()
    ]
    # If every class trained, the scores say nothing about new images.
    data = ModelCardData(
        model_name=repository.split("/")[1],
        library_name="keras",
        pipeline_tag="image-feature-extraction",
        tags=["keras-dml", "metric-learning", "image-retrieval"],
        eval_results=None if of_run.keeps_nothing_back else scores,
    )
    return data.to_yaml()
