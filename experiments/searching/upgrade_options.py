"""The options of `experiments.upgrade`."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from typing import NamedTuple

from experiments.options import UsageError, check_together, option, registry_flags
from experiments.options.conversions import absolute
from experiments.options.run_options import ImageLimitOptions
from experiments.searching.addresses import is_address

_MEASURE, _WRITE = "Measurement", "Upgrade"
MAP, QUERIES, PREFIX, AGAIN = "map", "queries", "prefix", "again"
UPGRADED = "-upgraded"  # end of the name of an upgraded index, next to the index


class Stage(NamedTuple):
    """Share `number` of `shares` shares, from 1."""

    number: int
    shares: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpgradeOptions(ImageLimitOptions):
    """The index, the new model, and how to upgrade.

    Attributes:
        index: Folder of keras-dml index.
        saved_model: SavedModel of the new model, for example RUN/saved_model. A SavedModel is code
            that runs with your rights. Use only models that you trust.
        images: Folder of the images, if you have moved it.
        sample: Number of images that the new model embeds for the measurement.
        kind: Map between the two models. orthogonal: a rotation. affine: ridge regression with an
            intercept. residual: affine plus a small network.
        seed: Seed of the sample and of the map.
        batch_size: Images per batch.
        to: Write the upgraded index to INDEX-upgraded. map: map the rows of the index to the new
            model. queries: keep the rows, and map the queries of the new model to the old one.
            prefix: keep the rows, and compare them with the first numbers of the new model's
            embeddings, for a model of run --compatible_with. again: embed all images again.
        stage: K/N: embed share K of N of a mapped index again. INDEX is then INDEX-upgraded, or
            INDEX after --replace.
        replace: Replace INDEX by INDEX-upgraded. The old index is deleted.
    """

    command = "experiments.upgrade"
    intro = """Change the model of an index.

  keras-dml upgrade --index=INDEX --saved_model=NEW

embeds a sample of the images with the new model, and fits maps between the two models on four
fifths of its classes. On the other classes, it measures the ways: keep the old model, search the
rows with the new model without a map (if its embeddings are at least as long), map the queries, map
the rows, and embed all images again. It prints their scores and costs, and recommends one. Without
classes, it measures the share of the new model's ten nearest images that each way finds.

  keras-dml upgrade --index=INDEX --saved_model=NEW --to=map
  keras-dml upgrade --index=INDEX-upgraded --stage=1/4    then 2/4, 3/4, 4/4, in any order
  keras-dml upgrade --index=INDEX --replace

The old index stays until --replace. Each step is written next to the index and renamed, so that an
interrupted command leaves an index that answers. A search names the map.
"""
    group = "Index and new model"

    index: str = option(None, required=True)
    saved_model: pathlib.Path | None = option(None)
    images: str | None = option(None)
    sample: int = option(4000, _MEASURE, lower_bound=50)
    kind: str = option("affine", _MEASURE, choices=registry_flags.words("keras_dml.upgrade.KINDS"))
    seed: int = option(0, _MEASURE, lower_bound=0)
    batch_size: int = option(64, lower_bound=1)
    to: str | None = option(None, _WRITE, choices=(MAP, QUERIES, PREFIX, AGAIN))
    stage: str | None = option(None, _WRITE, not_with=("to",))
    replace: bool = option(False, _WRITE, not_with=("stage",))

    @property
    def folder(self) -> pathlib.Path:
        """The folder of the index."""
        return absolute(self.index)

    @property
    def upgraded(self) -> pathlib.Path:
        """The folder of the upgraded index, next to the index."""
        folder = self.folder
        return folder.with_name(f"{folder.name}{UPGRADED}")

    @property
    def stages(self) -> Stage | None:
        """The share that `stage` names.

        Raises:
            UsageError: It is not K/N.
        """
        if self.stage is None:
            return None
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", self.stage)
        stage = Stage(*map(int, found.groups())) if found else Stage(0, 0)
        if not 1 <= stage.number <= stage.shares:
            raise UsageError(
                f"stage must be K/N with K from 1 to N, such as 1/4, but got {self.stage}."
            )
        return stage


def check_upgrade(options: UpgradeOptions) -> None:
    """Check the flags that depend on each other."""
    check_together(options)
    if is_address(options.index):
        raise UsageError(
            f"index must be a folder, but got the store {options.index}. Upgrade the folder of "
            "keras-dml index, and then write it to the store: keras-dml index --saved_model=NEW "
            f"--images=IMAGES --output_dir=INDEX-upgraded --to={options.index}"
        )
    options.stages  # noqa: B018, checked before the work
    only_replaces = options.replace and not options.to
    if only_replaces and options.saved_model is not None:
        raise UsageError(
            "to must be set with --saved_model and --replace, because without --to it replaces "
            f"{options.folder} by the index that an earlier --to wrote, whatever is measured."
        )
    if options.saved_model is None and not (options.stage or only_replaces):
        raise UsageError("Set --saved_model=FOLDER, the SavedModel of the new model.")
