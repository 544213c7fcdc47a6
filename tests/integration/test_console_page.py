"""The console in a real browser, before a real tree whose model is a mock."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.browser import VARIABLE, Page, find_browser, open_browser
from tests.support.eventually import eventually
from tests.support.free_port import free_port
from tests.support.running_tree import RunningTree, running_tree

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        find_browser() is None, reason=f"no Chromium on PATH; {VARIABLE} can name one"
    ),
]

KEY = "key-of-the-console-test"
STEP_US = 5000
#: Texts and the grounds they stand on: [contrast, text] of each that is visible.
CONTRASTS = """
(() => {
  const channels = (color) => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d");
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (color) => {
    const parts = channels(color).slice(0, 3).map((byte) => {
      const share = byte / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const groundOf = (node) => {
    for (; node !== null; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      if (channels(color)[3] > 0) return color;
    }
    return "white";
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].filter((child) => child.nodeType === 3);
    const text = own.map((child) => child.data).join("").trim();
    if (text === "" || !node.checkVisibility() || node.closest("svg")) continue;
    const [a, b] = [luminance(getComputedStyle(node).color), luminance(groundOf(node))];
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), text.slice(0, 30)]);
  }
  return found;
})()
"""
NAMELESS = """
[...document.querySelectorAll("button, input, textarea, select, summary, pre[tabindex], svg[role]")]
  .filter((node) => node.checkVisibility())
  .filter((node) => !(node.ariaLabel || node.labels?.length || node.textContent.trim()))
  .map((node) => node.outerHTML)
"""
LONG_NAMES = (
    "for (const one of document.querySelectorAll('#server-facts, #status, h3, .name, .set'))"
    " one.textContent = 'long name '.repeat(9) + 'x'.repeat(99)"
)
ANSWER = "[...document.querySelectorAll('.turn:not(.user)')].at(-1)"


class Visitor:
    """A person at the console."""

    def __init__(self, page: Page, tree: RunningTree, port: int) -> None:
        self.page = page
        self.tree = tree
        self.url = f"http://127.0.0.1:{port}/"

    def come(self, *, knows_key: bool = True) -> Page:
        page = self.page
        page.resize(1280, 800)
        page.prefer("light")
        page.complaints.clear()
        page.open(self.url)
        kept = json.dumps(KEY if knows_key else "")
        page.value(f"sessionStorage.setItem('hybridgen-key', {kept})")
        page.complaints.clear()
        page.open(self.url)
        if knows_key:
            self.is_ready()
        return page

    def is_ready(self) -> None:
        self.page.until("document.querySelector('#status').textContent === 'ready'")
        self.page.until("document.querySelector('[name=model]').value === 'mock'")

    def set(self, **fields: object) -> None:
        for name, value in fields.items():
            place = f"document.querySelector('[name={name}]')"
            self.page.value(f"{place}.value = {json.dumps(str(value))}")

    def say(self, text: str, **fields: object) -> None:
        self.set(**fields)
        self.page.value("document.getElementById('message').focus()")
        self.page.type(text)
        self.page.press("Enter")

    def is_answered(self) -> str:
        self.page.until(f"{ANSWER}?.getAttribute('aria-busy') === 'false'", 30.0)
        return self.page.text(".turn:last-child")

    def is_streaming(self, num_chars: int = 1) -> None:
        self.page.until(f"{ANSWER}?.querySelector('.text')?.textContent.length >= {num_chars}")


@pytest.fixture(scope="module")
def visitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(KEY)
    keys.chmod(0o600)
    port = free_port()
    options = {"mock_step_us": STEP_US, "mock_eos_bias": -100.0, "pool_restart_limit": 100}
    with (
        running_tree(
            model="mock", num_gateways=1, port=port, api_key_file=str(keys), **options
        ) as tree,
        open_browser() as page,
    ):
        yield Visitor(page, tree, port)


# --- coming in ----------------------------------------------------------------------------------


def test_the_page_asks_for_a_key_and_keeps_it_for_the_tab_only(visitor: Visitor) -> None:
    page = visitor.come(knows_key=False)
    page.until("document.getElementById('key-dialog').open")
    assert "API key" in page.text("#key-dialog")
    page.type("wrong")
    page.press("Enter")
    page.until("document.getElementById('key-reason').innerText.includes('not accepted')")
    page.until("document.getElementById('key-dialog').open")
    page.type(KEY)
    page.press("Enter")
    visitor.is_ready()
    assert not page.value("document.getElementById('key-dialog').open")
    assert page.value("sessionStorage.getItem('hybridgen-key')") == KEY
    stored = page.value("JSON.stringify(localStorage) + document.cookie + location.href")
    assert KEY not in stored
    page.value("document.getElementById('curl').open = true")
    page.until("document.getElementById('curl-line').textContent.includes('$KEY')")
    assert KEY not in page.value("document.body.textContent")


# --- chatting -----------------------------------------------------------------------------------


def test_a_chat_by_keyboard_gives_the_text_that_the_api_gives(visitor: Visitor) -> None:
    page = visitor.come()
    visitor.set(max_tokens=24, seed=7)
    page.value("document.getElementById('message').focus()")
    page.type("one")
    page.press("Enter", shift=True)
    page.type("two")
    page.press("Enter")
    shown = visitor.is_answered()
    assert "24 tokens" in shown
    assert "tokens/s" in shown
    assert page.value("document.getElementById('message').value") == ""
    body = {"messages": [{"role": "user", "content": "one\ntwo"}], "max_tokens": 24, "seed": 7}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    request = {"method": "POST", "headers": headers, "body": json.dumps({"model": "mock", **body})}
    expected = page.value(
        f"fetch('/v1/chat/completions', {json.dumps(request)}).then((answer) => answer.json())"
        ".then((answer) => answer.choices[0].message.content)"
    )
    assert page.value(f"{ANSWER}.querySelector('.text').textContent") == expected
    page.until("document.querySelector('#gap-plot .trace').getAttribute('d').length > 40")
    page.until("document.querySelectorAll('#first-plot .bar').length === 1")
    assert page.complaints == []


def test_escape_stops_a_stream_and_the_server_lets_go(visitor: Visitor) -> None:
    page = visitor.come()
    visitor.say("Go on", max_tokens=2000)
    visitor.is_streaming()
    assert page.text("#send-button") == "Stop"
    page.press("Escape")
    assert "stopped" in visitor.is_answered()
    assert page.text("#send-button") == "Send"
    eventually(lambda: visitor.tree.client.health().num_running == 0, 5.0)


def test_texts_are_never_markup(visitor: Visitor) -> None:
    page = visitor.come()
    hostile = "<img src=x onerror=document.title='broken'><script>1</script>"
    visitor.say(hostile, max_tokens=2)
    visitor.is_answered()
    assert page.value("document.querySelector('.turn.user .text').textContent") == hostile
    assert page.value("document.querySelectorAll('#log img, #log script').length") == 0
    assert page.value("document.title") == "HybridGen console"


def test_a_refusal_leads_to_its_parameter_and_can_be_tried_again(visitor: Visitor) -> None:
    page = visitor.come()
    visitor.say("Hello", top_p=7, max_tokens=4)
    shown = visitor.is_answered()
    assert "top_p" in shown
    assert page.value("document.activeElement.name") == "top_p"
    assert page.value("document.activeElement.getAttribute('aria-invalid')") == "true"
    visitor.set(top_p=1)
    page.value("document.querySelector('.error button').click()")
    page.until("document.querySelector('.error') === null")
    assert "4 tokens" in visitor.is_answered()


# --- when processes die -------------------------------------------------------------------------


def test_a_replaced_process_is_seen_and_the_stream_goes_on(visitor: Visitor) -> None:
    page = visitor.come()
    visitor.say("Go on", max_tokens=900)
    visitor.is_streaming(20)
    visitor.tree.kill("sampler-0")
    page.until(
        "document.querySelector('.turn .note')?.innerText.includes('sampler-0 was replaced')"
    )
    assert "900 tokens" in visitor.is_answered()
    assert "restarted 1×" in page.text("#process-list li:nth-child(4)")
    assert "1×" in page.text("#map [data-role=sampler]")
    assert "sampler-0 was replaced" in page.text("#events")
    page.until("document.querySelectorAll('#gap-plot .event').length === 1")
    assert page.complaints == []


def test_a_stream_that_breaks_says_so_and_the_page_recovers(visitor: Visitor) -> None:
    page = visitor.come()
    visitor.say("Go on", max_tokens=2000)
    visitor.is_streaming(20)
    visitor.tree.kill("gateway-0")
    shown = visitor.is_answered()
    assert "broke before the answer was complete" in shown
    assert "broken off" in shown
    page.until("document.getElementById('events').innerText.includes('gateway-0 was replaced')")
    visitor.set(max_tokens=4)
    page.value("document.querySelector('.error button').click()")
    page.until("document.querySelector('.error') === null")
    assert "4 tokens" in visitor.is_answered()


# --- looks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [320, 360, 768, 1280])
@pytest.mark.parametrize("view", ["chat", "server"])
def test_nothing_is_wider_than_the_page(visitor: Visitor, width: int, view: str) -> None:
    page = visitor.come()
    page.resize(width, 640, is_phone=width < 700)
    page.value(f"document.getElementById('view-{view}').click()")
    page.value("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    for place in ("document.documentElement", f"document.getElementById('{view}')"):
        assert page.value(f"{LONG_NAMES}; {place}.scrollWidth - {place}.clientWidth") <= 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_ground(visitor: Visitor, scheme: str) -> None:
    page = visitor.come()
    page.prefer(scheme)
    visitor.say("Hello", max_tokens=4, temperature=-1)
    visitor.is_answered()
    contrasts = page.value(CONTRASTS)
    assert len(contrasts) > 40
    assert [one for one in contrasts if one[0] < 4.5] == []


def test_every_control_has_a_name_and_is_reached_in_order(visitor: Visitor) -> None:
    page = visitor.come()
    assert page.value(NAMELESS) == []
    page.value("document.activeElement.blur()")
    reached = []
    for _ in range(9):
        page.press("Tab")
        reached.append(page.value("document.activeElement.id || document.activeElement.tagName"))
    assert reached[0] == "A"  # the way past everything
    assert [one for one in reached if one.startswith(("message", "send", "log"))] == [
        "log",
        "message",
        "send-button",
    ]


def test_the_theme_is_switched_and_remembered(visitor: Visitor) -> None:
    page = visitor.come()
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.value(ground)
    for _ in range(2):
        page.value("document.getElementById('theme-button').click()")
    dark = page.value(ground)
    assert dark != light
    page.open(visitor.url)
    assert page.value(ground) == dark
    page.value("document.getElementById('theme-button').click()")
    assert page.value(ground) == light
