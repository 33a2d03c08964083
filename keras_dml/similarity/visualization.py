"""Figures of neighbors and of a confusion matrix. Needs Matplotlib, and scikit-learn."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_dml._common.errors import argument_error
from keras_dml._common.extras import needing
from keras_dml.similarity.types import Lookup

__all__ = ["confusion_matrix", "viz_neigbors_imgs"]


def viz_neigbors_imgs(
    example: Any,
    example_class: int | None,
    neighbors: Sequence[Lookup],
    class_mapping: Mapping[int, str] | None = None,
    fig_size: tuple[float, float] = (24, 4),
    cmap: str = "viridis",
    show: bool = True,
) -> Any:
    """Draw a query and its neighbors. Neighbors of another class have red colors.

    Examples:
        >>> image = np.zeros((8, 8))
        >>> plot = viz_neigbors_imgs(image, 0, [Lookup(1, 0.1, 0, data=image)], show=False)
        >>> len(plot.gcf().axes)
        2

    Args:
        example: The image of the query.
        example_class: Its class id.
        neighbors: Lookups with images as `data`.
        class_mapping: Class id to class name.
        fig_size: Width and height in inches.
        cmap: Colormap of images with one channel.
        show: Whether to show the figure. If False, returns `matplotlib.pyplot`.
    """
    with needing("commands", "viz_neigbors_imgs"):
        from matplotlib import pyplot

    def title(label: int | None) -> str:
        if label is None:
            return "No Label"
        return str((class_mapping or {}).get(label, label))

    _, axes = pyplot.subplots(1, len(neighbors) + 1, figsize=fig_size, squeeze=False)
    shown = [(example, title(example_class), cmap)]
    for one in neighbors:
        colors = cmap if one.label == example_class else "Reds"
        shown.append((one.data, f"{title(one.label)} - {one.distance:.5f}", colors))
    for axis, (image, text, colors) in zip(axes[0], shown):
        axis.imshow(image, cmap=colors)
        axis.set_title(text)
        axis.set_xticks([])
        axis.set_yticks([])
    if show:
        pyplot.show()
        return None
    return pyplot


def confusion_matrix(
    y_pred: Any,
    y_true: Any,
    normalize: bool = True,
    labels: Sequence[str] | None = None,
    title: str = "Confusion matrix",
    cmap: str = "Blues",
    show: bool = True,
) -> tuple[Any, np.ndarray]:
    """Draw a confusion matrix, and return its axes and the matrix. Predictions come first.

    Examples:
        >>> axes, matrix = confusion_matrix([0, 1, 1], [0, 0, 1], show=False)
        >>> matrix.tolist()
        [[0.5, 0.5], [0.0, 1.0]]

    Args:
        y_pred, y_true: Predicted and true class ids, at least 0. Set `no_match_label` of
            `SimilarityModel.match` to a class of its own.
        normalize: Whether to divide each row by its sum.
        labels: Names of the classes.
        title, cmap: Title and colormap.
        show: Whether to show the figure.

    Raises:
        ValueError: A class id is negative.
    """
    with needing("commands", "confusion_matrix"):
        from matplotlib import pyplot
        from sklearn.metrics import ConfusionMatrixDisplay
    predicted, true = (np.reshape(values, -1).astype(int) for values in (y_pred, y_true))
    for name, values in (("y_pred", predicted), ("y_true", true)):
        if values.min(initial=0) < 0:
            advice = "Set no_match_label of match() to a separate class."
            raise argument_error(name, "at least 0", int(values.min()), advice=advice)
    size = max(predicted.max(initial=0), true.max(initial=0)) + 1
    display = ConfusionMatrixDisplay.from_predictions(
        true,
        predicted,
        labels=np.arange(size),
        display_labels=labels,
        normalize="true" if normalize else None,
        cmap=cmap,
        values_format=".2f",
        xticks_rotation=45,
    )
    accuracy = np.mean(predicted == true)
    display.ax_.set(title=title, xlabel=f"Predicted label\naccuracy={accuracy:0.4f}")
    if show:
        pyplot.show()
    return display.ax_, display.confusion_matrix
