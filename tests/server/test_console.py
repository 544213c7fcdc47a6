from __future__ import annotations

import re
from pathlib import Path

import pytest

from hybridgen.server.auth import ApiKeys
from hybridgen.server.console import PAGE_DIR, PageFile, console_routes
from tests.support.asgi_driver import Visit, ask
from tests.support.front_door import make_app, play
from tests.support.scripted_backend import ScriptedBackend

FILES = sorted(path.name for path in PAGE_DIR.iterdir())
PATHS = {name: "/" if name == "index.html" else f"/console/{name}" for name in FILES}
TEXTS = {name: (PAGE_DIR / name).read_text() for name in FILES}
MAX_LINES = 400
MAX_PAGE_BYTES = 128 * 1024


def visit(path: str, method: str = "GET", *, has_console: bool = True, **options: object) -> Visit:
    visits: list[Visit] = []

    async def scene() -> None:
        keys = ApiKeys(["secret"])
        app = make_app(ScriptedBackend(), keys=keys, has_console=has_console)
        visits.append(await ask(app, method, path, **options))

    play(scene())
    return visits[0]


# --- serving ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_served_without_a_key_and_as_what_it_is(name: str) -> None:
    answer = visit(PATHS[name])
    assert answer.status == 200
    assert answer.body == (PAGE_DIR / name).read_bytes()
    kinds = {".html": "text/html", ".css": "text/css", ".mjs": "text/javascript"}
    assert answer.headers["content-type"].startswith(kinds.get(Path(name).suffix, "image/svg+xml"))
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"


def test_the_policy_lets_in_only_files_of_this_server() -> None:
    policy = visit("/").headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["frame-ancestors"] == "'none'"
    assert "unsafe" not in policy
    assert "*" not in policy
    for kind in ("script-src", "style-src", "connect-src", "img-src"):
        assert rules[kind] == "'self'"


@pytest.mark.parametrize("given", ["{}", "W/{}", '"other", {}', "*"])
def test_a_browser_that_has_a_file_gets_no_second_copy(given: str) -> None:
    etag = visit("/").headers["etag"]
    answer = visit("/", headers={"if-none-match": given.format(etag)})
    assert answer.status == 304
    assert answer.body == b""
    assert answer.headers["etag"] == etag
    assert "content-length" not in answer.headers
    assert "content-security-policy" in answer.headers


def test_a_browser_with_another_version_gets_the_file() -> None:
    assert visit("/", headers={"if-none-match": '"other"'}).status == 200
    assert visit("/").headers["etag"] != visit("/console/main.mjs").headers["etag"]


def test_a_head_has_the_length_and_no_body() -> None:
    answer = visit("/", "HEAD")
    assert answer.status == 200
    assert answer.body == b""
    assert int(answer.headers["content-length"]) == len(TEXTS["index.html"].encode())


def test_only_what_is_there_is_served() -> None:
    assert visit("/", "POST").status == 401
    for path in ("/console/", "/console/index.html", "/console/../app.py", "/console/..", "//"):
        assert visit(path, headers={"authorization": "Bearer secret"}).status == 404, path


def test_without_the_console_there_is_nothing() -> None:
    for path in ("/", "/console/main.mjs"):
        key = {"authorization": "Bearer secret"}
        assert visit(path, has_console=False, headers=key).status == 404


def test_a_file_of_an_unknown_kind_is_not_served(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<p>")
    assert [route.path for route in console_routes(tmp_path)] == ["/"]
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(KeyError):
        PageFile.read(tmp_path / "notes.txt")


# --- what the page is made of -------------------------------------------------------------------


def test_everything_the_page_names_is_there() -> None:
    named = set(re.findall(r'(?:src|href)="([^"#]+)"', TEXTS["index.html"]))
    assert named <= set(PATHS.values())
    for name in FILES:
        if name.endswith(".mjs"):
            imported = re.findall(r'from "\./([^"]+)"', TEXTS[name])
            assert set(imported) <= set(FILES), name
            assert len(re.findall(r"^import ", TEXTS[name], re.MULTILINE)) == len(imported)


def test_every_element_that_scripts_look_for_is_on_the_page() -> None:
    ids = set(re.findall(r'\bid="([^"]+)"', TEXTS["index.html"]))
    for name in FILES:
        assert set(re.findall(r'byId\("([^"]+)"\)', TEXTS[name])) <= ids, name


def test_nothing_is_inline_or_from_elsewhere() -> None:
    assert not re.search(r"<style|\bstyle=|\bon\w+=|<script(?! src)", TEXTS["index.html"])
    for name, text in TEXTS.items():
        urls = set(re.findall(r"https?://[^\s\"'`)]+", text))
        assert urls <= {"http://www.w3.org/2000/svg"}, name


def test_no_text_becomes_markup_or_a_program() -> None:
    for name, text in TEXTS.items():
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|\bdocument\.write|\beval\(", text)
        assert not re.search(r"new Function|setHTML|DOMParser|srcdoc", text), name


def test_the_page_is_small() -> None:
    assert max(text.count("\n") for text in TEXTS.values()) <= MAX_LINES
    assert sum(len(text.encode()) for text in TEXTS.values()) <= MAX_PAGE_BYTES
