"""The error of a notification that could not be sent."""

from __future__ import annotations

from keras_matrix.runner.errors import InfrastructureError


class NotifyError(InfrastructureError):
    """A notification could not be sent; the next run sends it."""

    def __str__(self) -> str:
        return f"{self.args[0]}; nothing is lost: the next run sends what is due"
