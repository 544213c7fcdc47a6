from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.config import Config
from hybridgen.errors import BadModelFile, InvalidRequest
from hybridgen.formats.mock_model import BOS_ID, EOS_ID, mock_model
from hybridgen.formats.tokenizer_spec import TokenizerSpec
from hybridgen.text.tokenizer import Tokenizer, build_tokenizer, token_bytes

MOCK = build_tokenizer(mock_model(Config()).tokenizer)


@given(st.text())
def test_mock_tokenizer_is_bytes(text: str) -> None:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        with pytest.raises(InvalidRequest):
            MOCK.encode(text)
        return
    assert MOCK.encode(text) == [*data]
    assert MOCK.decode([*data]) == text


def test_special_tokens_need_permission() -> None:
    assert MOCK.encode("a<|eos|>") == [*b"a<|eos|>"]
    assert MOCK.encode("<|bos|>a<|eos|>", allow_special=True) == [BOS_ID, 97, EOS_ID]
    assert MOCK.decode([BOS_ID, 97, EOS_ID]) == "a"
    assert MOCK.decode([BOS_ID, 97, EOS_ID], skip_special=False) == "<|bos|>a<|eos|>"


@pytest.mark.parametrize("bad_id", [-1, 512, 2**40])
def test_ids_outside_the_vocabulary_are_refused(bad_id: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        MOCK.decode([97, bad_id])
    assert caught.value.fields["value"] == bad_id


def test_lone_surrogate_is_refused_with_its_place(smollm2: Tokenizer) -> None:
    for tokenizer in (smollm2, MOCK):
        with pytest.raises(InvalidRequest) as caught:
            tokenizer.encode("ab\ud800c")
        assert caught.value.fields["value"] == "U+D800 at character 2"


def test_token_bytes_are_those_of_the_whole_tokenizer(
    smollm2_spec: TokenizerSpec, smollm2: Tokenizer
) -> None:
    vocabulary = token_bytes(smollm2_spec)
    assert vocabulary.token_bytes == smollm2.token_bytes
    assert vocabulary.special_ids == smollm2.special_ids
    assert smollm2.vocab_size == 49_152
    assert len(smollm2.special_ids) == 17
    assert smollm2.token_bytes[1] == b"<|im_start|>"


def test_mock_tokens_outside_latin_1_are_a_bad_model_file() -> None:
    with pytest.raises(BadModelFile):
        build_tokenizer(TokenizerSpec(kind="mock", tokens=["日"]))


def test_detokenizing_loads_no_encoder_library() -> None:
    program = (
        "import sys; import hybridgen.text.text_stream, hybridgen.text.tokenizer as t;"
        "from hybridgen.config import Config; from hybridgen.formats.mock_model import mock_model;"
        "t.token_bytes(mock_model(Config()).tokenizer);"
        "heavy = {'tokenizers', 'sentencepiece', 'jinja2', 'torch', 'numpy', 'transformers'};"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    assert done.returncode == 0
