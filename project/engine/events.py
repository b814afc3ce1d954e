"""TensorBoard's event files, written by the thread that logs and not by another one.

In a thread of its own, as TensorBoard has it, a full disk prints a traceback without the name of a
file, and the run learns of it later or never.
"""

import io
import os
import time
from contextlib import suppress

from tensorboard.summary.writer.record_writer import RecordWriter

from .output_internals import event_path, replace_event_writer

FLUSH_S = 5.0  # after which a row can be seen in TensorBoard


class EventWriter:
    """Appends records to an event file, all that have come since the last time or none.

    After an error it does nothing more, so that closing it does not raise another one.

    Args:
        records: TensorBoard's writer of the file, of which only the name is used.
        max_queue_size: Not used, as there is no queue.
        flush_secs: Not used, since a row is to be seen earlier.
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
        """Take a record; it is on the disk after some seconds."""
        if not self._failed:
            RecordWriter(self._pending).write(record)
        if time.monotonic() - self._flushed > FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write what there is.

        Raises:
            OSError: If it can't be written; the error names the file.
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
        self._flags &= ~os.O_CREAT  # a file that is gone is an error, and not a new one
        self._pending = io.BytesIO()

    def close(self) -> None:
        """Write what is left."""
        self.flush()


def write_in_this_thread() -> None:
    """Let all event files of this process be written so."""
    replace_event_writer(EventWriter)
