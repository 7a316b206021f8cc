"""The status page in a real browser, where there is one: shows what happens, runs nothing it is told, and comes back.

Its control plane is the real one, but for jobs that do nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from still import StillPlane

from fairlead.core.types import Node, Observation
from fairlead.server.api import Settings, make_app

sys.path.append(str(Path(__file__).parents[1] / "metrics"))
from headless import Page, find_browser  # it stands beside the tests of the report

BROWSER = find_browser()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no chromium on PATH; install it to test the status page in a browser"),
]

PATIENCE_S = 30.0
EVIL = "<img src=x onerror=document.title='broken'>"
NODES = (Node("n0", 4, "a100"), Node("a-node-with-a-rather-long-name-for-a-phone", 2, "t4"))


class Site:
    """The page's server. It can be stopped, and come back at the same address."""

    def __init__(self, plane: StillPlane) -> None:
        self.plane = plane
        self._port = 0
        self.start()

    def start(self) -> None:
        self._app = make_app(self.plane.service, self.plane.settings)
        config = uvicorn.Config(self._app, port=self._port, log_level="warning", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        self._port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    def stop(self) -> None:
        self._app.state.streams.close()
        self._server.should_exit = True
        self._thread.join()

    def call(self, method: str, path: str, user: str = "ann", **options: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.plane.tokens[user]}"}
        answer = httpx.request(method, f"{self.url}{path}", headers=headers, **options)
        assert answer.is_success, answer.text
        return answer.json()

    def submit(self, user: str = "ann", **fields: Any) -> str:
        (job_id,) = self.call("POST", "/api/v1/jobs", user, json={"run": "sleep 1d", **fields})["ids"]
        return str(job_id)

    def login(self, user: str = "ann") -> str:
        return self.url + str(self.call("POST", "/api/v1/login-codes", user)["path"])


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "server").mkdir()
    with StillPlane(tmp_path / "server", settings=Settings(tell_s=0.02), nodes=NODES) as plane:
        site = Site(plane)
        yield site
        site.stop()


class Reader:
    """Somebody who looks at the page."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def go(self, url: str) -> None:
        self.page.call("Page.navigate", url=url)

    def sees(self, expression: str, what: object = True) -> None:
        """In the end."""
        until = time.monotonic() + PATIENCE_S
        while (found := self.page.evaluate(expression)) != what:
            if time.monotonic() > until:
                text = self.page.evaluate("document.body && document.body.innerText")
                raise AssertionError(
                    f"{expression} is {found!r} and not {what!r}; complaints {self.page.complaints};\n{text}"
                )
            time.sleep(0.05)

    def reads(self, text: str, where: str = "body") -> None:
        self.sees(f"(document.querySelector({where!r})?.innerText || '').includes({text!r})")


@contextmanager
def reading(site: Site, profile: Path, *, user: str = "ann", width: int = 1280, dark: bool = False) -> Iterator[Reader]:
    assert BROWSER is not None
    with Page(BROWSER, profile, width=width, dark=dark, timeout_s=180.0) as page:
        reader = Reader(page)
        reader.go(site.login(user))
        reader.sees("document.querySelector('#link')?.dataset.state", "live")
        yield reader


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_page_shows_the_cluster_and_its_jobs_as_they_change(
    site: Site, tmp_path: Path, width: int, dark: bool
) -> None:
    controller = site.plane.controller
    first = site.submit(name="resnet", gpus="1-2", gpu_type="a100", batch="64-512")
    controller.runs(first)
    with reading(site, tmp_path / "profile", width=width, dark=dark) as reader:
        assert reader.page.evaluate("innerWidth") == width
        reader.reads("resnet", "#jobs")
        reader.reads("1 of 6 GPUs in use", "#cluster")
        reader.reads("policy backfill", "header")
        reader.sees("document.querySelectorAll('#nodes .blocks > *').length", 6)
        reader.sees("document.querySelectorAll('#nodes .blocks > a').length", 1)

        second = site.submit(name="bert", gpus=4, gpu_type="a100")
        third = site.submit(name="vit", gpus=2, gpu_type="a100")
        reader.reads("vit", "#jobs")
        reader.sees("document.querySelectorAll('#nodes .blocks > a').length", 3)
        reader.reads("2 running", "#counts")
        reader.reads("1 pending", "#counts")
        colours = "[...document.querySelectorAll('#nodes .blocks > a')].map(e => getComputedStyle(e).backgroundColor)"
        assert len(set(reader.page.evaluate(colours))) == 2
        assert second != third

        for step in (1, 2, 3):  # progress and goodput come, and a line of it
            seen = Observation("a100", 1, 1, 64, 0, 0.1 * step, 0.0)
            controller.reports(first, 0.1 * step, batch=64, observations=(seen,))
            time.sleep(1.1)
        reader.reads("30%", "#jobs")
        reader.reads("/s", "#jobs")
        reader.sees("document.querySelector('#jobs polyline').getAttribute('points').split(' ').length >= 2")

        controller.exits(third, 1, "it broke")
        reader.reads("FAILED", "#jobs")
        assert reader.page.evaluate("document.documentElement.scrollWidth") <= width
        assert reader.page.complaints == []


def test_a_click_opens_the_story_and_the_log_of_ones_own_job_only(site: Site, tmp_path: Path) -> None:
    mine, other = site.submit(name="mine"), site.submit("bob", name="theirs")
    site.plane.controller.runs(mine)
    site.plane.write_log(mine, b"epoch 1 <b>loss</b> 0.5\n")
    site.plane.write_log(other, b"private\n")
    with reading(site, tmp_path / "profile") as reader:
        reader.reads("theirs", "#jobs")
        reader.page.evaluate(
            "[...document.querySelectorAll('#jobs tbody tr')].find(r => r.innerText.includes('mine')).click()"
        )
        reader.reads("submitted it to queue default", "#panel-story")
        reader.reads("epoch 1 <b>loss</b> 0.5", "#panel-log")
        reader.reads("sleep 1d", "#panel-facts")
        reader.page.evaluate("dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))")
        reader.sees("document.querySelector('#panel').hidden")
        reader.page.evaluate(f"location.hash = 'job-{other}'")
        reader.reads("only its owner and admins see this", "#panel-log")
        reader.reads("only its owner and admins see this", "#panel-story")
        assert "private" not in reader.page.evaluate("document.body.innerText")


def test_what_users_write_is_shown_and_never_run(site: Site, tmp_path: Path) -> None:
    job_id = site.submit("bob", name=EVIL, labels={"x": EVIL}, run=["sh", "-c", EVIL])
    site.plane.controller.runs(job_id)
    site.plane.write_log(job_id, EVIL.encode() + b"\n")
    waiting = site.submit("bob", name=f"waits {EVIL}", gpus=4, gpu_type="a100")
    with reading(site, tmp_path / "profile", user="root") as reader:
        reader.reads(EVIL, "#jobs")
        for each in (job_id, waiting):
            reader.page.evaluate(f"location.hash = 'job-{each}'")
            reader.reads(EVIL, "#panel")
        reader.page.evaluate(f"location.hash = 'job-{job_id}'")
        reader.reads(EVIL, "#panel-log")
        assert reader.page.evaluate("document.images.length") == 0
        assert reader.page.evaluate("document.title") == "Fairlead"
        # Nor does the page allow it, should something slip through: only its own files may run.
        reader.page.evaluate(
            "document.body.insertAdjacentHTML('beforeend', \"<img src=x: onerror=document.title='broken'>\")"
        )
        time.sleep(0.5)
        assert reader.page.evaluate("document.title") == "Fairlead"


def test_the_page_comes_back_after_the_server_was_away_and_says_so(site: Site, tmp_path: Path) -> None:
    job_id = site.submit(name="before")
    with reading(site, tmp_path / "profile") as reader:
        reader.reads("before", "#jobs")
        site.stop()
        reader.sees("document.querySelector('#link').dataset.state", "lost")
        reader.reads("does not answer", "#link")
        site.start()
        reader.sees("document.querySelector('#link').dataset.state", "live")
        reader.reads("reconnected", "#link")
        site.submit(name="after")
        reader.reads("after", "#jobs")
        assert job_id


def test_a_server_that_has_forgotten_the_session_is_logged_in_to_again(site: Site, tmp_path: Path) -> None:
    site.submit(name="before")
    with reading(site, tmp_path / "profile") as reader:
        cookies = reader.page.call("Network.getCookies")["cookies"]
        site.plane.auth.close_session(cookies[0]["value"])
        site.stop()
        site.start()
        reader.sees("document.querySelector('#login').hidden", False)
        reader.page.evaluate("document.querySelector('#login [name=token]').value = 'fl_wrong'")
        reader.page.evaluate("document.querySelector('#login').requestSubmit()")
        reader.reads("not known", "#login-error")
        reader.page.evaluate(f"document.querySelector('#login [name=token]').value = {site.plane.tokens['ann']!r}")
        reader.page.evaluate("document.querySelector('#login').requestSubmit()")
        reader.sees("document.querySelector('#link').dataset.state", "live")
        reader.sees("document.querySelector('#login').hidden", True)


def test_whoever_is_not_logged_in_gets_a_form_and_with_their_token_the_page(site: Site, tmp_path: Path) -> None:
    assert BROWSER is not None
    with Page(BROWSER, tmp_path / "profile", width=1280, timeout_s=120.0) as page:
        reader = Reader(page)
        reader.go(site.url)
        reader.sees("document.querySelectorAll('input[name=token]').length", 1)
        page.evaluate(f"document.querySelector('input[name=token]').value = {site.plane.tokens['ann']!r}")
        page.evaluate("document.querySelector('form').submit()")
        reader.sees("document.querySelector('#link')?.dataset.state", "live")


def test_without_javascript_the_page_says_that_it_needs_it(site: Site, tmp_path: Path) -> None:
    assert BROWSER is not None
    with Page(BROWSER, tmp_path / "profile", width=1280, timeout_s=120.0) as page:
        page.call("Emulation.setScriptExecutionDisabled", value=True)
        page.call("Page.navigate", url=site.login())
        until = time.monotonic() + PATIENCE_S
        while "needs JavaScript" not in (text := _text_without_scripts(page)) and time.monotonic() < until:
            time.sleep(0.1)
        assert "needs JavaScript" in text


def _text_without_scripts(page: Page) -> str:
    """As a reader of the screen would have it: only what is shown."""
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    return " ".join(str(node.get("name", {}).get("value", "")) for node in nodes)
