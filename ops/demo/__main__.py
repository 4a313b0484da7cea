"""`make demo`: plays three weeks of agent work for three users with real processes, in about a minute.

The exit code is 0 if every promise shown holds. Everything runs in a temporary folder, which is removed.
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
from memory_agent.settings import DaemonSettings, Settings, SharedSettings
from ops.demo import scenes
from ops.demo.books import close_the_books
from ops.demo.coding_agent import connect_an_agent
from ops.demo.on_call import learn_for_three_weeks
from ops.demo.screen import Screen
from ops.demo.sharing import share_what_worked
from ops.demo.speaking import let_memory_speak
from ops.demo.stage import Stage
from ops.demo.story import Story
from ops.process_memory import process_tree, still_running
from relay import BrokerSettings, BusSettings

_SETTINGS = Settings(
    relay=BusSettings(broker=BrokerSettings(pub_bind=("tcp://127.0.0.1:*",))),
    daemon=DaemonSettings(upkeep_interval_s=5.0),  # three weeks pass in half a minute
    shared=SharedSettings(report_after_s=0.0),
)
_GONE_TIMEOUT_S = 20.0
_INTERRUPTED = 130


def main() -> int:
    """Play the story; return the exit code."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # ONNX Runtime would leave a session file in the temporary folder
    screen = Screen()
    started_s = time.monotonic()
    screen.title(
        "An episodic memory for agents",
        "At the moment of new input, what resembles it from past sessions comes back, with how that ended. "
        "Real daemon, real processes, real model, in a temporary folder; about a minute.",
    )
    try:
        left_behind = _tell(screen)
    except (MemoryAgentError, TimeoutError) as error:
        screen.promise(f"the daemon works: {error}", holds=False)
    except KeyboardInterrupt:
        return _INTERRUPTED
    else:
        screen.promise("the daemon stopped; no process, no file is left behind", not left_behind)
    return _end(screen, time.monotonic() - started_s)


def _tell(screen: Screen) -> list[str]:
    """Play all scenes; return leftover processes and folders."""
    screen.scene("1  The daemon starts")
    started_s = time.monotonic()
    with temporary_daemon(_SETTINGS) as data_dir, tempfile.TemporaryDirectory(prefix="memory-demo-") as scratch:
        took_s = time.monotonic() - started_s
        stage = Stage(data_dir, Path(scratch), Story.load(), screen, datetime.now(UTC))
        try:
            _play(stage, took_s)
            processes = process_tree(int(data_dir.joinpath("daemon.lock").read_text()))
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
    screen.scene("3  Before planning: three requests, in other words than what is stored")
    scenes.ask_before_planning(stage)
    screen.scene("4  Week three comes in, and an actor is killed")
    scenes.kill_in_the_middle(stage)
    scenes.ask_as_somebody_else(stage)
    screen.scene("5  Nobody asks: a message goes in, and the block comes out by itself")
    let_memory_speak(stage)
    screen.scene("6  Three weeks on call: the memory learns from how runs end")
    learn_for_three_weeks(stage)
    screen.scene("7  The books")
    close_the_books(stage)
    screen.scene("8  A real coding agent is connected, and works in two sessions")
    connect_an_agent(stage)
    screen.scene("9  A user shares what worked, and how others' work with it ends shows what it is worth")
    share_what_worked(stage)


def _end(screen: Screen, took_s: float) -> int:
    screen.console.print()
    if screen.broken:
        screen.say(f"{len(screen.broken)} of {len(screen.broken) + screen.kept} promises are broken:", "bold red")
        for text in screen.broken:
            screen.say(f"  {text}", "red")
        return 1
    screen.say(f"{screen.kept} promises shown, {screen.kept} kept, in {took_s:.0f} s.", "bold")
    screen.say('Yours: memory-agent serve · point an emitter at it · memory-agent recall "…"   (README.md)')
    screen.console.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
