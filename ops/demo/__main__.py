"""`make demo`: plays three weeks of three users' agent work with real processes, in about two minutes.

The exit code is 0 if every promise holds. Everything runs in a temporary folder, which is removed at the end.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil

from memory_agent.errors import MemoryAgentError
from memory_agent.evaluation import temporary_daemon
from memory_agent.layout import Layout
from memory_agent.settings import DaemonSettings, Settings, SharedSettings
from ops.demo import scenes
from ops.demo.books import close_the_books
from ops.demo.coding_agent import connect_an_agent
from ops.demo.machines import lose_a_machine
from ops.demo.on_call import learn_for_three_weeks
from ops.demo.page import show_page
from ops.demo.screen import Screen
from ops.demo.sharing import share_what_worked
from ops.demo.speaking import let_memory_speak
from ops.demo.stage import Stage
from ops.demo.story import Story
from ops.process_memory import process_tree, still_running
from relay import BrokerSettings, BusSettings

_SETTINGS = Settings(
    relay=BusSettings(broker=BrokerSettings(pub_bind=("tcp://127.0.0.1:*",))),
    daemon=DaemonSettings(
        upkeep_interval_s=2.0,  # short, because three weeks are simulated in half a minute
        dedicated_hosts=3,  # for the three users of the story; ten others share a host in the scene of sharing
        shared_hosts=1,
    ),
    shared=SharedSettings(report_after_s=0.0),
)
_GONE_TIMEOUT_S = 20.0
_INTERRUPTED = 130


def main() -> int:
    """Run the demo; return the exit code."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # ONNX Runtime would leave a session file in the temporary folder
    screen = Screen()
    started_s = time.monotonic()
    screen.title(
        "An episodic memory for agents",
        "When new input arrives, similar work from past sessions is recalled, along with how it ended. "
        "Uses a real daemon, real processes and a real model in a temporary folder; takes about two minutes.",
    )
    try:
        left_behind = _tell(screen)
    except (MemoryAgentError, TimeoutError) as error:
        screen.promise(f"the daemon works (error: {error})", holds=False)
    except KeyboardInterrupt:
        return _INTERRUPTED
    else:
        screen.promise("the daemon stopped, leaving no process or file behind", not left_behind)
    return _end(screen, time.monotonic() - started_s - screen.paused_s)


def _tell(screen: Screen) -> list[str]:
    """Play all scenes; return the processes and folders left behind."""
    screen.scene("1  The daemon starts")
    started_s = time.monotonic()
    with temporary_daemon(_SETTINGS) as data_dir, tempfile.TemporaryDirectory(prefix="memory-demo-") as scratch:
        took_s = time.monotonic() - started_s
        stage = Stage(data_dir, Path(scratch), Story.load(), screen, datetime.now(UTC))
        try:
            _play(stage, took_s)
            holder = Layout(data_dir).holder
            processes = process_tree(holder.pid) if holder is not None else []
        finally:
            stage.close()
    _, alive = psutil.wait_procs(processes, timeout=_GONE_TIMEOUT_S)
    left = [str(process) for process in still_running(alive)]
    return left + [str(folder) for folder in (data_dir, Path(scratch)) if folder.exists()]


def _play(stage: Stage, took_s: float) -> None:
    screen = stage.screen
    scenes.show_daemon(stage, took_s)
    screen.scene("2  Two weeks of work: a conductor and two users' workers publish events")
    scenes.publish_first_weeks(stage)
    screen.scene("3  Before planning: three requests, worded differently from the stored memories")
    scenes.ask_before_planning(stage)
    screen.scene("4  Week three is published, and an actor is killed")
    scenes.kill_in_the_middle(stage)
    scenes.ask_as_somebody_else(stage)
    screen.scene("5  No recall request: a message is published, and memory publishes a block")
    let_memory_speak(stage)
    screen.scene("6  Three weeks on call: the memory learns from the outcomes of runs")
    learn_for_three_weeks(stage)
    screen.scene("7  The totals")
    close_the_books(stage)
    screen.scene("8  A real coding agent is connected and works in two sessions")
    connect_an_agent(stage)
    screen.scene("9  A user shares what worked, and the outcomes of others' runs show its value")
    share_what_worked(stage)
    screen.scene("10  A daemon with two more machines; one dies while it works")
    lose_a_machine(screen)
    screen.scene("11  What the memory holds, in a browser")
    show_page(stage)


def _end(screen: Screen, took_s: float) -> int:
    screen.console.print()
    if screen.broken:
        screen.say(f"{len(screen.broken)} of {len(screen.broken) + screen.kept} promises were broken:", "bold red")
        for text in screen.broken:
            screen.say(f"  {text}", "red")
        return 1
    screen.say(f"All {screen.kept} promises were kept, in {took_s:.0f} s.", "bold")
    screen.say(
        'Next: memory-agent serve · connect an emitter · memory-agent recall "…" · memory-agent open   (README.md)'
    )
    screen.console.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
