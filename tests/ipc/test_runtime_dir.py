"""Runtime directories: private, held by one server, found by its clients."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.errors import AlreadyRunning, ConfigError, NotPermitted, PeerGone
from hybridgen.ipc.runtime_dir import MAX_SOCKET_PATH_BYTES, RuntimeDir, parse_uri
from tests.support.eventually import eventually


@pytest.fixture(autouse=True)
def base_dir(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_dir / "run"))


def addresses(runtime: RuntimeDir) -> list[str]:
    ends = runtime.endpoints
    return [ends.clients, ends.workers, ends.admin, ends.text(0), ends.text(63)]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_a_fresh_directory_is_private_whatever_the_umask(short_dir: Path, umask: int) -> None:
    (short_dir / "run").mkdir()
    old = os.umask(umask)
    try:
        runtime = RuntimeDir.create(None, "abcd")
    finally:
        os.umask(old)
    assert runtime.path.stat().st_mode & 0o777 == 0o700
    assert runtime.path.parent == short_dir / "run"
    assert "abcd" in runtime.path.name
    runtime.remove()
    assert not runtime.path.exists()


def test_addresses_differ_and_are_the_same_for_server_and_client(short_dir: Path) -> None:
    runtime = RuntimeDir.create(short_dir / "d", "i")
    opened = RuntimeDir.open(parse_uri(runtime.uri))
    assert addresses(opened) == addresses(runtime)
    assert len(set(addresses(runtime))) == 5
    assert all(address.startswith(f"ipc://{short_dir}/d/") for address in addresses(runtime))
    runtime.remove()


@pytest.mark.parametrize("length", [60, 92, 93, 94, 200])
def test_every_socket_path_fits_its_limit_however_deep_the_directory(
    short_dir: Path, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = short_dir / ("x" * (length - len(str(short_dir)) - 1))
    assert len(str(deep)) == length
    runtime = RuntimeDir.create(deep, "i")
    paths = [Path(address.removeprefix("ipc://")) for address in addresses(runtime)]
    assert all(len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES for path in paths)
    assert all(path.parent.stat().st_mode & 0o777 == 0o700 for path in paths)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nonexistent")
    assert addresses(RuntimeDir.open(deep)) == addresses(runtime), "another environment"
    runtime.remove()
    assert not deep.exists()
    assert not paths[0].parent.exists()


def test_a_second_server_in_the_same_directory_is_refused_and_told_the_pid(
    short_dir: Path,
) -> None:
    runtime = RuntimeDir.create(short_dir / "d", "i")
    with pytest.raises(AlreadyRunning) as caught:
        RuntimeDir.create(short_dir / "d", "j")
    assert caught.value.fields["pid"] == os.getpid()
    assert caught.value.exit_code == 75
    runtime.remove()


def test_a_killed_servers_directory_is_taken_over_and_its_sockets_are_swept(
    short_dir: Path,
) -> None:
    script = (
        "import sys, time; from pathlib import Path\n"
        "from hybridgen.ipc.runtime_dir import RuntimeDir\n"
        "held = RuntimeDir.create(Path(sys.argv[1]), 'i')\n"
        "(held.path / 'clients.sock').touch(); print('up', flush=True); time.sleep(60)\n"
    )
    path = short_dir / "d"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        server.stdout.readline()
        with pytest.raises(AlreadyRunning) as caught:
            RuntimeDir.create(path, "j")
        assert caught.value.fields["pid"] == server.pid
        server.kill()
    eventually(lambda: server.poll() is not None)
    runtime = RuntimeDir.create(path, "j")
    assert sorted(entry.name for entry in path.iterdir()) == ["lock"]
    runtime.remove()


def test_files_of_others_survive_removal(short_dir: Path) -> None:
    runtime = RuntimeDir.create(short_dir / "d", "i")
    (runtime.path / "notes.txt").write_text("mine")
    runtime.remove()
    runtime.remove()
    assert [entry.name for entry in (short_dir / "d").iterdir()] == ["notes.txt"]


def test_an_open_directory_is_refused_with_the_remedy(short_dir: Path) -> None:
    (short_dir / "d").mkdir()
    (short_dir / "d").chmod(0o755)
    with pytest.raises(ConfigError, match="chmod 700"):
        RuntimeDir.create(short_dir / "d", "i")


@pytest.mark.parametrize("kind", ["file", "link", "below a file"])
def test_what_is_no_directory_is_refused(short_dir: Path, kind: str) -> None:
    path = short_dir / "d"
    if kind == "link":
        (short_dir / "elsewhere").mkdir(mode=0o700)
        path.symlink_to(short_dir / "elsewhere")
    else:
        path.touch()
    with pytest.raises(ConfigError):
        RuntimeDir.create(path / "e" if kind == "below a file" else path, "i")


def test_a_client_of_no_server_is_told_so(short_dir: Path) -> None:
    with pytest.raises(PeerGone, match="hybridgen serve"):
        RuntimeDir.open(short_dir / "nothing")


@pytest.mark.parametrize("length", [255, 256, 5000])
def test_a_name_longer_than_files_have_is_that_of_no_server(length: int) -> None:
    path = Path("/run") / ("a" * length)
    assert parse_uri(RuntimeDir(path).uri) == path
    with pytest.raises(PeerGone, match="no server runs there"):
        RuntimeDir.open(path)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_a_uri_names_its_directory_whatever_its_letters(name: str) -> None:
    path = Path("/run") / name.replace("/", "_")
    assert parse_uri(RuntimeDir(path).uri) == path


@pytest.mark.parametrize(
    "uri", ["", "/run/x", "hybridgen://run/x", "http:///run/x", "hybridgen://", "hybridgen:///a%00"]
)
def test_what_is_no_uri_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match="hybridgen://"):
        parse_uri(uri)


def test_a_name_that_no_socket_address_can_carry_is_refused(short_dir: Path) -> None:
    path = short_dir / os.fsdecode(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        RuntimeDir.create(path, "0")
    assert not path.exists()


def test_a_directory_that_the_user_may_not_make_exits_77(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(NotPermitted) as caught:
        RuntimeDir.create(tmp_path / "run", "cafe")
    assert caught.value.exit_code == 77
