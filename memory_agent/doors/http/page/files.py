"""Serves the page's static files. Each request reads its file from disk and needs no key. Only names that match `_NAME`
are served, so no request reaches a file outside this folder.
"""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

from memory_agent.doors.http.problems import Answered

FOLDER = Path(__file__).parent
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""Nothing is loaded from elsewhere, inline scripts and styles are off, and a stored copy is revalidated before use."""
_INDEX = "index.html"
_NAME = re.compile(r"(?:vendor/)?[a-z0-9_-]{1,64}\.(html|js|css|svg)", re.ASCII)  # short enough for any file system
_MEDIA_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


def answer_file(name: str, if_none_match: str = "") -> Answered | None:
    """Return the response with a file (for an empty name, `index.html`), or None if there is no such file.

    The status is 304, without the content, if the request's `If-None-Match` contains the file's ETag.

    >>> answer_file("vendor/uplot.css").headers["content-type"]
    'text/css; charset=utf-8'
    """
    named = _NAME.fullmatch(name or _INDEX)
    if named is None:
        return None
    try:
        content = (FOLDER / named[0]).read_bytes()
    except FileNotFoundError:
        return None
    etag = f'"{sha256(content).hexdigest()[:32]}"'
    headers = {**HEADERS, "etag": etag}
    if etag in if_none_match:
        return Answered(304, b"", headers)
    return Answered(200, content, {**headers, "content-type": f"{_MEDIA_TYPES[named[1]]}; charset=utf-8"})
