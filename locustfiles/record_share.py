"""`--records sample:RATE|none`: thins a finished run's records once its summary, made of all of them, stands."""

from __future__ import annotations

import zlib
from pathlib import Path

import msgspec

from exporters.record import decode_records, encode_record
from exporters.run import JOURNALS, REQUESTS
from exporters.run_store import replace_file


def thin(directory: Path, share: float) -> None:
    """Keeps that share of the requests that succeeded, always the same ones, and every other request.

    `share` 0 keeps none at all, 1 leaves everything. Journals go too: they are copies.
    """
    if share >= 1:
        return
    path = directory / REQUESTS
    if share <= 0:
        replace_file(path, b"")
    else:
        fresh = path.with_name(f"{REQUESTS}.thinning")
        with fresh.open("wb") as file:
            for record in decode_records(path):
                if record.outcome != "ok" or _chance(record.index) < share:
                    file.write(encode_record(record))
        fresh.replace(path)
    for journal in (directory / JOURNALS).glob("journal-*.jsonl"):
        journal.unlink()


def _chance(index: int) -> float:
    """A number in [0, 1) that belongs to the index."""
    return zlib.crc32(msgspec.msgpack.encode(index)) / 2**32
