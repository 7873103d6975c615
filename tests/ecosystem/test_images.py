# SPDX-License-Identifier: Apache-2.0
"""make test-ecosystem: timm, torchvision and a diffusers UNet with its schedulers, at sizes that run in seconds."""

from __future__ import annotations

import copy
from typing import Any

import diffusers
import pytest
import timm
import timm.optim
import torch
import torchvision
from losses import STEPS, assert_same_fp32
from torch import Tensor, nn


def images(count: int = 2, size: int = 32) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(5))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, device: str) -> list[float]:
    """Losses of five steps, each with images of its own."""
    generator = torch.Generator().manual_seed(6)
    found = []
    for _ in range(STEPS):
        x = torch.randn(4, 3, 32, 32, generator=generator).to(device)
        labels = torch.randint(0, 10, (4,), generator=generator).to(device)
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def transformer() -> nn.Module:
    torch.manual_seed(0)
    options = {"img_size": 32, "patch_size": 8, "depth": 2, "num_classes": 10}
    made: nn.Module = timm.create_model("vit_tiny_patch16_224", **options)
    return made


def test_timm_trains(host_ops: set[str]) -> None:
    results = []
    for device in ("cpu", "spyre"):
        model = transformer().to(device)
        results.append(train(model, timm.optim.create_optimizer_v2(model, opt="adamw", lr=1e-3), device))
    assert_same_fp32(results[1], results[0])


@pytest.mark.parametrize("name", ["resnet10t", "convnext_atto", "mobilenetv3_small_050", "mixer_s32_224"])
def test_timm_models(name: str, host_ops: set[str]) -> None:
    torch.manual_seed(0)
    sizes = {"img_size": 32} if name.startswith("mixer") else {}
    model = timm.create_model(name, num_classes=10, **sizes).eval()
    model.get_classifier().reset_parameters()  # some models begin with zeros
    with torch.no_grad():
        expected = model(images())
        assert_same_fp32(copy.deepcopy(model).to("spyre")(images().to("spyre")), expected)


@pytest.mark.parametrize("name", ["resnet18", "squeezenet1_1"])
def test_torchvision_models(name: str, host_ops: set[str]) -> None:
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, num_classes=10).eval()
    with torch.no_grad():
        expected = model(images())
        assert_same_fp32(copy.deepcopy(model).to("spyre")(images().to("spyre")), expected)


def test_torchvision_trains(host_ops: set[str]) -> None:
    """A transformer of torchvision's; its convolution nets at this size are a matter of minutes."""
    results = []
    for device in ("cpu", "spyre"):
        torch.manual_seed(0)
        model = torchvision.models.VisionTransformer(32, 8, 2, 4, 64, 128, num_classes=10).to(device)
        results.append(train(model, torch.optim.SGD(model.parameters(), lr=0.05), device))
    assert_same_fp32(results[1], results[0])


def test_torchvision_transforms(host_ops: set[str]) -> None:
    from torchvision.transforms import v2

    transform = v2.Compose([v2.CenterCrop(24), v2.Normalize([0.5] * 3, [0.25] * 3), v2.Grayscale()])
    assert_same_fp32(transform(images().to("spyre")), transform(images()))


def test_torchvision_says_what_is_missing() -> None:
    """The wheel of PyPI is built for CUDA; detection needs its compiled part."""
    if torchvision.extension._has_ops():
        pytest.skip("this torchvision is built for the CPU: its operations are there")
    with pytest.raises(RuntimeError, match="Couldn't load custom C\\+\\+ ops"):
        torchvision.ops.nms(torch.rand(3, 4), torch.rand(3), 0.5)


def unet() -> Any:
    torch.manual_seed(0)
    return diffusers.UNet2DModel(
        sample_size=8,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(32, 32),
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )


def denoise(kind: Any, device: str) -> Tensor:
    model = unet().eval().to(device)
    scheduler = kind(num_train_timesteps=100)
    scheduler.set_timesteps(STEPS, device=device)
    sample = (images(1, 8) * scheduler.init_noise_sigma).to(device)
    generator = torch.Generator().manual_seed(1)  # of the host: the noise is the same on both
    options = {"generator": generator} if kind is diffusers.DDPMScheduler else {}
    with torch.no_grad():
        for time in scheduler.timesteps:
            noise = model(scheduler.scale_model_input(sample, time), time).sample
            sample = scheduler.step(noise, time, sample, **options).prev_sample
    return sample


SCHEDULERS = ["DDPMScheduler", "DDIMScheduler", "EulerDiscreteScheduler", "DPMSolverMultistepScheduler"]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_unet_denoises(name: str, host_ops: set[str]) -> None:
    host_ops.add("nonzero")  # Euler's and DPM's look for the place of a time among all times
    kind = getattr(diffusers, name)
    assert_same_fp32(denoise(kind, "spyre"), denoise(kind, "cpu"))


def test_pipeline(host_ops: set[str]) -> None:
    """`DDIMPipeline.to("spyre")`, images included."""
    results = []
    for device in ("cpu", "spyre"):
        pipeline = diffusers.DDIMPipeline(unet(), diffusers.DDIMScheduler()).to(device)
        pipeline.set_progress_bar_config(disable=True)
        generator = torch.Generator().manual_seed(1)
        results.append(pipeline(generator=generator, num_inference_steps=STEPS, output_type="np").images)
    assert_same_fp32(results[1], results[0])


def test_unet_trains(host_ops: set[str]) -> None:
    """The step of diffusers' training guide: noise of a random time is predicted."""
    results = []
    for device in ("cpu", "spyre"):
        model = unet().to(device)
        scheduler = diffusers.DDPMScheduler(num_train_timesteps=100)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        generator = torch.Generator().manual_seed(7)
        losses = []
        for _ in range(STEPS):
            clean, noise = torch.randn(2, 2, 3, 8, 8, generator=generator).to(device)
            times = torch.randint(0, 100, (2,), generator=generator).to(device)
            noisy = scheduler.add_noise(clean, noise, times)
            loss = nn.functional.mse_loss(model(noisy, times).sample, noise)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        results.append(losses)
    assert_same_fp32(results[1], results[0])
