"""Image models of KerasHub: Segment Anything and the diffusion model of Stable Diffusion 3, with random weights.

    shapes.py     the sizes of both architectures and their parameter counts, by formula
    building.py   builds the Keras models and their samples

Both are plain Keras models, so that fit and predict do the same work on every backend: KerasHub's tasks refuse `fit`.
Nothing is downloaded, and no tokenizer is used. docs/workloads.md#image-models-of-kerashub says what a step is.
"""

from __future__ import annotations

from keras_matrix.models.image_models.shapes import PARTS, SAM_SIZES, STABLE_DIFFUSION_3_SIZES
from keras_matrix.models.workload import Built, Param, Request, workload


@workload(
    batch_size=2,
    samples=16,
    params=(
        Param("size", "tiny", f"{', '.join(SAM_SIZES)}.", choices=tuple(SAM_SIZES)),
        Param("image_size", 0, "Side of the images in pixels, a multiple of the patch; 0: as the size.", 0, 1 << 13),
        Param("part", "all", "What is called and trained: all, or the image encoder alone.", choices=PARTS),
    ),
)
def sam(request: Request) -> Built:
    """Segment Anything of KerasHub: windowed vision transformer, mask decoder; random images, two points each."""
    from keras_matrix.models.image_models import building

    return building.sam(request)


@workload(
    batch_size=4,
    samples=32,
    params=(
        Param("size", "tiny", f"{', '.join(STABLE_DIFFUSION_3_SIZES)}.", choices=tuple(STABLE_DIFFUSION_3_SIZES)),
        Param("image_size", 0, "Side of the images in pixels, a multiple of 16; 0: as the size.", 0, 1 << 13),
    ),
)
def stable_diffusion_3(request: Request) -> Built:
    """Diffusion transformer of Stable Diffusion 3 in KerasHub: the velocity of random latents at random times."""
    from keras_matrix.models.image_models import building

    return building.stable_diffusion_3(request)
