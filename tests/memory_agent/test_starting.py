"""While the daemon starts, a terminal shows which part is starting; files and pipes get only the log."""

from __future__ import annotations

import io

from memory_agent.daemon.process import Starting


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def tell(stream: io.StringIO) -> list[str]:
    starting = Starting(stream)
    starting.part("relay")
    starting.part("Ray")
    starting.ready()
    return stream.getvalue().splitlines()


def test_a_terminal_shows_each_part_and_readiness() -> None:
    lines = tell(Terminal())
    assert [line.partition(" s  ")[2] for line in lines] == ["starting relay", "starting Ray", "ready; Ctrl-C ends it"]


def test_a_file_gets_no_progress() -> None:
    assert tell(io.StringIO()) == []
