"""The fake service with delayed statements, so that those of concurrent pushes conflict."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator

from tests.uploader.service.service import Service

DELAY_S = 1.0  # up to 0.1 s, no MERGE statements of 22 pushes overlapped; up to 1 s, those of most groups did


class Unhurried(Service):
    """Delays a statement or transaction after its snapshot while two or more pushes run."""

    running = 0
    counting = threading.Lock()

    @contextlib.contextmanager
    def pushing(self) -> Iterator[None]:
        """Count a push while it runs."""
        with self.counting:
            self.running += 1
        try:
            yield
        finally:
            with self.counting:
                self.running -= 1

    def hold(self) -> None:
        """Wait between a snapshot and the first change."""
        if self.running > 1:
            time.sleep(random.uniform(0, DELAY_S))
        super().hold()
