"""A real Prometheus of Debian's, on loopback."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import yaml

from e2e.harness.local_run import free_port
from e2e.prepare.debian import PROMETHEUS
from e2e.prepare.requirements import missing_for_prometheus


@dataclass(frozen=True)
class Prometheus:
    """A running one."""

    port: int

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each sample; none while it does not answer yet.

        Raises:
            HTTPError: it is no expression.

        """
        url = f"http://127.0.0.1:{self.port}/api/v1/query?query={quote(expression)}"
        try:
            with urlopen(url, timeout=60) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        except HTTPError as error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:  # it is about to be ready
                return []
            raise
        except (URLError, ConnectionError):
            return []
        return [(one["metric"], float(one["value"][1])) for one in found]

    def values(self, expression: str) -> list[float]:
        return [value for _, value in self.query(expression)]


@contextmanager
def started(folder: Path, scraped: Mapping[str, Any], *, rules: Sequence[Path] = ()) -> Iterator[Prometheus]:
    """One that scrapes so and evaluates these rules, every two seconds; the test is skipped where there is none."""
    lacks = missing_for_prometheus()
    if lacks:
        pytest.skip("; ".join(lacks))
    often = {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "2s"}
    config = {"global": often, "rule_files": [str(one) for one in rules], "scrape_configs": [dict(scraped)]}
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = free_port()
    argv = [str(PROMETHEUS.folder() / "prometheus"), f"--config.file={folder / 'prometheus.yaml'}"]
    argv += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        yield Prometheus(port)
    finally:
        process.kill()
        process.wait()
