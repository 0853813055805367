"""What single response headers mean. Names are in lower case."""

from __future__ import annotations

from email.utils import parsedate_to_datetime


def media_type(headers: dict[str, str]) -> str:
    """json, html, event-stream, or whatever else the content type's last word is; empty where there is none."""
    essence = headers.get("content-type", "").partition(";")[0].strip().lower()
    return essence.rpartition("/")[2].rpartition("+")[2]


def retry_after_s(headers: dict[str, str]) -> float | None:
    """Seconds of `Retry-After`; a date counts from the reply's own `Date`, so that no clock is needed."""
    value = headers.get("retry-after", "").strip()
    if not value:
        return None
    if value.isascii() and value.replace(".", "", 1).isdigit():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - parsedate_to_datetime(headers["date"])).total_seconds())
    except (ValueError, KeyError, TypeError):
        return None
