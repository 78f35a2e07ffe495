"""What is wrong with files that do not belong to different ranks of one run."""

from __future__ import annotations

from pathlib import Path

from keras_matrix.analysis.whatif.graph import GraphError


def same_rank(rank: int, first: Path, second: Path) -> GraphError:
    """Return the error of two files of one rank: which they are, and how to choose between them."""
    return GraphError(
        f"{first} and {second} are both of rank {rank}; name one file for each rank, with only one of these two, in "
        "place of a folder"
    )
