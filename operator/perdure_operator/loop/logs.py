"""Log lines as JSON, one object a line, so that a cluster's log store can filter them. Set up by `cli`."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime


class JsonFormatter(logging.Formatter):
    """time, level, logger, message, and a traceback only where the operator itself has failed."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
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
    """Send every logger's lines to stderr; the libraries' chatter only where debugging is asked for."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if as_json else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level.upper() != "DEBUG":
        for library in ("kopf", "asyncio", "aiohttp.access"):  # the last one tells of every probe
            logging.getLogger(library).setLevel(logging.WARNING)
