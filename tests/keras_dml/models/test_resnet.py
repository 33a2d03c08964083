"""ResNet-50 v1.5 compared with PyTorch's modules, layer by layer."""

import keras
import numpy as np
import pytest

from keras_dml import models

torch = pytest.importorskip("torch", reason="PyTorch is in the extra benchmark")
nn, SIZE = torch.nn, 48


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = None
        if channels != 4 * width:
            convolution = nn.Conv2d(channels, 4 * width, 1, stride, bias=False)
            self.downsample = nn.Sequential(convolution, nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        return torch.relu(self.bn3(self.conv3(y)) + (self.downsample or nn.Identity())(x))


class ResNet50(nn.Module):
    """A ResNet-50 with the names of torchvision's state_dict."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        channels = 64
        for stage, blocks in enumerate((3, 4, 6, 3)):
            width, stack = 64 * 2**stage, []
            for number in range(blocks):
                stack.append(Bottleneck(channels, width, 2 if stage and not number else 1))
                channels = 4 * width
            setattr(self, f"layer{stage + 1}", nn.Sequential(*stack))
        self.fc = nn.Linear(2048, 1000)

    def forward(self, x):
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))


@pytest.fixture(scope="module")
def source():
    torch.manual_seed(0)
    module = ResNet50().eval()
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            for values, low, high in (
                (layer.weight, 0.5, 1.5), (layer.bias, -0.3, 0.3),
                (layer.running_mean, -0.3, 0.3), (layer.running_var, 0.5, 1.5),
            ):  # fmt: skip
                nn.init.uniform_(values, low, high)
    return module


@pytest.fixture(scope="module")
def backbone(source, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "resnet50.pth"
    torch.save(source.state_dict(), path)
    return models.build_backbone("resnet50_v1_5", SIZE, weights=str(path), frozen_batch_norm=False)


def test_every_layer_matches_pytorch(source, backbone):
    expected = {}
    kinds = (nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, Bottleneck)
    for name, layer in source.named_modules():
        if isinstance(layer, kinds):
            name = name.replace(".", "_") + ("_relu" if isinstance(layer, Bottleneck) else "")
            layer.register_forward_hook(
                lambda _, __, output, name=name: expected.update({name: output.numpy()})
            )
    images = np.random.default_rng(0).uniform(0, 255, (2, SIZE, SIZE, 3)).astype("float32")
    scaled = (images / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    with torch.no_grad():
        source(torch.tensor(scaled.transpose(0, 3, 1, 2), dtype=torch.float32))
    assert len(expected) == 53 + 53 + 1 + 16
    outputs = {name: backbone.get_layer(name).output for name in expected}
    found = keras.Model(backbone.input, outputs)(images, training=False)
    for name, theirs in expected.items():
        theirs, ours = theirs.transpose(0, 2, 3, 1), found[name].numpy()
        assert ours.shape == theirs.shape, name
        assert theirs.std() > 0.1, name
        error = np.abs(ours - theirs).max()
        assert error < 1e-4 * theirs.std(), name
