"""Measures the page in Chromium: first paint, frames while scrolling, searches, and the tab's memory under a live feed.

    python -m ops.bench.page [--memories 100000] [--store FOLDER] [--feed-s 20] [--rate 250] [--write]

FOLDER is a user's folder that contains the memories; if it is omitted, a new folder is first filled with memories.
`--feed-s 600` is the ten-minute run. `--write` writes `ops/bench/page.md`. A frame time is the interval between the
starts of two successive repaints.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

from memory_agent.evaluation import temporary_daemon
from memory_agent.layout import Layout
from memory_agent.settings import Settings
from memory_agent.storage.folders import user_folder
from ops.bench.filled_store import filled_store
from ops.bench.machine import describe_machine, load_per_core
from ops.bench.spread import percentile
from ops.bench.texts import queries
from relay import Publisher, relay_endpoints

PAGE = Path(__file__).with_name("page.md")
SWITCHES = (
    "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync"
    " --no-first-run --disable-dev-shm-usage --disable-extensions --mute-audio"
)
_FEATURES_OFF = (
    "AvoidUnnecessaryBeforeUnloadCheckSync,DestroyProfileOnBrowserClose,HttpsUpgrades,HttpsFirstBalancedModeAutoEnable,"
    "LensOverlay,MediaRouter,PaintHolding,ThirdPartyStoragePartitioning,AvoidCorsURLLoaderRestartOnRedirect,"
    "OptimizationHints,NetworkTimeServiceQuerying,AimEnabled,PreconnectToSearch,WebUIOmniboxPopup,WebUIOmniboxAimPopup"
)
"""The features that Playwright turns off, whose list this one replaces, and the two popups of the address bar, which
Chromium loads as web pages for each window. These popups take half of the processor time of opening a context
(measured)."""
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_USER = "bench"
_WINDOW = {"width": 1280, "height": 800}
_LOADS, _QUESTIONS = 5, 30
_SCROLL_MS = 5_000
_SLOW_MS = 50
_SAMPLE_S = 5
_START_TIMEOUT_MS = 120_000

_ROWS = "() => document.querySelectorAll('[role=option] .what').length > 5"
_PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
_SCROLL = """([how, ms]) => new Promise((done) => {
  const list = document.querySelector(".list");
  const frames = [];
  const began = performance.now();
  let last = began;
  list.scrollTop = 0;
  const step = (now) => {
    frames.push(now - last);
    last = now;
    if (now - began > ms) return done(frames.slice(1));
    const share = (now - began) / ms;
    if (how === "steadily") list.scrollTop += 60;
    else list.scrollTop = list.scrollHeight * share;
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})"""
_SEARCH = """(query) => new Promise((done) => {
  const began = performance.now();
  const look = () => {
    if (document.querySelector(".results .summary")) done(performance.now() - began);
    else requestAnimationFrame(look);
  };
  location.hash = `#/search?${new URLSearchParams({ q: query })}`;
  setTimeout(look);
})"""
_FRAMES = """(ms) => new Promise((done) => {
  const frames = [];
  const began = performance.now();
  let last = began;
  const step = (now) => {
    frames.push(now - last);
    last = now;
    if (now - began > ms) done(frames.slice(1));
    else requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})"""


@contextmanager
def open_chromium(*switches: str) -> Iterator[Browser]:
    """Start the system's Chromium. Raises `FileNotFoundError` if there is none."""
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if program is None:
        raise FileNotFoundError("needs Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory(prefix="chromium-") as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            args=[*SWITCHES.split(), f"--disable-features={_FEATURES_OFF}", *switches],
            env={**os.environ, "HOME": folder},
            timeout=_START_TIMEOUT_MS,
        )
        yield browser
        browser.close()


def measure(store: Path, feed_s: float, rate: int) -> dict[str, Any]:
    """Measure the page on a copy of a user's folder and return the figures; times are in ms."""
    settings = msgspec.structs.replace(Settings(), daemon=msgspec.structs.replace(Settings().daemon, light=True))
    with temporary_daemon(settings) as data_dir, open_chromium() as browser:
        shutil.copytree(store, user_folder(data_dir, _USER))
        first, again = zip(*(_load(browser, data_dir) for _ in range(_LOADS)), strict=True)
        page = browser.new_context(viewport=_WINDOW).new_page()
        _sign_in(page, data_dir)
        return {
            "first load": _figures([ms for ms, _ in first]),
            "first rows": _figures([ms for _, ms in first]),
            "reload": _figures([ms for ms, _ in again]),
            "rows after a reload": _figures([ms for _, ms in again]),
            "frames, scrolled steadily": _frames(page.evaluate(_SCROLL, ["steadily", _SCROLL_MS])),
            "frames, dragged through all": _frames(page.evaluate(_SCROLL, ["all", _SCROLL_MS])),
            "elements": page.evaluate("() => document.querySelectorAll('*').length"),
            "search": _figures([_search(page, query) for query in queries(_QUESTIONS + 5, seed=3)][5:]),
            "feed": _feed(page, data_dir, feed_s, rate),
        }


def _sign_in(page: Page, data_dir: Path) -> None:
    url = Layout(data_dir).http.read_text().strip()
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    connection.request("POST", "/page/ticket", b"", {"Authorization": f"Bearer {Layout(data_dir).token()}"})
    ticket = json.loads(connection.getresponse().read())["ticket"]
    connection.close()
    page.goto(f"{url}/page/#token={ticket}&user={_USER}")
    page.wait_for_function(_ROWS, polling="raf")


def _load(browser: Browser, data_dir: Path) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the times of the first paint and of the first rows, for a first load and for a reload."""
    with browser.new_context(viewport=_WINDOW) as context:
        page = context.new_page()
        _sign_in(page, data_dir)
        first = page.evaluate(_PAINTED), page.evaluate("() => performance.now()")
        page.reload()
        page.wait_for_function(_ROWS, polling="raf")
        return first, (page.evaluate(_PAINTED), page.evaluate("() => performance.now()"))


def _search(page: Page, query: str) -> float:
    page.evaluate("() => { location.hash = '#/search'; }")
    page.wait_for_function("() => !document.querySelector('.results .summary')", polling="raf")
    took_ms: float = page.evaluate(_SEARCH, query)
    return took_ms


def _feed(page: Page, data_dir: Path, feed_s: float, rate: int) -> dict[str, Any]:
    page.evaluate("() => { location.hash = '#/live'; }")
    page.get_by_text("Following").wait_for()
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    heaps: list[float] = []
    frames: list[float] = []
    with _publishing(data_dir, rate):
        for _ in range(max(4, round(feed_s / _SAMPLE_S))):
            frames += page.evaluate(_FRAMES, _SAMPLE_S * 1000)
            heaps.append(_heap(session))
    page.wait_for_timeout(2_000)
    half = len(heaps) // 2
    return {
        "seconds": feed_s,
        "per_s": rate,
        "heap_mb_first_half": [min(heaps[:half]), max(heaps[:half])],
        "heap_mb_second_half": [min(heaps[half:]), max(heaps[half:])],
        "rows": page.locator(".feed-row").count(),
        "shown": page.locator("main").get_by_text("since this view was opened").text_content(),
        **_frames(frames),
    }


def _heap(session: CDPSession) -> float:
    """Return the megabytes of live JavaScript objects."""
    session.send("HeapProfiler.collectGarbage")
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return round(metrics["JSHeapUsedSize"] / 1e6, 2)


@contextmanager
def _publishing(data_dir: Path, rate: int) -> Iterator[None]:
    """Publish `rate` events a second inside the context."""
    stop = threading.Event()

    def publish() -> None:
        texts = queries(1_000, seed=9)
        with Publisher(relay_endpoints(data_dir).ingest) as publisher:
            began_s, sent = time.monotonic(), 0
            while not stop.wait(0.02):
                while sent < (time.monotonic() - began_s) * rate:
                    payload = {"text": f"{sent} {texts[sent % len(texts)]}"}
                    publisher.publish({"event_type": "note.taken", "user_id": _USER, "payload": payload})
                    sent += 1

    thread = threading.Thread(target=publish)
    thread.start()
    yield
    stop.set()
    thread.join()


def _figures(values: list[float]) -> dict[str, float]:
    return {"p50": round(percentile(values, 50), 1), "p95": round(percentile(values, 95), 1)}


def _frames(frames: list[float]) -> dict[str, float]:
    slow = sum(frame > _SLOW_MS for frame in frames)
    return {**_figures(frames), "most": round(max(frames), 1), "count": len(frames), "slow": slow}


def _table(found: dict[str, Any], memories: int, load: float) -> str:
    """Return the results page."""
    times = [
        f"| {name} | {figures['p50']} | {figures['p95']} |"
        for name, figures in found.items()
        if isinstance(figures, dict) and name not in ("feed",)
    ]
    scrolls = [found[name] for name in found if name.startswith("frames")]
    slow, count = (sum(one[field] for one in scrolls) for field in ("slow", "count"))
    most = max(one["most"] for one in scrolls)
    feed = found["feed"]
    first, second = ("{} to {}".format(*feed[f"heap_mb_{half}_half"]) for half in ("first", "second"))
    machine = "; ".join(f"{name}: {value}" for name, value in describe_machine().items())
    return "\n".join(
        [
            "# The page in a browser",
            "",
            f"Written by `python -m ops.bench.page` on {datetime.now(UTC):%Y-%m-%d}: {memories:,} memories, headless",
            f"Chromium without a GPU on the daemon's machine, load {load} per core.",
            "",
            f"{machine}.",
            "",
            "A frame is the time between two repaints. A search ends when its rows are in the document.",
            "",
            "| ms | p50 | p95 |",
            "|---|---|---|",
            *times,
            "",
            f"Frames over {_SLOW_MS} ms: {slow} of {count}; the longest took {most} ms.",
            f"The document has {found['elements']:,} elements.",
            "",
            f"Live feed, {feed['per_s']} events a second for {feed['seconds']:g} s: live objects take {first} MB in",
            f"the first half, and {second} MB in the second. {feed['rows']} rows; frames: p95 {feed['p95']} ms,",
            f"{feed['slow']} of {feed['count']} over {_SLOW_MS} ms.",
            "",
        ]
    )


def main(arguments: list[str]) -> None:
    """Print the figures as JSON, and write the results page on request."""
    parser = argparse.ArgumentParser(description="Measure the page in Chromium.")
    parser.add_argument("--memories", type=int, default=100_000, help="number of memories, if --store is omitted")
    parser.add_argument("--store", type=Path, help="use a copy of this user folder as the store")
    parser.add_argument("--feed-s", type=float, default=20.0, help="seconds of the live feed")
    parser.add_argument("--rate", type=int, default=250, help="events a second")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    given = parser.parse_args(arguments)
    with ExitStack() as stack:
        store = given.store or stack.enter_context(filled_store(given.memories))
        load = load_per_core()
        found = measure(store, given.feed_s, given.rate)
    print(json.dumps(found, indent=2))
    if given.write:
        PAGE.write_text(_table(found, given.memories, load), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
