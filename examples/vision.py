"""Image reading, augmentation and networks for the image examples.

The examples use this module instead of torchvision.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from cerebro.client.results import EtlResult

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's RGB channels, for values from 0 to 1."""


def read_image(folder: str, column: str, name: str, side: int) -> Any:
    """Read an image, crop its central square and resize it.

    Args:
        folder: folder of the file.
        column: metadata column with the file name. Error messages name it.
        name: file name.
        side: side of the result, in pixels.

    Returns:
        uint8 of shape (3, side, side).

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: the file is damaged or not an image.
    """
    try:
        with Image.open(f"{folder}/{name}") as image:
            image.draft("RGB", (2 * side, 2 * side))  # decodes a large JPEG at a reduced size
            square = ImageOps.fit(image.convert("RGB"), (side, side), Image.Resampling.BILINEAR)
    except FileNotFoundError as cause:
        raise FileNotFoundError(
            f"column {column!r} names {name}, which is not in {folder}: put the file there or remove the row"
        ) from cause
    except (
        OSError,
        SyntaxError,
        Image.DecompressionBombError,
    ) as cause:  # Pillow's errors for damaged files
        raise ValueError(
            f"column {column!r} names {name}, which cannot be read as an image ({cause}): replace the file or remove "
            "the row"
        ) from cause
    return np.ascontiguousarray(np.asarray(square).transpose(2, 0, 1))


def say_preprocessed(etl: EtlResult) -> None:
    """Print the number of preprocessed rows, the number of failed rows, and the first failure."""
    print(f"preprocessed {sum(etl.kept_rows.values()):,} rows in {etl.seconds:.1f} s")
    if any(etl.failed.values()):
        left_out = etl.failed_rows()
        print(f"{len(left_out)} rows were left out, such as {left_out['id'][0]!r}: {left_out['error'][0]}")


def normalized(images: Tensor) -> Tensor:
    """Scale uint8 images to about mean 0 and standard deviation 1 per channel."""
    mean, deviation = (images.new_tensor(v, dtype=torch.float32).view(3, 1, 1) for v in (MEAN, DEVIATION))
    return (images.float() / 255 - mean) / deviation


def augmented(images: Tensor, crop: int, least: float = 0.35) -> Tensor:
    """Crop each image at random, resize the crop, and mirror it with probability 1/2.

    A crop has an aspect ratio from 3:4 to 4:3. torch's CPU generator draws the random numbers. Cerebro seeds this
    generator for each sub-epoch, so a repeated sub-epoch gets the same crops on any device.

    Args:
        images: float of shape (batch, 3, height, width).
        crop: side of the result, in pixels.
        least: minimum area of a crop, as a fraction of the image. Default 0.35.

    Returns:
        float of shape (batch, 3, crop, crop).
    """
    area, ratio, across, down, mirror = torch.rand(5, len(images))
    area = least + (1 - least) * area
    ratio = torch.exp((2 * ratio - 1) * math.log(4 / 3))
    wide, high = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    # Affine map from a pixel of the crop to a position in the image. Positions range from -1 to 1 on both axes.
    moved = torch.zeros(len(images), 2, 3)
    moved[:, 0, 0] = torch.where(mirror < 0.5, -wide, wide)
    moved[:, 0, 2] = (2 * across - 1) * (1 - wide)
    moved[:, 1, 1] = high
    moved[:, 1, 2] = (2 * down - 1) * (1 - high)
    shape = [len(images), images.shape[1], crop, crop]
    grid = functional.affine_grid(moved.to(images.device), shape, align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="reflection", align_corners=False)


def middle(images: Tensor, crop: int) -> Tensor:
    """Crop the central square of `crop` x `crop` pixels."""
    top, left = ((side - crop) // 2 for side in images.shape[2:])
    return images[:, :, top : top + crop, left : left + crop]


# --- networks ------------------------------------------------------------------------------------


def vgg16(classes: int, crop: int, width: float = 1.0) -> nn.Module:
    """Create VGG16 (Simonyan and Zisserman, 2015, table 1, column D).

    Pooling rounds odd sizes up, so the last feature map of an image of 112 pixels is 4 x 4. With Adam's state,
    the model then has the size that Nakandala et al. (PVLDB 2020) report.

    Args:
        classes: number of outputs.
        crop: side of the input, in pixels.
        width: number of channels and hidden units, as a fraction of the published network. Default 1.
    """
    layers: list[nn.Module] = []
    channels = 3
    for convolutions, published in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(convolutions):
            out = _scaled(published, width)
            layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU(inplace=True)]
            channels = out
        layers.append(nn.MaxPool2d(2, ceil_mode=True))
    hidden = _scaled(4096, width)
    layers += [
        nn.Flatten(),
        *(nn.Linear(channels * math.ceil(crop / 32) ** 2, hidden), nn.ReLU(inplace=True), nn.Dropout()),
        *(nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout()),
        nn.Linear(hidden, classes),
    ]
    return _initialized(nn.Sequential(*layers))


class Bottleneck(nn.Module):
    """Residual block of three convolutions (He et al., 2016, figure 5, right).

    The middle convolution has the stride.
    """

    def __init__(self, channels: int, middle: int, stride: int) -> None:
        super().__init__()
        out = 4 * middle
        self.conv1 = nn.Conv2d(channels, middle, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(middle)
        self.conv2 = nn.Conv2d(middle, middle, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(middle)
        self.conv3 = nn.Conv2d(middle, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.downsample = None
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, images: Tensor) -> Tensor:
        """Map images of shape (batch, channels, height, width)."""
        shortcut = images if self.downsample is None else self.downsample(images)
        hidden = functional.relu(self.bn1(self.conv1(images)))
        hidden = functional.relu(self.bn2(self.conv2(hidden)))
        return functional.relu(self.bn3(self.conv3(hidden)) + shortcut)


class ResNet50(nn.Module):
    """ResNet50 (He et al., 2016, table 1) with torchvision's parameter names.

    Args:
        classes: number of outputs. 0: omit the last layer and return features.
        width: number of channels, as a fraction of the published network. Default 1.
    """

    def __init__(self, classes: int, width: float = 1.0) -> None:
        super().__init__()
        channels = _scaled(64, width)
        self.conv1 = nn.Conv2d(3, channels, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        for number, (blocks, published) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), 1):
            middle = _scaled(published, width)
            stage: list[nn.Module] = []
            for block in range(blocks):
                stage.append(Bottleneck(channels, middle, 2 if number > 1 and block == 0 else 1))
                channels = 4 * middle
            self.add_module(f"layer{number}", nn.Sequential(*stage))
        self.features = channels
        self.fc = nn.Linear(channels, classes) if classes else nn.Identity()
        _initialized(self)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (batch, 3, height, width) to (batch, classes or features)."""
        hidden = functional.relu(self.bn1(self.conv1(images)))
        hidden = functional.max_pool2d(hidden, 3, 2, padding=1)
        for number in range(1, 5):
            hidden = self.get_submodule(f"layer{number}")(hidden)
        found: Tensor = self.fc(hidden.mean((2, 3)))
        return found


def _scaled(published: int, width: float) -> int:
    return max(1, round(published * width))


def _initialized(network: nn.Module) -> nn.Module:
    """Initialize convolutions so that ReLU layers keep the variance (He et al., 2015).

    With smaller weights, a network of 16 layers does not learn.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return network
