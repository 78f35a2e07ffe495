"""Opening the warehouse at an address; the libraries that it needs are imported only then."""

from __future__ import annotations

from pathlib import Path

from keras_matrix.records.files import LINK
from keras_matrix.uploader.errors import BadInput
from keras_matrix.uploader.warehouse import LOCAL, Options, Warehouse, folder_of, is_local


def open_warehouse(address: str, results: Path, options: Options | None = None) -> Warehouse:
    """Return the warehouse at an address. Raises `BadInput` for an invalid address."""
    if is_local(address):
        from keras_matrix.uploader.local.warehouse import LocalWarehouse

        if address == LOCAL and (results / "warehouse").is_symlink():
            raise BadInput(f"{results / 'warehouse'}: is {LINK}; name the folder: local:FOLDER")
        return LocalWarehouse(folder_of(address) or results / "warehouse")
    from keras_matrix.uploader.bigquery.client import connect

    project, _, dataset = address.removeprefix("bigquery://").partition(".")
    return connect(project, dataset, options or Options())
