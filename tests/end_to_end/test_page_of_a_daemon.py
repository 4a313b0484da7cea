"""Test that a page stays signed in when its daemon is killed and restarted, and that the log contains no secret."""

from __future__ import annotations

from contextlib import closing
from urllib.parse import urlsplit

import msgspec
import pytest
from http_caller import HttpCaller

from memory_agent.layout import Layout

from .conftest import DaemonProcess

pytestmark = pytest.mark.slow


def test_a_page_stays_signed_in_when_its_daemon_is_killed_and_restarted(own_daemon: DaemonProcess) -> None:
    own_daemon.start()
    token, url = Layout(own_daemon.data_dir).token(), own_daemon.ready["endpoints"]["http"]
    with closing(HttpCaller(url, token)) as caller:
        ticket = caller.send("POST", "/page/ticket").json()["ticket"]
    with closing(HttpCaller(url)) as caller:
        begun = caller.send("POST", "/page/session", msgspec.json.encode({"token": ticket}))
    cookie, page_key = begun.headers["set-cookie"].partition(";")[0], begun.json()["page_key"]
    own_daemon.kill()
    own_daemon.start()
    assert own_daemon.ready["endpoints"]["http"] == url
    with closing(HttpCaller(url)) as caller:
        assert caller.post("stats", Cookie=cookie, X_Page_Key=page_key).status == 200
        assert caller.post("stats", Cookie=cookie).status == 401
        assert caller.send("POST", "/page/session", msgspec.json.encode({"token": ticket})).status == 401
    assert cookie.startswith(f"memory_agent_{urlsplit(url).port}=")
    secrets = (token, ticket, cookie.partition("=")[2], page_key)
    assert [secret for secret in secrets if secret in own_daemon.log()] == []
