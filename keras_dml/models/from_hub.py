"""Models from the Hugging Face Hub."""

import pathlib

import keras

from keras_dml._common.errors import argument_error, without_passwords
from keras_dml._common.extras import needing
from keras_dml._common.types import StrPath
from keras_dml.models.keras_files import load_keras_file

MODEL_FILE = "model.keras"
"""Name of the model in a repository."""


def from_hub(name: StrPath, revision: str | None = None, trust_code: bool = False) -> keras.Model:
    """Load an embedding model that `keras-dml export --to=hf:USER/NAME` published.

    The download is cached. A private repository needs the token of `hf auth login` or `HF_TOKEN`.

    Args:
        name: USER/NAME of a repository, or a folder with the same files.
        revision: Branch, tag, or commit. None: the default branch.
        trust_code: As for `load_keras_file`.

    Returns:
        The uncompiled model, from images float32 `[n, height, width, 3]` in 0..255 to embeddings.

    Raises:
        MissingExtraError: huggingface_hub (extra `hf`) is not installed.
        ValueError: The repository or its `model.keras` does not exist or cannot be read. Also as
            for `load_keras_file`.

    Examples:
        >>> pathlib.Path("a_model").mkdir(exist_ok=True)
        >>> inputs = keras.Input((4,))
        >>> keras.Model(inputs, keras.layers.Dense(2)(inputs)).save("a_model/model.keras")
        >>> from_hub("a_model").output_shape
        (None, 2)
    """
    folder = pathlib.Path(name).expanduser()
    if folder.is_dir():
        return load_keras_file(folder / MODEL_FILE, trust_code)
    with needing("hf", "from_hub"):
        import huggingface_hub
    repository = str(name)
    try:
        try:
            # One request of ten seconds. A download of a silent Hub would try for minutes.
            address = huggingface_hub.hf_hub_url(repository, MODEL_FILE, revision=revision)
            huggingface_hub.get_hf_file_metadata(address)
        except Exception as error:
            answer = getattr(error, "response", None)
            if answer is not None and answer.status_code < 500:
                raise  # for example, the repository does not exist
            cached = huggingface_hub.try_to_load_from_cache(
                repository, MODEL_FILE, revision=revision
            )
            if not isinstance(cached, str):
                raise
            path = cached
        else:
            path = huggingface_hub.hf_hub_download(repository, MODEL_FILE, revision=revision)
    except Exception as error:  # a broken server causes errors of the HTTP library too
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        reason = without_passwords(reason)[:300]
        wanted = f"a repository with {MODEL_FILE}, or a folder"
        raise argument_error("name", wanted, str(name), advice=reason) from error
    return load_keras_file(path, trust_code)
