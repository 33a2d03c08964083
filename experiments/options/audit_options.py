"""The options of `experiments.audit`."""

from __future__ import annotations

import dataclasses
import os
import pathlib

from experiments.options import Options, RunOptions, UsageError, option, refuse_unused
from experiments.options.run_options import EvaluationOptions

__all__ = ["AuditOptions"]

_WHAT, _FOUND = "Audited run, index, or file, one of", "What counts as found"
_LIMITS, _HOW = "How much is allowed, for an exit code", "How"
# Flags of the audited run that have no effect on a file of embeddings.
_OF_A_RUN = {field.name for field in dataclasses.fields(EvaluationOptions)} - {
    "max_pixels", *(field.name for field in dataclasses.fields(Options))
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditOptions(EvaluationOptions):
    """Options of the command.

    Attributes:
        run: Folder of keras-dml run: its images and its kept model. A model that was trained on
            wrong labels agrees with some of them.
        index: Folder of keras-dml index: its images, classes, and rows.
        embeddings: File of numpy.savez with the arrays embeddings [n, d] and labels [n]. train_ or
            gallery_ before these names adds sets, and paths (train_paths, gallery_paths) of image
            files add pictures. Without pictures, near-duplicates are found by the embeddings.
        correlation: Least correlation of the gray levels of two near-duplicates, at 32x32 pixels.
            One of them may be mirrored or cut by up to a sixth.
        similarity: Without pictures: least cosine similarity of two near-duplicates. The right
            value depends on the model.
        max_leaks: Test and gallery images that are near-duplicates of training images. Default: any
            number.
        max_duplicates: Images after the first of each group of near-duplicates. Default: any
            number.
        max_label_errors: Labels that are probably wrong. Default: any number.
        max_outliers: Outliers. Default: any number.
        output_dir: Folder of the results. Default: RUN/audit, or NAME-audit next to the index or
            file.
    """

    group = _LIMITS

    command = "experiments.audit"
    intro = """Find errors in a set of labeled images by the embeddings of a model.

  keras-dml audit --run=runs/folder-seed0
  keras-dml audit --index=photo_index
  keras-dml audit --embeddings=FILE.npz

Finds near-duplicates within and across training and test images, labels that are probably wrong,
outliers, and the most confused classes. Writes audit.html, with pictures if the images are
available, and findings.csv with all findings.

Exit code 0: done, and nothing is over a limit. 3: a limit is exceeded, and both files are written.
1: the audit had to stop. 2: a flag is wrong.
"""

    run: str | None = option(None, group=_WHAT)
    index: str | None = option(None, group=_WHAT)
    embeddings: str | None = option(None, group=_WHAT)
    correlation: float = option(0.92, group=_FOUND, lower_bound=0, upper_bound=1)
    similarity: float = option(0.97, group=_FOUND, lower_bound=-1, upper_bound=1)
    max_leaks: int | None = option(None, lower_bound=0)
    max_duplicates: int | None = option(None, lower_bound=0)
    max_label_errors: int | None = option(None, lower_bound=0)
    max_outliers: int | None = option(None, lower_bound=0)
    output_dir: str | None = option(None, group=_HOW)

    @classmethod
    def of_flag_files(cls) -> type[Options]:
        """Return the options of the audited run, whose flags the others override."""
        return RunOptions

    @property
    def source(self) -> pathlib.Path:
        """The path of the audited run, index, or file."""
        sources = {"run": self.run, "index": self.index, "embeddings": self.embeddings}
        found = {name: path for name, path in sources.items() if path}
        if len(found) != 1:
            raise UsageError(
                "Set one of --run, --index, and --embeddings, but got "
                f"{' and '.join(found) or 'none'}."
            )
        (path,) = found.values()
        return pathlib.Path(path).expanduser()

    @property
    def output(self) -> pathlib.Path:
        """The folder of the results."""
        if self.output_dir:
            return pathlib.Path(self.output_dir).expanduser()
        if self.run:
            return self.source / "audit"
        source = pathlib.Path(os.path.abspath(self.source))  # so that "." has a name
        return source.with_name(f"{source.stem}-audit")

    def check_effect(self) -> None:
        """Raise `UsageError` for flags on the command line without effect on an index or a file."""
        for name in ("index", "embeddings"):
            if getattr(self, name):
                refuse_unused(self, sorted(_OF_A_RUN), f"--{name}")
