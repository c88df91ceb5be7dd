"""Log lines as JSON, one object a line, so that a cluster's log store can filter them. Set up by `cli`."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime


class JsonFormatter(logging.Formatter):
    """Formats time, level, logger and message, and a traceback if the operator itself failed."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(level: str, *, as_json: bool) -> None:
    """Send all log lines to stderr; those of libraries below WARNING only with level DEBUG."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if as_json else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level.upper() != "DEBUG":
        for library in ("kopf", "asyncio", "aiohttp.access"):  # the last one logs every probe
            logging.getLogger(library).setLevel(logging.WARNING)
