"""The networks against their published sizes and torchvision."""

from functools import partial

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import resnet18

from project.data import SyntheticDataModule
from project.models import MLP, FastNet, ResNet18, Task


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_number_of_parameters() -> None:
    assert num_parameters(MLP()) == 235_914
    assert num_parameters(ResNet18()) == 11_173_962
    assert num_parameters(FastNet()) == 1_972_504


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
        (FastNet(width=8, whiten=False, in_channels=1, num_classes=3), (2, 1, 28, 28)),
        (FastNet(width=4, mirror=True), (2, 3, 64, 64)),
    ],
)
def test_options_give_logits_of_the_right_shape(model: Task, shape: tuple[int, ...]) -> None:
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


@pytest.fixture(scope="module")
def fitted() -> tuple[FastNet, SyntheticDataModule]:
    """Return a FastNet after two training steps, and its data."""
    data = SyntheticDataModule(batch_size=500, train_size=1000, val_size=0, image_size=16)
    model = FastNet(width=4)
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", limit_val_batches=0, **dict.fromkeys(off, False)
    )
    trainer.fit(model, data)
    return model, data


def test_fast_net_whitens_patches(fitted: tuple[FastNet, SyntheticDataModule]) -> None:
    model, data = fitted
    images, _ = data.examples("train", 1000)
    whole = F.conv2d(images, model.patches)  # (N, 24, H - 1, W - 1)
    assert torch.equal(whole[:, 12:], -whole[:, :12])
    whitened = whole[:, :12].transpose(0, 1).flatten(1).double()
    moments = whitened @ whitened.T / whitened.shape[1]
    # Below 1 by what is added to the variance of each direction.
    assert (moments - moments.diag().diag()).abs().max() < 1e-3
    patches = F.unfold(images, 2).transpose(0, 1).flatten(1).double()
    variances = torch.linalg.eigvalsh(patches @ patches.T / patches.shape[1])
    torch.testing.assert_close(
        moments.diag(), variances / (variances + 5e-4), rtol=1e-3, atol=1e-3, check_dtype=False
    )


def test_fast_net_keeps_patches_that_it_has(fitted: tuple[FastNet, SyntheticDataModule]) -> None:
    """The patches of a checkpoint stay, even if it is trained further on other images."""
    model, data = fitted
    other = FastNet(width=4)
    other.load_state_dict(model.state_dict())
    other._trainer = model._trainer
    data.sets["train"][0].random_(255)  # type: ignore[union-attr]
    other.setup("fit")
    assert torch.equal(other.patches, model.patches)
    with pytest.raises(ValueError, match="data module"):
        FastNet(width=4).setup("fit")


def test_fast_net_refuses_images_that_it_would_halve_to_nothing() -> None:
    assert FastNet(width=4)(torch.zeros(2, 3, 9, 9)).shape == (2, 10)
    with pytest.raises(ValueError, match="8 pixels are too few"):
        FastNet(width=4)(torch.zeros(2, 3, 8, 8))


def test_fast_net_sees_mirror_images_alike_in_evaluation_alone() -> None:
    model = FastNet(width=4, whiten=False, mirror=True).eval()
    images = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(model(images), model(images.flip(3)))
    one_sided = FastNet(width=4, whiten=False).eval()
    one_sided.load_state_dict(model.state_dict())
    both = (one_sided(images) + one_sided(images.flip(3))) / 2
    torch.testing.assert_close(model(images), both)
    assert not torch.allclose(one_sided(images), one_sided(images.flip(3)))


def test_biases_of_fast_net_have_their_own_learning_rate() -> None:
    data = SyntheticDataModule(train_size=40, val_size=20, test_size=0, image_size=9, batch_size=20)
    optimizer = partial(torch.optim.SGD, lr=0.1, weight_decay=0.02)
    schedule = partial(torch.optim.lr_scheduler.OneCycleLR, cycle_momentum=False)
    model = FastNet(width=4, bias_lr=64, optimizer=optimizer, lr_scheduler=schedule)
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = L.Trainer(max_epochs=2, accelerator="cpu", **dict.fromkeys(off, False))
    trainer.fit(model, data)
    others, biases = trainer.optimizers[0].param_groups
    assert [p.shape for p in biases["params"]] == [
        p.shape for n, p in model.named_parameters() if "bn" in n and "bias" in n
    ]
    assert len(others["params"]) + len(biases["params"]) == len(list(model.parameters()))
    assert (others["max_lr"], biases["max_lr"]) == pytest.approx((0.1, 6.4))
    assert biases["lr"] == pytest.approx(64 * others["lr"])
    assert biases["weight_decay"] * 64 == pytest.approx(others["weight_decay"])


def test_an_optimiser_without_weight_decay_has_both_rates() -> None:
    model = FastNet(width=4, bias_lr=64, optimizer=partial(torch.optim.Rprop, lr=0.01))
    (optimizer,), _ = model.configure_optimizers()  # type: ignore[misc]
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.01, 0.64])
    assert all("weight_decay" not in group for group in optimizer.param_groups)
