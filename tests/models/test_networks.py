"""The networks against their published sizes and torchvision."""

import pytest
import torch
from torch import nn
from torchvision.models import resnet18

from project.models import MLP, ResNet18
from project.models.classifier import Classifier


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_number_of_parameters() -> None:
    assert num_parameters(MLP()) == 235_914
    assert num_parameters(ResNet18()) == 11_173_962


def test_resnet_gives_the_logits_of_torchvision_from_the_same_weights() -> None:
    reference = resnet18(num_classes=10)
    reference.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    reference.maxpool = nn.Identity()
    model = ResNet18()
    loaded = model.load_state_dict(reference.state_dict())
    assert not loaded.missing_keys
    assert not loaded.unexpected_keys
    images = torch.randn(4, 3, 32, 32)
    for training in (True, False):
        torch.testing.assert_close(
            model.train(training)(images), reference.train(training)(images), rtol=0, atol=1e-5
        )


def test_resnet_is_initialised_as_torchvision_does() -> None:
    torch.manual_seed(0)
    reference = resnet18(num_classes=10).layer3[0].conv1.weight
    torch.manual_seed(0)
    weight = ResNet18().layer3[0].conv1.weight
    assert weight.std().item() == pytest.approx(reference.std().item(), rel=0.01)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (MLP(hidden_sizes=[7], norm="none", dropout=0, num_classes=3), (5, 1, 28, 28)),
        (MLP(hidden_sizes=[], in_channels=3, image_size=8), (5, 3, 8, 8)),
        (MLP(norm="layer"), (5, 1, 28, 28)),
        (ResNet18(width=4, in_channels=1, num_classes=100), (2, 1, 28, 28)),
        (ResNet18(width=8), (2, 3, 64, 64)),
    ],
)
def test_options_give_logits_of_the_right_shape(model: Classifier, shape: tuple[int, ...]) -> None:
    assert model(torch.randn(shape)).shape == (shape[0], model.num_classes)


def test_norm_is_an_option() -> None:
    kinds = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm, "none": nn.Identity}
    for norm, kind in kinds.items():
        assert sum(isinstance(m, kind) for m in MLP(norm=norm).modules()) == 2  # type: ignore[arg-type]


def test_width_scales_every_stage() -> None:
    widths = [
        block[1].conv2.out_channels
        for block in ResNet18(width=6).children()
        if isinstance(block, nn.Sequential)
    ]
    assert widths == [6, 12, 24, 48]
