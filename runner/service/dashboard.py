"""The source of the live dashboard's pages."""

from __future__ import annotations

from functools import partial

from keras_matrix.dashboards.live.app.application import statements
from keras_matrix.dashboards.live.app.needed import needed
from keras_matrix.dashboards.live.app.refreshed import RefreshClocks, Refreshed, RefreshPolicy
from keras_matrix.dashboards.live.app.source import EndedRuns, Live, PageSource, UnreadFiles
from keras_matrix.dashboards.live.page import empty_notice
from keras_matrix.dashboards.live.questions import EARLIEST_DAY
from keras_matrix.dashboards.live.session import SessionReader
from keras_matrix.runner.measure.scheduler import utc_now
from keras_matrix.runner.service import upload
from keras_matrix.uploader import opening
from keras_matrix.uploader.warehouse import LOCAL, is_local


def source_of(target: opening.Target, since: str | None, refresh_min: float) -> PageSource:
    """Return the source of the pages: the local warehouse itself, or snapshots of a dataset."""
    warehouse = opening.open_warehouse(target.address, target.results, target.options)
    if is_local(target.address):
        notice_if_empty, session = (
            partial(empty_notice, target.address, target.results),
            SessionReader(target.results, utc_now),
        )
        update = EndedRuns(target.results, partial(upload.send, upload.Upload(LOCAL), target.results))
        update()
        unread = UnreadFiles(target.results)
        return Live(
            warehouse, since or EARLIEST_DAY, notice_if_empty, session=session.current, update=update, unread=unread
        )
    return Refreshed(warehouse, needed(statements()), RefreshPolicy(60 * refresh_min, since), RefreshClocks(utc_now))
