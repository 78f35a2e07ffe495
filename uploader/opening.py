"""The warehouse that an address names, its outbox, and the results folder that fills it.

The libraries that a warehouse needs are imported only when it is opened.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.records.files import LINK
from keras_matrix.uploader.errors import BadInput
from keras_matrix.uploader.outbox import Outbox
from keras_matrix.uploader.warehouse import LOCAL, Options, Warehouse, folder_of, is_local, outbox_folder


@dataclass(frozen=True, slots=True)
class Target:
    """The address of a warehouse, and the results folder that it is filled from."""

    address: str
    results: Path
    options: Options = Options()

    def opened(self) -> AbstractContextManager[Warehouse]:
        """Open the warehouse until the block ends. Raises `UploadError`."""
        return closing(open_warehouse(self.address, self.results, self.options))

    def outbox(self) -> Outbox:
        """Return what was sent and waits to be sent there. Raises `BadInput` for an invalid address."""
        return Outbox(outbox_folder(self.address, self.results))


@dataclass(frozen=True, slots=True)
class PushChoices:
    """What a push does beyond sending new rows: retry rows that were set aside, compare the warehouse and repair it."""

    retry_dead: bool = False
    repair: bool = False


def require_results(results: Path) -> None:
    """Raise `BadInput` if the results folder is missing or is the folder of a run."""
    if not results.is_dir():
        raise BadInput(f"--results: must be a folder, got {results}; measure with: runner --matrix matrix.yaml")
    if (results / "run.json").exists():
        parent = results.resolve().parent if results.is_symlink() else results.parent
        raise BadInput(f"--results: {results} is a run; name the folder above it: --results {parent}")


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
