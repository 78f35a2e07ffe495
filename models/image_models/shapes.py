"""The shapes of the image models: their sizes, and by formula their weights. Pure.

The formulas count what KerasHub's layers allocate; a test compares them with `count_params()` of built models.
Sources of the sizes: the configurations of KerasHub's presets sam_*_sa1b, stable_diffusion_3_medium and
stable_diffusion_3.5_large.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

ALL, IMAGE_ENCODER = "all", "image_encoder"
PARTS = (ALL, IMAGE_ENCODER)
# The masks that Segment Anything predicts for a prompt: the best one and three alternatives.
MASKS = 4
# Stable Diffusion 3: pixels per latent, latents per patch, channels of a latent, features of a time.
PIXELS, PATCH, CHANNELS, TIME_FEATURES = 8, 2, 16, 256


@dataclass(frozen=True, slots=True)
class SamShape:
    """Segment Anything: a vision transformer over patches, `channels` features of each patch, and a mask decoder.

    Blocks attend within windows of `window` by `window` patches, those of `global_blocks` to all patches.
    """

    image: int
    patch: int
    blocks: int
    width: int
    heads: int
    global_blocks: tuple[int, ...]
    window: int = 14
    channels: int = 256
    decoder_hidden: int = 2048
    decoder_layers: int = 2
    mask_channels: int = 16

    @property
    def grid(self) -> int:
        """Return the patches along a side of the image."""
        return self.image // self.patch

    @property
    def encoder_parameters(self) -> int:
        """Return the number of weights of the image encoder."""
        width, channels = self.width, self.channels
        patches = 3 * self.patch**2 * width + width + self.grid**2 * width
        sides = len(self.global_blocks) * self.grid + (self.blocks - len(self.global_blocks)) * self.window
        positions = 2 * (2 * sides - self.blocks) * width // self.heads
        neck = width * channels + 9 * channels**2 + 4 * channels
        return patches + self.blocks * (12 * width**2 + 13 * width) + positions + neck

    @property
    def parameters(self) -> int:
        """Return the number of weights."""
        return self.encoder_parameters + self._prompt_parameters + self._decoder_parameters

    @property
    def unused(self) -> int:
        """Return the weights of prompts by boxes and masks, and the frequencies of positions, which nothing trains."""
        return 3 * self.channels + self._downscaler

    def trained(self, part: str) -> int:
        """Return the weights that training of a part updates."""
        return self.encoder_parameters if part == IMAGE_ENCODER else self.parameters - self.unused

    @property
    def _downscaler(self) -> int:
        fine, quarter = self.mask_channels, self.mask_channels // 4
        return 4 * quarter + 3 * quarter + 4 * quarter * fine + 3 * fine + fine * self.channels + self.channels

    @property
    def _prompt_parameters(self) -> int:
        return 7 * self.channels + self._downscaler

    @property
    def _decoder_parameters(self) -> int:
        width, hidden = self.channels, self.decoder_hidden
        halved = 2 * width**2 + 5 * width // 2  # an attention over half the features
        layer = 4 * width**2 + 4 * width + 2 * halved + 8 * width + 2 * width * hidden + hidden + width
        transformer = self.decoder_layers * layer + halved + 2 * width
        upscaling = width**2 + 3 * width // 4 + width**2 // 8 + width // 8
        hidden_layers = 2 * (width**2 + width)
        heads = MASKS * (hidden_layers + (width + 1) * width // 8) + hidden_layers + (width + 1) * MASKS
        return (1 + MASKS) * width + transformer + upscaling + heads


@dataclass(frozen=True, slots=True)
class DiffuserShape:
    """The diffusion transformer of Stable Diffusion 3: `positions` by `positions` is its table of positions.

    A text is `tokens` vectors of `text_width`, and one of `pooled_width`. The version 3.5 normalises queries and keys.
    """

    image: int
    blocks: int
    width: int
    heads: int
    positions: int
    normalizes: bool = False
    tokens: int = 154
    text_width: int = 4096
    pooled_width: int = 2048

    @property
    def latent(self) -> int:
        """Return the latents along a side of the image."""
        return self.image // PIXELS

    @property
    def parameters(self) -> int:
        """Return the number of weights."""
        width = self.width
        square = width**2 + width
        patches = PATCH**2 * CHANNELS
        inputs = (patches + 1) * width + self.positions**2 * width + (self.text_width + 1) * width
        conditions = (self.pooled_width + 1) * width + (TIME_FEATURES + 1) * width + 2 * square
        norms = 2 * width // self.heads if self.normalizes else 0
        # Modulations of six, queries, keys and values, their projection, and a layer of four times the width.
        block = 6 * square + 3 * square + square + 8 * width**2 + 5 * width + norms
        last = 2 * square + 3 * square + norms
        output = 2 * square + (width + 1) * patches
        return inputs + conditions + (2 * self.blocks - 1) * block + last + output


# fmt: off
SAM_SIZES: Mapping[str, SamShape] = {
    "tiny": SamShape(64, 8, 2, 32, 2, (1,), window=3, channels=32, decoder_hidden=64),
    "base": SamShape(1024, 16, 12, 768, 12, (2, 5, 8, 11)),
    "large": SamShape(1024, 16, 24, 1024, 16, (5, 11, 17, 23)),
    "huge": SamShape(1024, 16, 32, 1280, 16, (7, 15, 23, 31)),
}
STABLE_DIFFUSION_3_SIZES: Mapping[str, DiffuserShape] = {
    "tiny": DiffuserShape(64, 2, 64, 2, 12, tokens=16, text_width=96, pooled_width=48),
    "medium": DiffuserShape(1024, 24, 1536, 24, 192),
    "large": DiffuserShape(1024, 38, 2432, 38, 192, normalizes=True),
}
# fmt: on


def sam_shape(size: str, image: int) -> SamShape:
    """Return the shape of a size for images of another side than its own, if not 0. Raises ValueError."""
    shape = SAM_SIZES[size]
    if image % shape.patch:
        raise ValueError(f"sam: image_size: must be a multiple of {shape.patch} with size: {size}. Received: {image}")
    return replace(shape, image=image or shape.image)


def diffuser_shape(size: str, image: int) -> DiffuserShape:
    """Return the shape of a size for images of another side than its own, if not 0. Raises ValueError."""
    shape = STABLE_DIFFUSION_3_SIZES[size]
    side = PIXELS * PATCH
    largest = side * shape.positions
    if image % side or image > largest:
        raise ValueError(
            f"stable_diffusion_3: image_size: must be a multiple of {side}, at most {largest} with size: {size}. "
            f"Received: {image}"
        )
    return replace(shape, image=image or shape.image)
