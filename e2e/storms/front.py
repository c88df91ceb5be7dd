"""In front of an S3 server: `python front.py ADDRESS PORT UPSTREAM_PORT FILE` hands on, or does what the file says.

ok        hands everything on
500, 403  answers each request with that, as S3 does
slow      hands on, a second later for each request and 256 KiB a second
frozen    neither reads nor answers
cut       ends each connection: no request comes through, and no answer
mute      hands on, and ends the connection where the answer should come

It is run beside the control plane, and imports nothing but Python.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

LOOK_SECONDS = 0.05
PIECE = 64 << 10
SLOW_SECONDS = 1.0
SLOW_PIECE_SECONDS = 0.25
GO_ON = b"HTTP/1.1 100"  # a patient client sends nothing before it
ERRORS = {
    "500": ("500 Internal Server Error", "InternalError", "We encountered an internal error. Please try again."),
    "403": ("403 Forbidden", "AccessDenied", "Access Denied."),
}


class Front:
    """The file is read again for each request, and each piece of one."""

    def __init__(self, address: str, upstream: int, manner: Path) -> None:
        self._address, self._upstream, self._manner = address, upstream, manner

    @property
    def manner(self) -> str:
        return self._manner.read_text().strip()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        upstream, onward = await asyncio.open_connection(self._address, self._upstream)
        back = asyncio.create_task(self._back(upstream, writer))
        try:
            while await self._request(reader, onward, writer):
                pass
            await asyncio.wait([back], timeout=1)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            back.cancel()
            onward.close()
            writer.close()

    async def _request(
        self, reader: asyncio.StreamReader, onward: asyncio.StreamWriter, writer: asyncio.StreamWriter
    ) -> bool:
        """Pass one request on; False if the connection is over."""
        head = await reader.readuntil(b"\r\n\r\n")
        await self._thaws()
        if self.manner == "cut":
            raise ConnectionAbortedError
        if error := ERRORS.get(self.manner):
            if b"100-continue" not in head.lower():  # an impatient client sends everything first, and then listens
                await reader.readexactly(_length(head))
            writer.write(_answer(head, *error))
            await writer.drain()
            return False
        if self.manner == "slow":
            await asyncio.sleep(SLOW_SECONDS)
        onward.write(head)
        left = _length(head)
        while left:
            piece = await reader.read(min(left, PIECE))
            if not piece:
                return False
            left -= len(piece)
            await self._paced()
            onward.write(piece)
            await onward.drain()
        return True

    async def _back(self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await upstream.read(PIECE):
            await self._paced()
            if self.manner == "cut" or (self.manner == "mute" and not piece.startswith(GO_ON)):
                break
            writer.write(piece)
            await writer.drain()
        writer.close()

    async def _paced(self) -> None:
        await self._thaws()
        if self.manner == "slow":
            await asyncio.sleep(SLOW_PIECE_SECONDS)

    async def _thaws(self) -> None:
        while self.manner == "frozen":  # noqa: ASYNC110 - another process writes the file
            await asyncio.sleep(LOOK_SECONDS)


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


def _answer(head: bytes, status: str, code: str, message: str) -> bytes:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    told = [f"HTTP/1.1 {status}", "Content-Type: application/xml", f"Content-Length: {len(body)}", "Connection: close"]
    return "\r\n".join([*told, "", ""]).encode() + (b"" if head.startswith(b"HEAD ") else body)


async def main(address: str, port: str, upstream: str, manner: str) -> None:
    """Until it is killed."""
    front = Front(address, int(upstream), Path(manner))
    server = await asyncio.start_server(front.serve, address, int(port))
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
