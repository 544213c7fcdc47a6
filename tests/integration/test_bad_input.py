"""Bad input is answered at once, by name, and the server goes on unharmed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridgen import SamplingParams
from hybridgen.errors import ContextLengthExceeded, HybridGenError, InvalidRequest
from tests.support.running_tree import RunningTree, running_tree

pytestmark = pytest.mark.slow
EXIT_USAGE, EXIT_BAD_MODEL, EXIT_UNAVAILABLE, EXIT_ALREADY_RUNNING = 2, 65, 69, 75


@pytest.fixture(scope="module")
def tree() -> Iterator[RunningTree]:
    with running_tree(model="mock", mock_max_model_len=256) as running:
        yield running


def still_answers(tree: RunningTree) -> bool:
    return len(tree.client.generate("ok", SamplingParams(max_tokens=4)).token_ids) > 0


@pytest.mark.parametrize(
    ("prompt", "params", "error", "word"),
    [
        ("x" * 256, SamplingParams(), ContextLengthExceeded, "256"),
        ("x" * 255, SamplingParams(max_tokens=100), ContextLengthExceeded, "max_tokens"),
        ("x" * 100_000, SamplingParams(), ContextLengthExceeded, "100000"),
        ("", SamplingParams(), InvalidRequest, "empty"),
        ([1, 2, 100_000], SamplingParams(), InvalidRequest, "100000"),
        ([-1], SamplingParams(), InvalidRequest, "-1"),
        ("x", SamplingParams(temperature=-1), InvalidRequest, "temperature"),
        ("x", SamplingParams(temperature=float("nan")), InvalidRequest, "temperature"),
        ("x", SamplingParams(top_p=0), InvalidRequest, "top_p"),
        ("x", SamplingParams(top_k=-2), InvalidRequest, "top_k"),
        ("x", SamplingParams(min_p=1.5), InvalidRequest, "min_p"),
        ("x", SamplingParams(max_tokens=0), InvalidRequest, "max_tokens"),
        ("x", SamplingParams(min_tokens=5, max_tokens=4), InvalidRequest, "min_tokens"),
        ("x", SamplingParams(logit_bias={512: 1.0}), InvalidRequest, "logit_bias"),
        ("x", SamplingParams(logit_bias={1: float("inf")}), InvalidRequest, "logit_bias"),
        ("x", SamplingParams(stop=("a",) * 5), InvalidRequest, "stop"),
        ("x", SamplingParams(stop=("",)), InvalidRequest, "stop"),
        ("x", SamplingParams(stop=("a" * 257,)), InvalidRequest, "stop"),
        ("x", SamplingParams(stop_token_ids=(512,)), InvalidRequest, "stop_token_ids"),
        ("x", SamplingParams(seed=2**64), InvalidRequest, "seed"),
        ("x", SamplingParams(logprobs=21), InvalidRequest, "logprobs"),
        ([{"role": "wizard", "content": "x"}], SamplingParams(), InvalidRequest, "wizard"),
        ([{"role": "user"}], SamplingParams(), InvalidRequest, "content"),
    ],
)
def test_bad_requests_get_a_typed_error_at_once(
    tree: RunningTree,
    prompt: object,
    params: SamplingParams,
    error: type[HybridGenError],
    word: str,
) -> None:
    started_s = time.perf_counter()
    with pytest.raises(error) as caught:
        tree.client.generate(prompt, params)
    assert word in str(caught.value)
    assert caught.value.fields.get("remedy")
    assert time.perf_counter() - started_s < 0.5
    assert still_answers(tree)


def test_a_malformed_order_is_answered_and_counted(tree: RunningTree) -> None:
    from tests.support.raw_dealer import send_raw_order

    reply = send_raw_order(
        tree.handle.uri,
        {"type": "SubmitRequest", "request_id": b"r" * 16, "surprise": 1},
    )
    assert reply.request_id == b"r" * 16
    assert reply.error is not None
    assert reply.error.code == "invalid_request"
    assert "surprise" in reply.error.message
    assert still_answers(tree)


def run_serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "hybridgen", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_an_unknown_model_is_refused(tmp_path: Path) -> None:
    done = run_serve(str(tmp_path / "nothing.gguf"))
    assert done.returncode in (EXIT_USAGE, EXIT_BAD_MODEL)
    assert "nothing.gguf" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF" + b"\xff" * 100)
    done = run_serve(str(path))
    assert done.returncode == EXIT_BAD_MODEL
    assert "bad.gguf" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_chat_template_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text("{% for %}")
    done = run_serve("mock", "--chat-template", str(path))
    assert done.returncode == EXIT_BAD_MODEL
    assert "template" in done.stderr
    assert done.stderr.count("Traceback") == 0


def test_a_runtime_directory_in_use_is_refused(tree: RunningTree) -> None:
    runtime_dir = tree.handle.uri.removeprefix("hybridgen://")
    done = run_serve("mock", "--runtime-dir", runtime_dir)
    assert done.returncode == EXIT_ALREADY_RUNNING
    assert str(tree.handle.pid) in done.stderr
    assert still_answers(tree)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["mock", "--max-num-seqs", "0"], "max-num-seqs"),
        (["mock", "--max-num-seqs", "many"], "max-num-seqs"),
        (["mock", "--no-such-flag"], "no-such-flag"),
        (["mock", "--dtype", "int3"], "dtype"),
        (["demo", "--device", "cuda"], "cuda"),
    ],
)
def test_bad_flags_are_refused_by_name(arguments: list[str], word: str) -> None:
    done = run_serve(*arguments)
    assert done.returncode == EXIT_USAGE
    assert word in done.stderr
    assert "Traceback" not in done.stderr
