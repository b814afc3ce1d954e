"""TensorBoard's event files, written by the thread that logs.

If the disk is full, TensorBoard's own thread prints a traceback without a file name, and the run
is told of it late or never.
"""

import io
import os
import time
from contextlib import suppress

from tensorboard.summary.writer.record_writer import RecordWriter

from .output_internals import event_path, replace_event_writer

FLUSH_S = 5.0  # seconds until a row is on disk, so that TensorBoard can show it


class EventWriter:
    """Appends the new records to an event file, either all of them or none.

    After an error it writes nothing more, so that closing it does not raise a second error.

    Args:
        records: TensorBoard's writer of the file, of which only the file name is used.
        max_queue_size: Number of records in a queue; ignored, as there is no queue.
        flush_secs: Seconds between two writes; ignored in favour of FLUSH_S.
    """

    def __init__(
        self, records: RecordWriter, max_queue_size: int = 0, flush_secs: float = 0.0
    ) -> None:
        self._path = event_path(records)
        self._pending = io.BytesIO()
        self._flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._flushed = time.monotonic()
        self._failed = False

    def write(self, record: bytes) -> None:
        """Accept a record and write it to disk within some seconds."""
        if not self._failed:
            RecordWriter(self._pending).write(record)
        if time.monotonic() - self._flushed > FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write all records that are not on disk yet.

        Raises:
            OSError: If the file can't be written; the error names it.
        """
        self._flushed = time.monotonic()
        if self._failed or not (data := self._pending.getvalue()):
            return
        size = 0
        try:
            with open(self._path, "ab", opener=lambda name, _: os.open(name, self._flags)) as file:
                size = file.tell()
                file.write(data)
        except OSError as error:
            self._failed = True
            with suppress(OSError):  # the folder may be gone
                os.truncate(self._path, size)
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        self._flags &= ~os.O_CREAT  # a file that has disappeared is an error
        self._pending = io.BytesIO()

    def close(self) -> None:
        """Write all remaining records."""
        self.flush()


def write_in_this_thread() -> None:
    """Write all event files of this process in the thread that logs."""
    replace_event_writer(EventWriter)
