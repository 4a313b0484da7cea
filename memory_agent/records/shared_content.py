"""Rules for the content of a shared item, checked by the sender and the receiver. Pure.

Checks raise `InvalidInputError` with the name of the field.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from hashlib import sha256

import msgspec

from memory_agent.errors import InvalidInputError
from memory_agent.records.arguments import check_choice, check_not_blank, check_text
from memory_agent.records.shared import CONTENT_TYPES, Attachment, SharedContent
from relay.access import PUBLIC

MOST_ATTACHED_BYTES = 1 << 20
MOST_NAME_CHARS = 64
PSEUDONYM_BYTES = 10
_MOST_CHARS = {"title": 200, "summary": 4_000, "body": 16_000, "reference": 2_000}
_MOST_TAGS, _MOST_TAG_CHARS = 32, 64
_MOST_FILE_NAME_CHARS = 255
_SEPARATOR = "\n\n"
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\ufe00-\ufe0f\U000e0100-\U000e01ef]")
"""Invisible characters that `str.isprintable` accepts."""
_STACKED_MARKS = re.compile("M{4}")
_PSEUDONYM = re.compile(r"user-[0-9a-f]{20}")
_MANY_USERS = re.compile(r"[0-9]+ users")
_LIKE_MANY_USERS = re.compile(r"[\d\s.,'+-]+users?")
_POLICY = re.compile(rf"{PUBLIC}|(?:org|tier):[A-Za-z0-9._-]{{1,64}}")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_ID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")


def check_content(content: SharedContent) -> None:
    """Check all fields of an item, including their types."""
    check_item_id(content.item_id)
    check_choice("content_type", content.content_type, CONTENT_TYPES)
    for field, most in _MOST_CHARS.items():
        value = getattr(content, field)
        if value is not None or field in ("title", "summary"):
            _check_length(field, value, most)
    check_version(content.version)
    check_text("access_policy", content.access_policy)
    if not _POLICY.fullmatch(content.access_policy):
        raise InvalidInputError("access_policy", "must be public, org:NAME or tier:NAME")
    if not isinstance(content.tags, tuple) or len(content.tags) > _MOST_TAGS:
        raise InvalidInputError("tags", f"must be a list of at most {_MOST_TAGS} strings")
    for tag in content.tags:
        _check_length("tags", tag, _MOST_TAG_CHARS)
    if (file := content.attachment) is not None:
        _check_length("attachment", file.name, _MOST_FILE_NAME_CHARS)
        if file.name in (".", "..") or not file.name.isprintable() or not {"/", "\\"}.isdisjoint(file.name):
            raise InvalidInputError("attachment", f"{file.name!r} must be a file name without a folder")
        if not 0 <= file.size_bytes <= MOST_ATTACHED_BYTES:
            raise InvalidInputError("attachment", f"must have at most {MOST_ATTACHED_BYTES} bytes")


def check_admitted(policy: str, policies: Sequence[str]) -> None:
    if policy not in policies:
        raise InvalidInputError("access_policy", f"{policy} is not permitted by the caller's key")


def check_offer(content: SharedContent) -> None:
    """In addition to `check_content`, check that an offer is a pattern and has no fields that identify its author."""
    if content.content_type != "pattern":
        raise InvalidInputError("content_type", f"must be pattern for an offer, not {content.content_type}")
    for field in ("reference", "attachment"):
        if getattr(content, field) is not None:
            raise InvalidInputError(field, "must not be set for an offer, because it identifies the author")


def check_item_id(item_id: object) -> str:
    check_text("item_id", item_id)
    assert isinstance(item_id, str)
    if not _ID.fullmatch(item_id):
        raise InvalidInputError("item_id", "is not a valid item id")
    return item_id


def check_version(version: object) -> str:
    """Check a version name (1 to 64 letters, digits and `._+-`), and return it."""
    check_text("version", version)
    assert isinstance(version, str)
    if not _VERSION.fullmatch(version):
        raise InvalidInputError("version", "must consist of 1 to 64 letters, digits and ._+-, such as 1.2")
    return version


def check_name(name: object) -> str:
    """Return an author's name, normalised to NFKC, without invisible characters.

    A name has 1 to 64 printable characters, including a letter or a digit. It must not look like a pseudonym.
    """
    check_text("name", name)
    assert isinstance(name, str)
    plain = _INVISIBLE.sub("", unicodedata.normalize("NFKC", name[: 2 * MOST_NAME_CHARS]))
    seen = " ".join(plain.split())
    marks = "".join("M" if unicodedata.category(one).startswith("M") else "." for one in plain)
    is_readable = plain.isprintable() and any(map(str.isalnum, plain)) and not _STACKED_MARKS.search(marks)
    if len(name) > 2 * MOST_NAME_CHARS or len(seen) > MOST_NAME_CHARS or not is_readable:
        raise InvalidInputError(
            "name", f"must have 1 to {MOST_NAME_CHARS} printable characters, including a letter or digit"
        )
    if "#" in seen:
        raise InvalidInputError("name", "must not contain #, which begins the suffix added to each name")
    if is_pseudonym(seen.casefold()):
        raise InvalidInputError("name", "must not look like a pseudonym")
    if _LIKE_MANY_USERS.fullmatch(seen.casefold()):
        raise InvalidInputError("name", 'must not name several users, as in "5 users"')
    return seen


def pseudonym(digest: bytes) -> str:
    """Return the pseudonym of a user with this digest of `PSEUDONYM_BYTES` bytes."""
    return f"user-{digest.hex()}"


def author_of_many(users: int) -> str:
    return f"{users} users"


def is_of_many(name: str) -> bool:
    """Whether a name has the form of `author_of_many`, the author shown for an item that many users offered. No
    user-chosen name can have this form.
    """
    return _MANY_USERS.fullmatch(name) is not None


def is_pseudonym(name: str) -> bool:
    return _PSEUDONYM.fullmatch(name) is not None


def attachment_of(data: bytes | None, name: str | None) -> Attachment | None:
    """Return the published description of a file."""
    if data is None:
        if name is not None:
            raise InvalidInputError("attachment", f"the bytes of {name!r} are missing")
        return None
    if not isinstance(data, bytes):
        raise InvalidInputError("attachment", "must be bytes")
    if len(data) > MOST_ATTACHED_BYTES:
        raise InvalidInputError("attachment", f"has {len(data)} bytes; the limit is {MOST_ATTACHED_BYTES}")
    return Attachment(
        name="attachment" if name is None else name, size_bytes=len(data), sha256=sha256(data).hexdigest()
    )


def digest_of(content: SharedContent) -> str:
    return sha256(msgspec.msgpack.encode(content)).hexdigest()


def preview_digest(content: SharedContent, user_id: str) -> str:
    return sha256(msgspec.msgpack.encode((user_id, content))).hexdigest()


def texts_of(content: SharedContent) -> dict[str, str]:
    texts: dict[str, str] = {field: value for field in _MOST_CHARS if (value := getattr(content, field))}
    if content.tags:
        texts["tags"] = ", ".join(content.tags)
    if content.attachment is not None:
        texts["attachment"] = content.attachment.name
    return texts


def text_of_item(summary: str, body: str | None) -> str:
    """Return the text that is embedded and searched: the summary, then the body."""
    return summary if not body else f"{summary}{_SEPARATOR}{body}"


def parts_of_text(text: str, summary_chars: int) -> tuple[str, str | None]:
    """Split a text returned by `text_of_item` into its summary and body."""
    return text[:summary_chars], text[summary_chars + len(_SEPARATOR) :] or None


def text_to_read(summary: str, body: str | None, at: int = 0) -> tuple[str, int]:
    """Return the text shown to readers, and the offset in it that corresponds to `at` in the searched text.

    If the body contains the summary, the text is only the body, so that nothing is repeated.
    """
    if not body or summary not in body:
        return text_of_item(summary, body), at
    before = len(summary) + len(_SEPARATOR)
    return body, at - before if at >= before else body.index(summary) + min(at, len(summary))


def _check_length(field: str, value: object, most: int) -> None:
    check_not_blank(field, value)
    assert isinstance(value, str)
    if len(value) > most:
        raise InvalidInputError(field, f"has {len(value)} characters; the limit is {most}")
