"""Where new pods report: by the newest certificates of a mounted Secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.errors import UserError
from perdure.wire.report import CHANNEL_BYTES, Channel, read_channel
from perdure_operator.serving.reports.channel import CA_FILE, Channels

URL = "https://perdure-operator-reports.perdure-system.svc:8444"


def test_the_channel_follows_the_file(tmp_path: Path) -> None:
    (tmp_path / CA_FILE).write_text("first")
    channels = Channels(URL, tmp_path)
    assert read_channel(channels.current()) == Channel(URL, "first")
    (tmp_path / CA_FILE).write_text("first and second")
    assert read_channel(channels.current()).ca == "first and second"


@pytest.mark.parametrize("text", [None, "x" * CHANNEL_BYTES, "\udcff"], ids=["no file", "too long", "no text"])
def test_a_file_that_cannot_be_used_leaves_the_channel_before_and_a_line(
    text: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / CA_FILE
    file.write_text("first")
    channels = Channels(URL, tmp_path)
    file.unlink()
    if text is not None:
        file.write_bytes(text.encode(errors="surrogateescape"))
    assert read_channel(channels.current()).ca == "first"
    assert str(file) in caplog.text


@pytest.mark.parametrize("url", [URL, "http://plain:8444"])
def test_a_start_without_a_channel_is_refused_in_one_line(url: str, tmp_path: Path) -> None:
    if url != URL:
        (tmp_path / CA_FILE).write_text("first")
    with pytest.raises(UserError, match="members cannot learn where to report"):
        Channels(url, tmp_path)
