"""Thousands of damaged models, in processes of their own: each is read or refused, and none harms.

``make fuzz-models`` does the same for longer, and keeps what fails.
"""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import pytest

from tools.fuzz_case import Case, Failure, make_case
from tools.fuzz_models import fuzz
from tools.fuzz_specimens import Specimen, make_specimens, read_specimens
from tools.fuzz_worker import Workplace
from tools.mutate_bytes import HOSTILE_INTEGERS, mutate_bytes
from tools.mutate_gguf import mutate_gguf
from tools.mutate_json import mutate_json
from tools.mutate_protobuf import mutate_protobuf
from tools.mutate_safetensors import mutate_safetensors

#: Some 40 seconds on two quiet CPUs.
NUM_MUTATIONS = 4000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("specimens")
    make_specimens(made)
    return made


@pytest.fixture(scope="module")
def specimens(folder: Path) -> list[Specimen]:
    return read_specimens(folder)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_damaged_model_is_read_or_refused(folder: Path) -> None:
    findings = fuzz(folder, range(NUM_MUTATIONS), num_workers=2)
    assert findings.failures == {}, "see tools.fuzz_models to repeat a seed"
    assert findings.num_cases == NUM_MUTATIONS
    assert findings.outcomes["read"] > NUM_MUTATIONS // 20
    assert findings.outcomes["inspect: BadModelFile"] > NUM_MUTATIONS // 3
    assert findings.outcomes["tokenizer: BadModelFile"] > 0


def test_a_seed_gives_the_same_damage_again(specimens: list[Specimen]) -> None:
    for seed in range(20):
        first, again = make_case(seed, specimens), make_case(seed, specimens)
        assert (first.files, first.damages) == (again.files, again.damages)
        assert first.damages
        assert first.files != first.specimen.files or "set to" in first.damages[0]


def test_an_error_without_a_type_and_a_refusal_that_names_nothing_are_failures(
    specimens: list[Specimen], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hybridgen.errors import BadModelFile

    sound = specimens[0]
    workplace = Workplace(tmp_path)
    for error in (KeyError("x"), BadModelFile("it is bad", remedy="Fetch it again")):

        def refuse(*_arguments: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr("tools.fuzz_case.inspect_model", refuse)
        with pytest.raises(Failure, match="inspect"):
            workplace.run(Case(sound, sound.files, []))


def test_a_process_that_a_case_ends_is_a_failure_and_the_others_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "tools" / "fuzz_worker.py"
    program.parent.mkdir()
    (program.parent / "__init__.py").touch()
    program.write_text(
        "import os, sys\n"
        "first, stop, step = map(int, sys.argv[3:6])\n"
        "for seed in range(first, stop, step):\n"
        "    print('{\"begin\": %d}' % seed, flush=True)\n"
        "    if seed == 3:\n"
        "        os.abort()\n"
        '    print(\'{"seed": %d, "outcome": "read"}\' % seed, flush=True)\n'
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    findings = fuzz(folder, range(8), num_workers=2)
    assert list(findings.failures) == [3]
    assert "status -6" in findings.failures[3]
    assert findings.outcomes == {"read": 7}


def content_of(specimens: list[Specimen], suffix: str) -> bytes:
    return next(
        content
        for specimen in specimens
        for name, content in specimen.files.items()
        if name.endswith(suffix)
    )


@pytest.mark.parametrize(
    ("suffix", "mutate", "expected"),
    [
        (
            ".gguf",
            mutate_gguf,
            ["count", "of length", "with type", "stands twice", "over", "called"],
        ),
        (".safetensors", mutate_safetensors, ["length", "cut off", "data_offsets", "dtype"]),
        (".hybridgen", mutate_safetensors, ["metadata config", "metadata tokenizer"]),
        (".model", mutate_protobuf, ["has length", "repeated", "with item"]),
    ],
)
def test_every_kind_of_field_is_damaged(
    suffix: str, mutate: object, expected: list[str], specimens: list[Specimen]
) -> None:
    assert callable(mutate)
    content = content_of(specimens, suffix)
    damages = [mutate(content, random.Random(seed)) for seed in range(200)]
    told = " | ".join(what for what, _ in damages)
    assert all(word in told for word in expected), told
    assert sum(damaged != content for _, damaged in damages) > 150


def test_json_gets_values_of_other_kinds_keys_twice_and_nesting() -> None:
    text = json.dumps({"a": 5, "b": {"c": [1.5, "x", True]}, "t": "{% if x %}{% endif %}"})
    damaged = [mutate_json(text, random.Random(seed))[1] for seed in range(3000)]
    for sign in ("NaN", "[[[[[[[[", '"a": 5, "b"', "1e400", str(2**64 - 1), "__class__", "\\ud800"):
        assert any(sign in item for item in damaged), sign
    assert any(item.count('"a":') == 2 for item in damaged)


def test_counts_of_2_64_and_lengths_of_2_40_are_among_the_integers() -> None:
    assert {0, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1} <= set(HOSTILE_INTEGERS)
    content = bytes(64)
    written = [mutate_bytes(content, random.Random(seed))[1] for seed in range(400)]
    assert any(struct.pack("<Q", 2**64 - 1) in item for item in written)
