"""Draw a replayed step under the measured one: the picture of docs/whatif.md. Nothing here is a test.

ci/netns 2 --rate 200mbit -- lab/run replay_picture    trace two PyTorch workers whose layers sleep; replay the trace

Without `ci/netns` the workers use the loopback interface. --to names the picture, by default docs/images/replay.svg.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path

from keras_matrix.records.fc import network
from keras_matrix.records.fc.spec import LOCAL
from keras_matrix.runner.cli.main import main as runner

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "replay.svg"
# Twelve layers with 32 MB of gradients, which take 6 ms forward and 14 ms backward each.
MATRIX = """\
version: 1
defaults: {{repeats: 1, epochs: 2, steps_per_epoch: 3, trace: {{steps: 4}}}}
backends: [torch]
cells:
  - {{workload: fc, mode: fc_data, workers: 2, level: 11, weight_size: 872, batch_size: 4, network: {rate},
     forward_sleep_ms: 6, backward_sleep_ms: 14, bucket_cap_mb: 8}}
"""


def main() -> int:
    """Measure and trace the cell, and draw its replay."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=PICTURE, metavar="FILE")
    target = parser.parse_args().to.resolve()
    shaped_network = network.parse(os.environ.get(network.VARIABLE, ""))
    folder = Path(tempfile.mkdtemp(prefix="replay-picture-"))
    try:
        (folder / "matrix.yaml").write_text(
            MATRIX.format(rate=shaped_network.rate if shaped_network else LOCAL), encoding="utf-8"
        )
        results = ["--results", str(folder / "results")]
        code = runner(["--matrix", str(folder / "matrix.yaml"), *results])
        return code or runner(["replay", "torch:fc", *results, "--picture", str(target)])
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    raise SystemExit(main())
