"""Test the page's static files: headers, revalidation, paths, vendored files, and the contents of a wheel."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path

import pytest
from http_caller import HttpCaller
from served_gateway import Served, gateway_in_new_folder

from memory_agent.doors.bodies import PUBLIC
from memory_agent.doors.http.page.files import FOLDER, answer_file
from sona import gate

VENDOR = FOLDER / "vendor"
REPOSITORY = Path(__file__).parents[3]
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
STATIC = sorted(
    file.relative_to(FOLDER).as_posix() for file in FOLDER.rglob("*") if file.suffix in {".html", ".js", ".css", ".svg"}
)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with gateway_in_new_folder() as served:
        yield served


@pytest.mark.parametrize("name", ["", *STATIC])
def test_a_file_has_a_strict_policy_and_is_revalidated_with_its_etag(caller: HttpCaller, name: str) -> None:
    answer = caller.send("GET", f"/page/{name}", Authorization="")
    assert answer.status == 200
    assert answer.body == (FOLDER / (name or "index.html")).read_bytes()
    expected = {
        "content-security-policy": CSP,
        "x-content-type-options": "nosniff",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    assert expected.items() <= answer.headers.items()
    for known in (answer.headers["etag"], f'"other", W/{answer.headers["etag"]}'):
        again = caller.send("GET", f"/page/{name}", If_None_Match=known)
        assert (again.status, again.body) == (304, b"")
        assert again.headers["content-security-policy"] == CSP
    assert caller.send("GET", f"/page/{name}", If_None_Match='"other"').status == 200


def test_media_types_suit_modules_and_style_sheets(caller: HttpCaller) -> None:
    for name, media_type in (("", "text/html"), ("app.js", "text/javascript"), ("vendor/uplot.css", "text/css")):
        assert caller.send("GET", f"/page/{name}").headers["content-type"] == f"{media_type}; charset=utf-8"


@pytest.mark.parametrize(
    "path",
    [
        *("files.py", "__init__.py", "__pycache__/", "vendor/", "vendor/CHECKSUMS", "none.js", "APP.JS"),
        *("../app.py", "../docs/page.js", "..%2fdocs%2fpage.js", "%2e%2e/docs/page.js", "vendor/../app.js"),
        *("vendor/..%2f..%2fdocs/page.js", "/etc/hosts.js", "%2fetc%2fhosts.js", "..%5cdocs%5cpage.js", "app.js%00"),
        "a" * 300 + ".js",
    ],
)
def test_no_path_leads_to_another_file(caller: HttpCaller, path: str) -> None:
    answer = caller.send("GET", f"/page/{path}")
    assert (answer.status, answer.code) == (404, "protocol")


def test_a_link_to_a_folder_is_not_followed_by_its_name() -> None:
    assert answer_file("vendor") is None
    assert answer_file("ａpp.js") is None


def test_a_browser_is_led_to_the_page(caller: HttpCaller) -> None:
    for path, accept in (("/", "text/html,*/*"), ("/page", "*/*")):
        answer = caller.send("GET", path, Accept=accept)
        assert (answer.status, answer.headers["location"]) == (303, "/page/")


def test_the_page_loads_only_its_own_files(caller: HttpCaller) -> None:
    text = caller.send("GET", "/page/").body.decode()
    for named in re.findall(r'(?:src|href)="([^"]+)"', text):
        assert named == "data:," or named.startswith("/"), named
        assert named == "data:," or caller.send("GET", named).status == 200
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", text) == []


def test_the_vendored_files_are_those_of_their_packages() -> None:
    lines = [line.split("  ") for line in (VENDOR / "CHECKSUMS").read_text().splitlines()]
    listed = {name: digest for digest, name in lines}
    assert listed == {
        file.name: sha256(file.read_bytes()).hexdigest() for file in VENDOR.iterdir() if file.name != "CHECKSUMS"
    }
    notice = (VENDOR / "NOTICE").read_text()
    assert [name for name in listed if name != "NOTICE" and name not in notice] == []


def test_the_page_explains_the_gate_with_its_constants() -> None:
    text = (FOLDER / "words.js").read_text(encoding="utf-8")
    told = {name: float(value) for name, value in re.findall(r"const ([A-Z_]+) = (\d+);", text)}
    for name in ("SHADOW_LESSONS", "COOL_DOWN_LESSONS", "HARM_THRESHOLD"):
        assert told[name] == getattr(gate, name), name


def test_every_view_is_documented_with_its_key_which_is_a_letter_of_its_name() -> None:
    reference = (REPOSITORY / "ops" / "REFERENCE.md").read_text(encoding="utf-8")
    source = "".join(file.read_text(encoding="utf-8") for file in FOLDER.glob("*.js"))
    views = re.findall(r'export default \{\s*title: "(\w+)",\s*key: "(\w)"', source)
    assert len(views) == len({key for _, key in views}) == 11
    for title, key in views:
        assert f"| {title} | `g {key}`" in reference
        assert key in title.lower()


def test_a_wheel_contains_every_file_of_the_page() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["memory_agent.doors.http.page"]
    files = [*STATIC, *(f"vendor/{file.name}" for file in VENDOR.iterdir())]
    assert [name for name in files if not any(fnmatch(name, pattern) for pattern in patterns)] == []


def test_the_page_repeats_the_reads_of_the_verb_table_and_no_write() -> None:
    listed = re.search(r"const READS = new Set\(\[([^\]]*)\]", (FOLDER / "api.js").read_text(encoding="utf-8"))
    assert listed is not None
    repeated = set(re.findall(r'"(\w+)"', listed[1]))
    reads = {verb.name for verb in PUBLIC if verb.repeat == "read"}
    unused = {"sona_export", "metrics", "owner", "wait"}  # by the page
    assert repeated == reads - unused
