"""A few short runs of a software-engineering agent; the tests list all their items and questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WANTS_PARSER = "Let me look at parse_header() to see how it splits the lines of a file"
WANTS_TESTS = "Let me find which tests of the header_reader module run against the old parser"
CAUSE = (
    "I can see the issue now: the reader drops the last line of the header, because it counts from one and not zero."
)
CAUSE_ELSEWHERE = (
    "Found the problem, which lies in the header: read_lines() is off by one, and so the last line is lost."
)
CONCLUSION = "The root cause is the loop that counts the lines of the header: it begins at one, as people count."
ENDING = (
    "The header is now read in full. I changed the loop that counts lines to begin at zero, ran all the tests of the "
    "reader, and added one with a header of a single line."
)
PARSER = "def parse_header(lines):\n    return [line.split(':') for line in lines[1:]]"
TESTS = "tests/test_header_reader.py\ntests/test_old_parser.py\ntests/test_of_everything_else.py"


def step(thought: str, command: str, output: str | None = "") -> dict[str, Any]:
    shown = output and f"<output>\n{output}\n</output>"
    return {"thought": thought, "command": json.dumps({"command": command}), "output": shown}


def run(instance: str, steps: list[dict[str, Any]], task: str = "The header loses a line\n\nIts last one.") -> Any:
    return {"instance_id": instance, "split": "dev", "resolved": True, "task": task, "steps": steps}


def steps(cause: str = CAUSE) -> list[dict[str, Any]]:
    return [
        step("I begin with the layout of the repository.", "ls", "src tests"),
        step(WANTS_PARSER, f"cat src/parser_of_{len(cause)}.py", PARSER),
        step(cause, "cat src/reader.py", "for number in range(1, count): yield lines[number]"),
        step(WANTS_TESTS, f"grep -rl parser tests # {len(cause)}", TESTS),
        step("Again.", "ls", "src tests"),
        step(f"{CONCLUSION} ({len(cause)})", "git diff", "-1 +0"),
        step(ENDING, "submit", None),
    ]


def write_runs(file: Path) -> Path:
    """Write three runs: two on the same issue with different conclusions, and one on another issue."""
    other = [step("I look at the menu.", "cat menu.txt", "soup and bread"), step("Done.", "submit", None)]
    file.parent.mkdir(parents=True, exist_ok=True)
    task = "The menu lacks a soup\n\nLunch has none."
    runs = [run("headers-1", steps()), run("headers-1", steps(CAUSE_ELSEWHERE)), run("menus-2", other, task)]
    file.write_text(json.dumps(runs))
    return file
