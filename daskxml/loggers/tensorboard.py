"""A run as TensorBoard's event files, which ``tensorboard --logdir DIR`` shows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daskxml.errors import ConfigError
from daskxml.loggers.protocol import RunFacts
from daskxml.loggers.scalars import scalars

FOLDER = "tensorboard"
_FLUSH_S = 10


class TensorBoardLogger:
    """Writes scalars against mega-batches, and the run file as a text.

    Parameters
    ----------
    place
        A directory for many runs, each in a folder of its own; ``""`` takes the run's directory.
    """

    def __init__(self, place: str = "") -> None:
        self.place = place
        self._writer: Any = None

    def begin(self, run: RunFacts) -> None:
        """Open an event file; TensorBoard joins the files of a run that goes on.

        Raises
        ------
        ConfigError
            If there is no place to write to.
        """
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if not self.place and run.out is None:
            raise ConfigError("--log tensorboard: say where, tensorboard:DIR, or give --out")
        folder = Path(self.place) / run.title if self.place else Path(str(run.out)) / FOLDER
        is_known = any(folder.glob("events.out.tfevents.*"))
        self._writer = EventFileWriter(str(folder), flush_secs=_FLUSH_S)
        if is_known:  # of a run that goes on, or that is told once more from its beginning
            self.rewind(len(run.history))
        if not (is_known and run.history):
            self._add(0, [_text("run file", run.config.to_toml())])
            for row in run.history:
                self.log(row)

    def log(self, row: Mapping[str, Any]) -> None:
        """Write a mega-batch."""
        found = scalars(row).items()
        self._add(row["megabatch"], [{"tag": n, "simple_value": value} for n, value in found])

    def rewind(self, megabatch: int) -> None:
        """Let TensorBoard forget what it has of later mega-batches."""
        from tensorboard.compat.proto import event_pb2

        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._event(megabatch + 1, session_log=start)

    def end(self, reason: str) -> None:
        """Close the file."""
        self._writer.close()

    def _add(self, step: int, values: list[dict[str, Any]]) -> None:
        from tensorboard.compat.proto import summary_pb2

        parts = [summary_pb2.Summary.Value(**value) for value in values]
        self._event(step, summary=summary_pb2.Summary(value=parts))

    def _event(self, step: int, **content: Any) -> None:
        from tensorboard.compat.proto import event_pb2

        self._writer.add_event(event_pb2.Event(wall_time=time.time(), step=step, **content))


def _text(name: str, text: str) -> dict[str, Any]:
    """Return a text as TensorBoard's text page shows it: as it is, which is four spaces in."""
    from tensorboard.compat.proto import tensor_pb2, types_pb2
    from tensorboard.plugins.text import metadata as text_plugin

    shown = "\n".join("    " + line for line in text.splitlines())
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[shown.encode()])
    metadata = text_plugin.create_summary_metadata(display_name=name, description="")
    return {"tag": f"{name}/text_summary", "metadata": metadata, "tensor": tensor}
