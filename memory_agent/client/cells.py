"""Distributes users across several daemons (cells): finds the cell of a user, and publishes to all cells.

A user's cell is the one with the greatest XXH3 hash (64 bits, unsigned, seed 0) of the cell's name, a zero byte and the
user id. Adding an nth cell moves about 1/n of the users to the new cell, and moves no other users. Weights were
rejected, because logarithms differ in their last bits between programming languages; a large cell can have two names
instead.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import msgspec

from memory_agent.daemon.directory import rendezvous
from memory_agent.errors import InvalidInputError, SettingsError
from relay import (
    ON_BEHALF_OF,
    SHARED_USER,
    SYSTEM_USER,
    FlushReport,
    MalformedEventError,
    Publisher,
    RelayError,
    described,
    identity_of,
    read_key_file,
    read_toml,
    relay_endpoints,
    setting_at_fault,
)

_NAME = re.compile(r"[A-Za-z0-9-]{1,63}")


class Cell(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to reach a daemon: its `data_dir` on this machine, or its `endpoint`, its `relay` and a `key_file`."""

    data_dir: str | None = None
    endpoint: str | None = None
    relay: str | None = None
    key_file: str | None = None

    def publisher(self, spool: Path | None) -> Publisher:
        """Return a publisher for this cell. Raises `SettingsError` if there is no relay, or an error of `Publisher`."""
        ingest = self.relay if self.data_dir is None else relay_endpoints(Path(self.data_dir)).ingest
        if ingest is None:
            raise SettingsError("cells", f"the cell at {self.endpoint} needs a relay for events")
        identity = None if self.key_file is None else identity_of(read_key_file(Path(self.key_file)))
        return Publisher(ingest, spool=spool, identity=identity)


class Cells:
    """The cells of a deployment, by name.

    >>> cells = Cells({name: Cell(data_dir=f"/srv/{name}") for name in ("cell-0", "cell-1", "cell-2")})
    >>> cells.name_of("alice"), cells.of("alice").data_dir
    ('cell-0', '/srv/cell-0')
    """

    def __init__(self, cells: Mapping[str, Cell]) -> None:
        """Raises `SettingsError`."""
        for name, cell in cells.items():
            if not _NAME.fullmatch(name) or (cell.data_dir is None) == (cell.endpoint is None):
                reason = "needs a name of 1 to 63 letters, digits and dashes, and either data_dir or endpoint"
                raise SettingsError("cells", f"{name[:64]!r} {reason}")
        if not cells:
            raise SettingsError("cells", "there is no cell")
        self.by_name = dict(cells)

    def name_of(self, user_id: object) -> str:
        """Return the name of a user's cell. Raises `InvalidInputError` for `system` and `shared-knowledge`, which exist
        in every cell.
        """
        if not isinstance(user_id, str) or not user_id.isascii() or user_id in ("", SYSTEM_USER, SHARED_USER):
            raise InvalidInputError("user_id", "must name a user of one cell; or use a cell's data folder or endpoint")
        return rendezvous(user_id, tuple(self.by_name))

    def of(self, user_id: str | None) -> Cell:
        """Return a user's cell. Raises as `name_of`."""
        return self.by_name[self.name_of(user_id)]


def read_cells(file: Path | str) -> Cells:
    """Read a TOML file with a table for each cell; paths in it are relative to its folder. Raises `SettingsError`."""
    path, cells = Path(file).expanduser().absolute(), {}
    for name, table in read_toml(path, lambda _, reason: SettingsError("cells", reason)).items():
        try:
            cell = msgspec.convert(table, described(Cell))
        except msgspec.ValidationError as error:
            raise SettingsError("cells", ": ".join((str(path), name, *setting_at_fault(error)))) from error
        named = {"data_dir": cell.data_dir, "key_file": cell.key_file}
        paths = {field: str(path.parent / Path(one).expanduser()) for field, one in named.items() if one is not None}
        cells[name] = msgspec.structs.replace(cell, **paths)
    return Cells(cells)


class CellPublisher:
    """Publishes each event to its user's cell. Use it in one thread only, and close it.

    A `system` event is published to the cell of the user that its field `on_behalf_of` names. With `spool`, which
    contains a folder for each cell, an unresponsive cell does not delay events for other cells.

    >>> with CellPublisher(read_cells("cells.toml"), Path("spool")) as publisher:
    ...     publisher.publish({"event_id": "e-1", "event_type": "user_input", "user_id": "alice"})
    'e-1'
    """

    def __init__(self, cells: Cells, spool: Path | None = None) -> None:
        """Send the events that an earlier process left in `spool`. Raises `SettingsError` if those events are for other
        cells, and any error that `Publisher` raises.
        """
        self._cells, self._spool = cells, spool
        self._publishers: dict[str, Publisher] = {}
        if spool is not None:
            note, names = spool / ".cells", "\n".join(sorted(cells.by_name))
            if note.exists() and note.read_text() != names:
                raise SettingsError("cells", f"{spool} may have events for other cells; first publish those events")
            spool.mkdir(mode=0o700, parents=True, exist_ok=True)
            note.write_text(names)
            for name in cells.by_name:
                if (spool / name).exists():
                    self._publisher(name)

    def publish(self, event: Mapping[str, Any], timeout_s: float | None = None) -> str:
        """Like `Publisher.publish`. Raises `MalformedEventError` if the event is not for a user of one cell."""
        field = ON_BEHALF_OF if event.get("user_id") == SYSTEM_USER else "user_id"
        try:
            name = self._cells.name_of(event.get(field))
        except InvalidInputError as error:
            raise MalformedEventError(field, error.reason) from error
        return self._publisher(name).publish(event, timeout_s)

    def flush(self, timeout_s: float = 30.0) -> dict[str, FlushReport]:
        """Like `Publisher.flush`, for all cells together; return the reports by cell."""
        end_s = time.monotonic() + timeout_s
        return {name: one.flush(max(0.0, end_s - time.monotonic())) for name, one in self._publishers.items()}

    def close(self, timeout_s: float = 5.0) -> None:
        """Like `Publisher.close`, for all cells."""
        with ExitStack() as stack:
            for publisher in self._publishers.values():
                stack.callback(publisher.close, 0.0)
            reports = self.flush(timeout_s).values()
        if self._spool is not None and not any(report.spooled or report.pending for report in reports):
            (self._spool / ".cells").unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.close()
        except RelayError:
            if kind is None:
                raise

    def _publisher(self, name: str) -> Publisher:
        if name not in self._publishers:
            spool = None if self._spool is None else self._spool / name
            self._publishers[name] = self._cells.by_name[name].publisher(spool)
        return self._publishers[name]
