"""A timeline as one HTML page: the picture, and below it what happened and why, in words. Pure.

The page asks for nothing: no script, no font, no address; its policy forbids a browser to. Texts come from users and
nodes: each is escaped, and has no controls. The picture has a text of its own, and all of it is in the table too.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from perdure_operator.cli.kubectl.page import clock, duration, printable
from perdure_operator.cli.kubectl.timeline import EVENTS_END, EntryKind, Timeline, TimelineEntry, in_words
from perdure_operator.cli.kubectl.timeline_picture import DARK, LIGHT, palette, picture

QUIET: Final = 60
"""Seconds without an entry that are said before the next one."""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE: Final = (
    f":root{{color-scheme:light dark;{palette(LIGHT)}}}"
    f"@media(prefers-color-scheme:dark){{:root{{{palette(DARK)}}}}}"
    "body{margin:0 auto;max-width:1140px;padding:24px;background:var(--ground);color:var(--ink);"
    "font:15px/1.5 system-ui,sans-serif}"
    "h1{font-size:24px;margin:0 0 4px}h2{font-size:18px;margin:28px 0 8px}p{margin:4px 0}"
    "p.note,td.quiet,figcaption{color:var(--muted);font-size:13px}"
    "figure{margin:20px 0;overflow-x:auto;border:1px solid var(--line);border-radius:8px;padding:8px}"
    "figure:focus-visible{outline:2px solid var(--in-place)}figcaption{padding:4px 12px}"
    "table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:6px 12px 6px 0}"
    "tr{border-top:1px solid var(--line)}thead tr{border-top:0}td.quiet{padding:2px 0}"
    "th{font-weight:600;white-space:nowrap}tbody th{max-width:18em;overflow-wrap:break-word;white-space:normal}"
    "time{white-space:nowrap;font-variant-numeric:tabular-nums}td:last-child{overflow-wrap:anywhere;width:100%}"
    "tr.event th{font-weight:400}strong.warning{color:var(--loss)}"
    "@media print{figure{overflow:visible}svg{max-width:100%;height:auto}}"
)
_HOW_TO_READ: Final = (
    "A bar begins when its run became the current one, and ends when the next one did. Longer times are drawn shorter "
    "than they were; the lowest line says how long they were."
)


def html_page(found: Timeline, now: datetime) -> str:
    """The timeline as an HTML document; `now` is when it was read."""
    name, drawn = _text(f"{found.namespace}/{found.name}"), picture(found, now)
    figure = f"{drawn}<figcaption>{_text(_HOW_TO_READ)}</figcaption>"
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("Time", "What", "Details"))
    story = [
        f'<figure tabindex="0" aria-label="The picture">\n{figure}\n</figure>',
        "<h2>What happened</h2>",
        f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>",
        *_rows(found.entries, now),
        "</tbody>\n</table>",
    ]
    nothing = ["<p>Nothing has happened yet, as far as status and events tell.</p>"]
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{html.escape(_POLICY)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{name}: timeline</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>",
            f"<h1>{name}</h1>\n<p>{_text(in_words(found.totals))}</p>",
            f'<p class="note">Read at {_time(now)}. All times are UTC. {_text(EVENTS_END)}</p>',
            *(story if drawn else nothing),
            "</main>\n</body>\n</html>\n",
        )
    )


def _rows(entries: tuple[TimelineEntry, ...], now: datetime) -> Iterator[str]:
    yield from (_row(one, now) for one in entries[:1])
    for before, one in pairwise(entries):
        quiet = (one.time - before.time).total_seconds()
        if quiet >= QUIET:
            yield f'<tr><td></td><td class="quiet" colspan="2">{duration(quiet)} later</td></tr>'
        yield _row(one, now)


def _row(one: TimelineEntry, now: datetime) -> str:
    warning = '<strong class="warning">Warning:</strong> ' if one.warning else ""
    kind = "event" if one.kind is EntryKind.EVENT else "state"
    time = f'<time datetime="{_text(one.time.isoformat())}">{_text(clock(one.time, now))}</time>'
    return (
        f'<tr class="{kind}"><td>{time}</td><th scope="row">{_text(one.what)}</th>'
        f"<td>{warning}{_text(one.details)}</td></tr>"
    )


def _time(now: datetime) -> str:
    return f'<time datetime="{_text(now.isoformat())}">{now.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}</time>'


def _text(words: str) -> str:
    return html.escape(printable(words))
