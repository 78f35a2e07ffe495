"""Shapes of image models: parameter counts against the published checkpoints, and image sizes."""

from __future__ import annotations

import re

import pytest

from keras_matrix.models.image_models.shapes import (
    SAM_SIZES,
    STABLE_DIFFUSION_3_SIZES,
    diffuser_shape,
    sam_shape,
)

# CLIP L and CLIP G with their projections, and the VAE, which KerasHub counts with the transformer.
ENCODERS = 123_650_304 + 694_659_840 + 83_819_683


@pytest.mark.parametrize(("size", "parameters"), [("base", 93_735_728), ("large", 312_343_088), ("huge", 641_090_864)])
def test_segment_anything_has_the_published_number_of_parameters(size: str, parameters: int) -> None:
    """As KerasHub states, which exchanges the last two. Mutation: `encoder_parameters` leaves out the neck."""
    assert SAM_SIZES[size].parameters == parameters


@pytest.mark.parametrize(("size", "parameters"), [("medium", 2_987_080_931), ("large", 9_048_410_595)])
def test_stable_diffusion_has_the_published_number_of_parameters(size: str, parameters: int) -> None:
    """As KerasHub states for all four models. Mutation: every block has the projection that the last one lacks."""
    assert STABLE_DIFFUSION_3_SIZES[size].parameters + ENCODERS == parameters


def test_smaller_images_have_fewer_positions_and_the_same_blocks() -> None:
    base, small = SAM_SIZES["base"], sam_shape("base", 512)
    assert sam_shape("base", 0) == base
    assert (small.grid, small.parameters < base.parameters) == (32, True)
    assert diffuser_shape("medium", 512).parameters == STABLE_DIFFUSION_3_SIZES["medium"].parameters


@pytest.mark.parametrize("image", [8, 1000, 16 * 193])
def test_image_size_that_the_patches_or_the_table_of_positions_do_not_allow_is_refused(image: int) -> None:
    """Mutation: `diffuser_shape` compares the size with nothing."""
    rule = f"image_size: must be a multiple of 16, at most 3072 with size: medium. Received: {image}"
    with pytest.raises(ValueError, match=re.escape(rule)):
        diffuser_shape("medium", image)


def test_image_size_that_is_no_multiple_of_a_patch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"image_size: must be a multiple of 16 with size: base\. Received: 1000"):
        sam_shape("base", 1000)
