"""Convert a folder of JPEG files into record files: TFRecord, or ArrayRecord.

    runner convert --dataset-path images --size-per-record 50MiB --output-path tfrecords

Images keep their bytes; their order is shuffled once, so that each file mixes the classes. Every file is verified after
writing. An interrupted conversion continues with the same command. docs/inputs.md#data-sets-of-images has more."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from keras_matrix.runner.cli.inputs import child

# The size and the folders of the converter that the option names come from.
SIZE_BYTES = 52_428_800
OUTPUT = {"tfrecord": "tfrecords", "array_record": "array_records"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    read_size = partial(child.size_in_bytes, "--size-per-record")
    parser.add_argument(
        "--dataset-path", type=Path, default=Path("images"), metavar="FOLDER", help="the data set; default: images"
    )
    parser.add_argument("--output-path", type=Path, metavar="FOLDER", help="default: tfrecords, or array_records")
    parser.add_argument(
        "--size-per-record",
        type=read_size,
        default=SIZE_BYTES,
        metavar="SIZE",
        help="most bytes of a file, such as 50MiB, 50MB or a number of bytes; default: 50MiB",
    )
    parser.add_argument(
        "--to", choices=tuple(OUTPUT), default="tfrecord", help="format of the files; default: tfrecord"
    )
    child.add_shared_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Check the flags and convert."""
    output = args.output_path or Path(OUTPUT[args.to])
    request = {
        "dataset_path": child.data_folder("--dataset-path", args.dataset_path),
        "output_path": child.data_folder("--output-path", output),
        "size_per_record_bytes": args.size_per_record,
        "to": args.to,
        **child.shared_request(args),
    }
    child.become("convert", request)
