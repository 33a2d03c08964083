"""The options of `experiments.evaluate`."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from experiments.options import Options, RunOptions, UsageError, option, refuse_unused
from experiments.options.registry_flags import arguments, import_attribute, words
from experiments.options.run_options import (
    BackboneOptions,
    EvaluationOptions,
    ImageSizeOptions,
    RelationOptions,
    flags_of_registry,
)

__all__ = ["SOURCES", "EvaluateOptions"]

_WHAT, _HOW = "Evaluated model or file, one of", "How"
RERANKINGS = "keras_dml.retrieval.RERANKINGS"
SOURCES = ("run", "model", "saved_model", "embeddings")
# Flags that have an effect on a file of embeddings.
_OF_A_FILE = {
    "embeddings",
    "recall_at",
    "matryoshka",
    "clustering",
    "information",
    "loss_parts",
    "neighbors",
    "output_dir",
    "rerank",
} | {field.name for field in dataclasses.fields(Options)}
_OF_A_BACKBONE = [name for name in BackboneOptions.__annotations__ if name != "backbone"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateOptions(EvaluationOptions, BackboneOptions, RelationOptions):
    """Options of the command: the model or file, and the flags of a run that apply to it.

    Attributes:
        run: Folder of keras-dml run: its kept model on its dataset. Other flags override the
            run's.
        model: Keras model from images [n, size, size, 3], RGB in 0..255, to embeddings [n, d].
        saved_model: SavedModel from the bytes of image files to embeddings. It contains the
            preprocessing, so image_size and resize have no effect. It runs code with your rights:
            use only models that you trust.
        embeddings: File of numpy.savez with the arrays embeddings [n, d] and labels [n].
            gallery_embeddings and gallery_labels are searched instead of the other rows, and
            catalog_embeddings and catalog_labels as a second task. With paths of image files (also
            gallery_paths and catalog_paths), the page shows neighbors.
        candidate_model: Keras model of the gallery or catalog images, which the queries of --model
            search. Default: --model embeds all images.
        split: Images of the dataset. test: the classes that a run tests, so that the scores equal
            its row "untrained backbone". all: every class. A model that was trained on the dataset
            has seen the classes of train and all.
        clustering: Compute NMI and AMI, which need k-means.
        loss_parts: Losses over embeddings whose tightness and contrastive part to print, such as
            center,contrastive,snca,multi_similarity,pce,spce.
        rerank: Re-rankings whose scores to print too, with the differences and their intervals over
            the classes.
        of_rerankings: Arguments of all re-rankings, with their defaults.
        output_dir: Folder of the results. Default: NAME-evaluation next to the file or model, or
            evaluation in the folder of a run.
    """

    group = _WHAT

    command = "experiments.evaluate"
    intro = """Score embeddings in retrieval and clustering: a table, a page, and a JSON file.

  keras-dml evaluate --run=runs/glyphs-seed0
  keras-dml evaluate --backbone=efficientnet_lite0 --weights=packaged --data_dir=photos
  keras-dml evaluate --model=FILE.keras --dataset=cub --data_dir=FOLDER --resize=256
  keras-dml evaluate --saved_model=FOLDER --data_dir=photos
  keras-dml evaluate --embeddings=FILE.npz

--backbone evaluates an untrained backbone with its pooling, without any run. With --data_dir, the
default of --dataset is a folder of class folders. The same command resumes after a stop. From a
--flagfile, only the flags of the dataset, the image size, the backbone, and the evaluation apply.
"""

    run: str | None = option(None)
    model: str | None = option(None)
    saved_model: str | None = option(None)
    embeddings: str | None = option(None)
    candidate_model: str | None = option(None, group=_HOW, needs="model")
    split: str = option("test", group=_HOW, choices=("test", "train", "all"))
    clustering: bool = option(True, group=_HOW)
    loss_parts: tuple[str, ...] = option((), group=_HOW)
    rerank: tuple[str, ...] = option((), group=_HOW, choices=words(RERANKINGS))
    of_rerankings: Mapping[str, Any] = flags_of_registry(RERANKINGS, _HOW, "rerank_", optional=True)
    output_dir: str | None = option(None, group=_HOW)

    @classmethod
    def of_flag_files(cls) -> type[Options]:
        """Return the options of a recipe or of a run."""
        return RunOptions

    @property
    def kind(self) -> str:
        """The flag that is set: one of `SOURCES`, or else "backbone"."""
        given = [name for name in SOURCES if getattr(self, name)]
        if "backbone" in (self.on_command_line if given else self.given):
            given.append("backbone")
        if len(given) != 1:
            raise UsageError(
                f"Set one of {', '.join(f'--{name}' for name in (*SOURCES, 'backbone'))}, but got "
                f"{' and '.join(f'--{name}' for name in given) or 'none of them'}."
            )
        return given[0]

    @property
    def source(self) -> pathlib.Path:
        """The path of the evaluated model, run, or file, or the name of the backbone."""
        return pathlib.Path(getattr(self, self.kind)).expanduser()

    @property
    def output(self) -> pathlib.Path:
        """The folder of the results."""
        if self.output_dir:
            return pathlib.Path(self.output_dir).expanduser()
        name = "evaluation" if self.split == "test" else f"evaluation-{self.split}"
        if self.kind == "run":
            return self.source / name
        if self.kind == "backbone":
            return pathlib.Path("runs", f"{self.source.stem.replace(':', '_')}-{name}")
        source = pathlib.Path(os.path.abspath(self.source))  # so that "." has a name
        return source.with_name(f"{source.name if source.is_dir() else source.stem}-{name}")

    @property
    def rerankings(self) -> dict[str, Callable[..., Any]]:
        """The functions of `--rerank` with the arguments that are set, by name.

        Raises:
            UsageError: None of them takes an argument.
        """
        functions = import_attribute(RERANKINGS)
        taken = {name: arguments(functions[name]) for name in self.rerank}
        for argument, value in self.of_rerankings.items():
            if not any(argument in each for each in taken.values()):
                owners = [name for name in functions if argument in arguments(functions[name])]
                raise UsageError(
                    f"rerank_{argument} must be unset without --rerank={' or '.join(owners)}, but "
                    f"got {value}."
                )
        return {
            name: functools.partial(
                functions[name],
                **{key: value for key, value in self.of_rerankings.items() if key in each},
            )
            for name, each in taken.items()
        }

    def check_effect(self) -> None:
        """Raise `UsageError` for flags on the command line without effect on the model or file."""
        kind = self.kind
        if kind == "embeddings":
            functions = import_attribute(RERANKINGS).values()
            of_rerankings = {f"rerank_{name}" for each in functions for name in arguments(each)}
            unused = self.on_command_line - _OF_A_FILE - of_rerankings
            refuse_unused(self, sorted(unused), "--embeddings")
        elif kind != "backbone":
            sizes = ImageSizeOptions.__annotations__ if kind == "saved_model" else ()
            refuse_unused(self, [*_OF_A_BACKBONE, *sizes], f"--{kind}")
