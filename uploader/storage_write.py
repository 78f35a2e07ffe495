"""Appending through the Storage Write API: exactly once by offsets, for runs that never stop.

A batch has a stream of its own, of type PENDING: its rows are appended at their offsets, so that a request that is sent
again after its answer was lost is refused as already there; when every row was taken the stream is finalised and
committed, and all its rows become visible at once. The stream's name stands beside the batch before anything is
appended: a later push asks whether that stream was committed. Streams that never are cost nothing and show nothing.

Overlapping batches of several uploaders are not compared here; the tables are those of `--append-only`, whose views
show each row once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from records.peaks import put
from records.store import StoreFailure
from uploader import reachable, refusals
from uploader.errors import BadInput, OutboxFailure, RowsRefused, Unreachable, WarehouseFailure
from uploader.outbox import Batch
from uploader.reachable import EMULATOR, EMULATOR_GRPC
from uploader.retry import Patience
from uploader.schema import Mode, Table, Type

if TYPE_CHECKING:
    from google.cloud import bigquery_storage_v1 as storage

REQUEST_BYTES = 4 << 20  # of the 10 MB that one request may have
TIMEOUT_S = 60.0
ALREADY_EXISTS = 6
FINALISED = "STREAM_FINALIZED"  # StorageError: what is appended to a stream that was finalised
EPOCH = date(1970, 1, 1)
# Field types of descriptor.proto: what the API reads each column from.
PROTO = {
    Type.STRING: 9,
    Type.JSON: 9,
    Type.INT64: 3,
    Type.FLOAT64: 1,
    Type.BOOL: 8,
    Type.DATE: 5,
    Type.TIMESTAMP: 3,
}
OPTIONAL, REPEATED = 1, 3


def append(table_id: str, batch: Batch, patience: Patience, credentials: Any = None) -> int:
    """Append a batch to a table and return its rows. Raises `WarehouseFailure`."""
    project, dataset, table = table_id.split(".")
    parent = f"projects/{project}/datasets/{dataset}/tables/{table}"
    client = _client(credentials)

    def once() -> int:
        try:
            return _append(client, parent, batch)
        except refusals.kinds() as error:
            raise refusals.explained(f"append to {table}", error) from None

    return patience.insist(once)


def _append(client: storage.BigQueryWriteClient, parent: str, batch: Batch) -> int:
    """Append what the batch's stream does not hold yet, and commit it."""
    name = _begun(client, batch)
    if name is None:
        from google.cloud.bigquery_storage_v1 import types

        asked = types.WriteStream(type_=types.WriteStream.Type.PENDING)
        name = client.create_write_stream(parent=parent, write_stream=asked, timeout=TIMEOUT_S).name
        _note(batch, name)
    elif _committed(client, name):
        return batch.contents().rows
    if _appended(client, name, batch):
        client.finalize_write_stream(name=name, timeout=TIMEOUT_S)
    done = client.batch_commit_write_streams({"parent": parent, "write_streams": [name]}, timeout=TIMEOUT_S)
    for error in done.stream_errors:
        raise Unreachable(f"commit of {batch.name}: {error.error_message}; push again later")
    return batch.contents().rows


def _appended(client: storage.BigQueryWriteClient, name: str, batch: Batch) -> bool:
    """Append a batch's rows; False where an earlier push did, and finalised the stream: it lacks the commit alone."""
    try:
        for answer in client.append_rows(_requests(name, batch), timeout=TIMEOUT_S):
            if FINALISED in answer.error.message.upper():
                return False
            _check(answer)
    except refusals.kinds() as error:
        if FINALISED in str(error).upper():
            return False
        raise
    return True


def _client(credentials: Any) -> storage.BigQueryWriteClient:
    from google.cloud import bigquery_storage_v1 as storage

    target = os.environ.get(EMULATOR_GRPC)
    if not target:
        if os.environ.get(EMULATOR):
            raise BadInput(f"--storage-write: {EMULATOR} names an emulator; set {EMULATOR_GRPC} to its HOST:PORT, too")
        return storage.BigQueryWriteClient(credentials=credentials)
    reachable.check_grpc(target)
    import grpc
    from google.cloud.bigquery_storage_v1.services.big_query_write.transports import BigQueryWriteGrpcTransport

    return storage.BigQueryWriteClient(transport=BigQueryWriteGrpcTransport(channel=grpc.insecure_channel(target)))


def _stream_file(batch: Batch) -> Path:
    return batch.path.with_suffix(".stream")


def _begun(client: storage.BigQueryWriteClient, batch: Batch) -> str | None:
    """Return the stream that an earlier push began; None where there is none, or it is gone."""
    from google.api_core.exceptions import NotFound

    try:
        name = _stream_file(batch).read_text(encoding="utf-8").strip()
        client.get_write_stream(name=name, timeout=TIMEOUT_S)
    except (FileNotFoundError, NotFound):
        return None
    return name


def _committed(client: storage.BigQueryWriteClient, name: str) -> bool:
    return bool(client.get_write_stream(name=name, timeout=TIMEOUT_S).commit_time)


def _note(batch: Batch, name: str) -> None:
    try:
        put(_stream_file(batch), name + "\n")
    except StoreFailure as error:
        raise OutboxFailure(str(error)) from error


def _requests(name: str, batch: Batch) -> Iterator[Any]:
    """Yield the requests that append a batch, each at its offset; the first says what a row looks like."""
    from google.cloud.bigquery_storage_v1 import types
    from google.protobuf import wrappers_pb2

    kind, descriptor = row_type(batch.table)
    offset = 0
    for rows in _chunks(kind, batch):
        data = types.AppendRowsRequest.ProtoData(rows=types.ProtoRows(serialized_rows=rows))
        if offset == 0:
            data.writer_schema = types.ProtoSchema(proto_descriptor=descriptor)
        yield types.AppendRowsRequest(write_stream=name, offset=wrappers_pb2.Int64Value(value=offset), proto_rows=data)
        offset += len(rows)


def _chunks(kind: Any, batch: Batch) -> Iterator[list[bytes]]:
    waiting: list[bytes] = []
    size = 0
    for values in batch.values():
        row = kind(**fitting(batch.table, values)).SerializeToString()
        if waiting and size + len(row) > REQUEST_BYTES:
            yield waiting
            waiting, size = [], 0
        waiting.append(row)
        size += len(row)
    yield waiting


def _check(answer: Any) -> None:
    """Raise what an answer refuses; rows that are already there were sent before."""
    if answer.row_errors:
        raise RowsRefused("; ".join(dict.fromkeys(one.message for one in answer.row_errors[:3])))
    if answer.error.code and answer.error.code != ALREADY_EXISTS:
        raise WarehouseFailure(f"append: {answer.error.message} (code {answer.error.code})")


def row_type(table: Table) -> tuple[Any, Any]:
    """Return a message class for a table's rows and its descriptor, made from the table's definition."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name=f"{table.name}.proto", package="rows", syntax="proto2")
    message = file.message_type.add(name=table.name)
    for number, column in enumerate(table.columns, 1):
        label = REPEATED if column.mode is Mode.REPEATED else OPTIONAL
        message.field.add(name=column.name, number=number, type=PROTO[column.type], label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"rows.{table.name}")), message


def fitting(table: Table, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's values as the API takes them: days and microseconds since 1970, JSON as text."""
    found = {}
    for column in table.columns:
        value = values.get(column.name)
        if value is None:
            continue
        if column.type is Type.DATE:
            value = (date.fromisoformat(value) - EPOCH).days
        elif column.type is Type.TIMESTAMP:
            value = _microseconds(value)
        elif column.type is Type.JSON:
            value = json.dumps(value, ensure_ascii=False)
        found[column.name] = value
    return found


def _microseconds(text: str) -> int:
    when = datetime.fromisoformat(text)
    when = when.replace(tzinfo=UTC) if when.tzinfo is None else when
    return round(when.timestamp() * 1e6)
