"""A headless Chromium, driven through its DevTools protocol over a pair of pipes."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.eventually import eventually

#: Names the browser to use; otherwise one of these is looked for.
VARIABLE = "HYBRIDGEN_TEST_BROWSER"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_ANSWER_S = 20.0
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # it shows pages of ours only, and cannot make one as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-pipe",
)


def find_browser() -> str | None:
    """Path of a Chromium, or ``None``."""
    named = os.environ.get(VARIABLE)
    return named or next(filter(None, map(shutil.which, _NAMES)), None)


class Page:
    """One tab. Its script is looked into, its keys are typed, its picture is taken."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to_browser = to_browser
        self._from_browser = from_browser
        self._buffer = b""
        self._last_id = 0
        self._session: str | None = None
        #: Texts of the page's own console, errors and breaches of its policy among them.
        self.complaints: list[str] = []

    def attach(self) -> None:
        """Take the tab that the browser opened."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    # --- what a person does ---------------------------------------------------------------------

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && document.querySelector('main')")

    def resize(self, width: int, height: int, *, is_phone: bool = False) -> None:
        """Size of the page in CSS pixels."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if is_phone else 1,
            mobile=is_phone,
        )

    def prefer(self, scheme: str) -> None:
        """The system's colours: light or dark."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.send("Emulation.setEmulatedMedia", features=[feature])

    def type(self, text: str) -> None:
        """Text at once, where the focus is."""
        self.send("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False) -> None:
        """One key, by the name that DOM events use."""
        code = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowRight": 39, "ArrowLeft": 37}[key]
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        text = {"text": "\r"} if key == "Enter" else {}
        shifted = {"modifiers": 8 if shift else 0}
        self.send("Input.dispatchKeyEvent", type="keyDown", **common, **text, **shifted)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common, **shifted)

    # --- what a person sees ---------------------------------------------------------------------

    def value(self, expression: str) -> Any:
        """Value of a JavaScript expression, which may be a promise."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """Text of the first element that matches, as it is displayed."""
        return str(self.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def until(self, expression: str, timeout_s: float = 15.0) -> None:
        """Wait until an expression is true."""
        eventually(lambda: self.value(f"!!({expression})") is True, timeout_s)

    def picture(self) -> bytes:
        """The page as PNG."""
        return base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])

    # --- the protocol ---------------------------------------------------------------------------

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One order of the protocol; its result."""
        self._last_id += 1
        order = {"id": self._last_id, "method": method, "params": params}
        if self._session is not None:
            order["sessionId"] = self._session
        os.write(self._to_browser, json.dumps(order).encode() + b"\0")
        deadline = time.monotonic() + _ANSWER_S
        while True:
            message = self._next_message(deadline)
            if message.get("id") == self._last_id:
                assert "error" not in message, (method, message["error"])
                return dict(message["result"])
            self._note(message)

    def _next_message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left_s = deadline - time.monotonic()
            is_there = left_s > 0 and select.select([self._from_browser], [], [], left_s)[0]
            assert is_there, "the browser does not answer"
            piece = os.read(self._from_browser, 1 << 16)
            assert piece, "the browser ended"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"]))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url')}")


@contextmanager
def open_browser() -> Iterator[Page]:
    """A browser with a profile of its own, gone at the end."""
    path = find_browser()
    assert path is not None
    orders_out, orders_in = os.pipe()
    answers_out, answers_in = os.pipe()
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        # The browser reads orders from descriptor 3 and writes answers to 4.
        launch = f'exec "$@" 3<&{orders_out} 4>&{answers_in}'
        options = [*_OPTIONS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            ["bash", "-c", launch, "browser", path, *options],  # noqa: S607
            pass_fds=(orders_out, answers_in),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(orders_out)
        os.close(answers_in)
        try:
            page = Page(orders_in, answers_out)
            page.attach()
            yield page
        finally:
            os.close(orders_in)  # the browser ends with it
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
            os.close(answers_out)
