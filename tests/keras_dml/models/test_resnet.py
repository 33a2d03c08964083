"""ResNet-50 v1.5 compared with PyTorch's modules, layer by layer."""

import keras
import numpy as np
import pytest

from keras_dml import models

torch = pytest.importorskip("torch", reason="PyTorch is in the extra benchmark")
nn, SIZE = torch.nn, 48


class Source:
    """A ResNet-50 of PyTorch's modules with torchvision's names.

    Args:
        images: Scaled images `[n, 3, s, s]`.

    Attributes:
        state: State of all modules, by torchvision's names.
        outputs: Outputs of all modules and blocks, by our layers' names.
    """

    def __init__(self, images):
        self.state, self.outputs = {}, {}
        x = torch.relu(self.normalized(images, "conv1", "bn1", 64, 7, 2))
        x = self.outputs["maxpool"] = nn.MaxPool2d(3, 2, padding=1)(x)
        for stage, blocks in enumerate((3, 4, 6, 3)):
            for number in range(blocks):
                stride = 2 if stage and not number else 1
                x = self.bottleneck(x, f"layer{stage + 1}.{number}", 64 * 2**stage, stride)
        self.state |= {f"fc.{name}": x for name, x in nn.Linear(2048, 1000).state_dict().items()}

    def bottleneck(self, x, name, width, stride):
        y = torch.relu(self.normalized(x, f"{name}.conv1", f"{name}.bn1", width, 1))
        y = torch.relu(self.normalized(y, f"{name}.conv2", f"{name}.bn2", width, 3, stride))
        y = self.normalized(y, f"{name}.conv3", f"{name}.bn3", 4 * width, 1)
        if x.shape[1] != 4 * width:
            names = f"{name}.downsample.0", f"{name}.downsample.1"
            x = self.normalized(x, *names, 4 * width, 1, stride)
        self.outputs[f"{name.replace('.', '_')}_relu"] = torch.relu(x + y)
        return torch.relu(x + y)

    def normalized(self, x, convolution, norm, width, size, stride=1):
        kernels = nn.Conv2d(x.shape[1], width, size, stride, padding=size // 2, bias=False)
        statistics = nn.BatchNorm2d(width).eval()
        for values in (statistics.weight, statistics.running_var):
            nn.init.uniform_(values, 0.5, 1.5)
        for values in (statistics.bias, statistics.running_mean):
            nn.init.uniform_(values, -0.3, 0.3)
        for name, module in ((convolution, kernels), (norm, statistics)):
            x = self.outputs[name.replace(".", "_")] = module(x)
            self.state |= {f"{name}.{key}": value for key, value in module.state_dict().items()}
        return x


@torch.no_grad()
def test_every_layer_matches_pytorch(tmp_path):
    torch.manual_seed(2)
    images = np.random.default_rng(0).uniform(0, 255, (2, SIZE, SIZE, 3)).astype("float32")
    scaled = (images / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    source = Source(torch.tensor(scaled.transpose(0, 3, 1, 2), dtype=torch.float32))
    path = tmp_path / "resnet50.pth"
    torch.save(source.state, path)
    backbone = models.build_backbone(
        "resnet50_v1_5", SIZE, weights=str(path), frozen_batch_norm=False
    )
    assert len(source.outputs) == 53 + 53 + 1 + 16
    outputs = {name: backbone.get_layer(name).output for name in source.outputs}
    found = keras.Model(backbone.input, outputs)(images, training=False)
    for name, theirs in source.outputs.items():
        theirs, ours = theirs.numpy().transpose(0, 2, 3, 1), found[name].numpy()
        assert ours.shape == theirs.shape, name
        assert theirs.std() > 0.1, name
        assert np.abs(ours - theirs).max() < 1e-4 * theirs.std(), name
