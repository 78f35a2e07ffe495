"""The REST API of the fake service: only the documented methods that the uploader and its tests use.

Source: cloud.google.com/bigquery/docs/reference/rest. A method that is missing answers 501 and names itself.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.uploader.service import definitions, problems
from tests.uploader.service.catalog import of_resource
from tests.uploader.service.engine import execute
from tests.uploader.service.jobs import page_of
from tests.uploader.service.service import Service

LONGEST_WAIT_S = 10.0
DATASETS = r"/projects/(?P<project>[^/]+)/datasets"
DATASET = rf"{DATASETS}/(?P<dataset>[^/]+)"
TABLE = rf"{DATASET}/tables/(?P<table>[^/]+)"
JOBS = r"/projects/(?P<project>[^/]+)/jobs"
QUERIES = r"/projects/(?P<project>[^/]+)/queries"


@dataclass(frozen=True)
class Request:
    """One request: account, method, path and body."""

    account: str
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    origin: str = ""

    def content(self) -> dict[str, Any]:
        """Return the body's JSON. Raises `Refusal`."""
        try:
            found = json.loads(self.body or b"{}")
        except ValueError:
            raise problems.invalid("Parse Error") from None
        if not isinstance(found, dict):
            raise problems.invalid("Parse Error")
        return found


@dataclass(frozen=True)
class Response:
    """One response."""

    body: Mapping[str, Any] | None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Route = Callable[["Rest", Request, dict[str, str]], Response]


class Rest:
    """Handles requests with a service."""

    def __init__(self, service: Service) -> None:
        """Store the service."""
        self.service = service
        self._uploads: dict[str, tuple[Request, bytes]] = {}

    def answer(self, request: Request) -> Response:
        """Handle one request; a `Refusal` becomes an error response."""
        try:
            if request.path == "/":
                return Response({})
            for method, pattern, route in ROUTES:
                found = pattern.fullmatch(request.path)
                if found is not None and method == request.method:
                    inserts = route in (_insert_job, _query, _upload)
                    self.service.limits.count_request(request.account, job=inserts)
                    self.service.expire()
                    return route(self, request, found.groupdict())
            raise problems.unmodelled(f"{request.method} {request.path}")
        except problems.Refusal as refusal:
            return Response(refusal.body(), refusal.status)

    # Uploads

    def start_upload(self, request: Request) -> Response:
        """Start a resumable upload."""
        name = uuid.uuid4().hex
        self._uploads[name] = (request, b"")
        target = f"{request.origin}/upload/bigquery/v2{request.path.removeprefix('/upload')}"
        return Response({}, headers={"Location": f"{target}?uploadType=resumable&upload_id={name}"})

    def continue_upload(self, request: Request, parts: dict[str, str]) -> Response:
        """Store a part of a resumable upload; the last one starts the job."""
        first, content = self._uploads[request.query["upload_id"]]
        content += request.body
        total = request.headers.get("content-range", "").rpartition("/")[2]
        if total != "*" and len(content) >= int(total or len(content)):
            del self._uploads[request.query["upload_id"]]
            job = self.service.insert(request.account, parts["project"], first.content(), content)
            return Response(job.resource())
        self._uploads[request.query["upload_id"]] = (first, content)
        headers = {"Range": f"bytes=0-{len(content) - 1}"} if content else {}
        return Response(None, 308, headers)


# Datasets


def _get_dataset(rest: Rest, request: Request, parts: dict[str, str]) -> Response:
    found = rest.service.catalog.dataset(parts["project"], parts["dataset"])
    rest.service.limits.require(request.account, "datasets.get", "Dataset", found.id)
    return Response(found.resource())


def _insert_dataset(rest: Rest, request: Request, parts: dict[str, str]) -> Response:
    rest.service.limits.require(request.account, "datasets.create", "Project", parts["project"])
    return Response(rest.service.add_dataset(request.content(), parts["project"]).resource())


def _delete_dataset(rest: Rest, request: Request, parts: dict[str, str]) -> Response:
    catalog = rest.service.catalog
    found = catalog.dataset(parts["project"], parts["dataset"])
    rest.service.limits.require(request.account, "datasets.delete", "Dataset", found.id)
    tables = catalog.of_dataset(found.project, found.name)
    if tables and request.query.get("deleteContents", "").lower() != "true":
        raise problems.Refusal("resourceInUse", f"Dataset {found.id} is still in use")
    for table in tables:
        definitions.remove(rest.service, table)
    del catalog.datasets[found.project, found.name]
    return Response(None, 204)


def _list_datasets(rest: Rest, request: Request, parts: dict[str, str]) -> Response:
    found = [one.resource() for one in rest.service.catalog.datasets.values() if one.project == parts["project"]]
    return Response({"kind": "bigquery#datasetList", "datasets": found})


# Tables


def _resource(rest: Rest, parts: dict[str, str]) -> Response:
    table = rest.service.catalog.table(parts["project"], parts["dataset"], parts["table"])
    location = rest.service.catalog.dataset(parts["project"], parts["dataset"]).location
    return Response(table.resource(location, rest.service.rows(table)))


def _get_table(rest: Rest, request: Request, parts: dict[str, str]) -> Response:
    rest.service.limits.require(request.account, "tables.get", "Table", _name(parts))
    return _resource(rest, parts)


def _insert_table(rest: Rest, request: Request, parts: dict[str, str]) -> Response:
    catalog, content = rest.service.catalog, request.content()
    dataset = catalog.dataset(parts["project"], parts["dataset"])
    made = of_resource(content, dataset, rest.service.now_ms())
    rest.service.limits.require(request.account, "tables.create", "Dataset", dataset.id)
    if catalog.find(made.project, made.dataset, made.name) is not None:
        raise problems.duplicate("Table", made.id)
    definitions.put(rest.service, made)
    return _resource(rest, parts | {"table": made.name})


def _patch_table(rest: Rest, request: Request, parts: dict[str, str]) -> Response:
    rest.service.limits.require(request.account, "tables.update", "Table", _name(parts))
    table = rest.service.catalog.table(parts["project"], parts["dataset"], parts["table"])
    content = request.content()
    if "schema" in content:
        table = definitions.change_fields(rest.service, table, content["schema"]["fields"])
    changed: dict[str, Any] = {}
    if "expirationTime" in content:
        given = content["expirationTime"]
        changed["expires_ms"] = None if given is None else int(given)
    for name in ("description", "labels"):
        if name in content:
            changed[name] = content[name]
    rest.service.catalog.put(replace(table, **changed))
    return _resource(rest, parts)


def _delete_table(rest: Rest, request: Request, parts: dict[str, str]) -> Response:
    rest.service.limits.require(request.account, "tables.delete", "Table", _name(parts))
    found = rest.service.catalog.table(parts["project"], parts["dataset"], parts["table"])
    definitions.remove(rest.service, found)
    return Response(None, 204)


def _list_tables(rest: Rest, request: Request, parts: dict[str, str]) -> Response:
    dataset = rest.service.catalog.dataset(parts["project"], parts["dataset"])
    rest.service.limits.require(request.account, "tables.list", "Dataset", dataset.id)
    found = [
        one.resource(dataset.location, 0) for one in rest.service.catalog.of_dataset(dataset.project, dataset.name)
    ]
    names = ("id", "kind", "tableReference", "type", "creationTime", "expirationTime", "timePartitioning", "labels")
    tables = [{name: one[name] for name in names if name in one} for one in found]
    return Response({"kind": "bigquery#tableList", "tables": tables, "totalItems": len(tables)})


def _list_rows(rest: Rest, request: Request, parts: dict[str, str]) -> Response:
    table = rest.service.catalog.table(parts["project"], parts["dataset"], parts["table"])
    rest.service.limits.require(request.account, "tables.getData", "Table", table.id)
    with rest.service.engine.autocommit() as work:
        rows = execute(work, f"SELECT * FROM {table.sql}").fetchall()
    return Response({"kind": "bigquery#tableDataList"} | page_of(rows, list(table.fields), request.query))


def _insert_rows(rest: Rest, request: Request, parts: dict[str, str]) -> Response:
    rest.service.limits.require_billing("Streaming insert is")
    raise problems.unmodelled("tabledata.insertAll")


def _name(parts: dict[str, str]) -> str:
    return f"{parts['project']}:{parts['dataset']}.{parts['table']}"


# Jobs


def _insert_job(rest: Rest, request: Request, parts: dict[str, str]) -> Response:
    return Response(rest.service.insert(request.account, parts["project"], request.content()).resource())


def _upload(rest: Rest, request: Request, parts: dict[str, str]) -> Response:
    if request.query.get("uploadType") == "resumable":
        return rest.start_upload(request)
    boundary = request.headers["content-type"].partition("boundary=")[2].strip('"').encode()
    parts_found = request.body.split(b"--" + boundary)
    if len(parts_found) != 4:  # the client was killed while it sent
        raise problems.invalid("The request body is incomplete")
    _, metadata, content, _ = parts_found
    given = json.loads(metadata.partition(b"\r\n\r\n")[2])
    lines = content.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")
    return Response(rest.service.insert(request.account, parts["project"], given, lines).resource())


def _continue(rest: Rest, request: Request, parts: dict[str, str]) -> Response:
    return rest.continue_upload(request, parts)


def _get_job(rest: Rest, request: Request, parts: dict[str, str]) -> Response:
    found = rest.service.job(request.account, parts["project"], parts["job"], request.query.get("location"))
    return Response(found.resource())


def _list_jobs(rest: Rest, request: Request, parts: dict[str, str]) -> Response:
    everyone = rest.service.limits.may(request.account, "jobs.listAll")
    found = [
        job.resource()
        for key, job in reversed(rest.service.jobs.items())
        if key.project == parts["project"] and (everyone or job.account == request.account)
    ]
    return Response({"kind": "bigquery#jobList", "jobs": found})


def _results(rest: Rest, request: Request, parts: dict[str, str]) -> Response:
    found = rest.service.job(request.account, parts["project"], parts["job"], request.query.get("location"))
    found.done.wait(min(float(request.query.get("timeoutMs") or 10_000) / 1000, LONGEST_WAIT_S))
    return Response(found.results(request.query))


def _query(rest: Rest, request: Request, parts: dict[str, str]) -> Response:
    given = request.content()
    config = {"query": {name: value for name, value in given.items() if name not in OF_REQUEST}}
    config |= {name: given[name] for name in ("dryRun", "labels") if name in given}
    reference = {"location": given["location"]} if "location" in given else {}
    job = rest.service.insert(request.account, parts["project"], {"configuration": config, "jobReference": reference})
    job.done.wait(min(float(given.get("timeoutMs") or 10_000) / 1000, LONGEST_WAIT_S))
    options = {f"formatOptions.{name}": str(value) for name, value in given.get("formatOptions", {}).items()}
    options |= {"maxResults": str(given["maxResults"])} if "maxResults" in given else {}
    return Response(job.results(options) | {"kind": "bigquery#queryResponse"})


OF_REQUEST = ("dryRun", "labels", "location", "timeoutMs", "formatOptions", "maxResults", "requestId", "kind")
UPLOAD = rf"/upload{JOBS}"
ROUTES: list[tuple[str, re.Pattern[str], Route]] = [
    (method, re.compile(pattern), route)
    for method, pattern, route in (
        ("GET", DATASETS, _list_datasets),
        ("POST", DATASETS, _insert_dataset),
        ("GET", DATASET, _get_dataset),
        ("DELETE", DATASET, _delete_dataset),
        ("GET", f"{DATASET}/tables", _list_tables),
        ("POST", f"{DATASET}/tables", _insert_table),
        ("GET", TABLE, _get_table),
        ("PATCH", TABLE, _patch_table),
        ("DELETE", TABLE, _delete_table),
        ("GET", f"{TABLE}/data", _list_rows),
        ("POST", f"{TABLE}/insertAll", _insert_rows),
        ("GET", JOBS, _list_jobs),
        ("POST", JOBS, _insert_job),
        ("GET", f"{JOBS}/(?P<job>[^/]+)", _get_job),
        ("POST", QUERIES, _query),
        ("GET", f"{QUERIES}/(?P<job>[^/]+)", _results),
        ("POST", UPLOAD, _upload),
        ("PUT", UPLOAD, _continue),
    )
]
