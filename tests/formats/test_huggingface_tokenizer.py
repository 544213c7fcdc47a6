from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, processors

from hybridgen.errors import BadModelFile
from hybridgen.formats.huggingface_tokenizer import tokenizer_spec
from hybridgen.formats.tokenizer_spec import TokenizerSpec
from hybridgen.text.tokenizer import build_tokenizer
from tests.models.tiny_model import tiny_config
from tests.text.tiny_sentencepiece import train_sentencepiece

CONFIG = tiny_config(vocab_size=500, bos_id=3, eos_ids=[4])


def write_fast(folder: Path, processor: Any = None) -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text) for text in ("<s>", "</s>", "<eot>")])
    if processor is not None:
        tokenizer.post_processor = processor
    tokenizer.save(str(folder / "tokenizer.json"))


def spec_of(folder: Path, bos: Any = "", eos: Any = "", **settings: Any) -> TokenizerSpec:
    named = {"bos_token": bos, "eos_token": eos}
    settings |= {key: value for key, value in named.items() if value != ""}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer_spec(folder, CONFIG)


def test_the_tokenizers_own_end_comes_first(tmp_path: Path) -> None:
    write_fast(tmp_path)
    assert spec_of(tmp_path, eos="</s>").eos_ids == [3, 4]
    assert spec_of(tmp_path, eos={"content": "<eot>"}).eos_ids == [4]
    assert spec_of(tmp_path, eos="gone").eos_ids == [4]
    assert spec_of(tmp_path).eos_ids == [4]


def test_a_tokenizer_may_say_that_there_is_no_beginning(tmp_path: Path) -> None:
    write_fast(tmp_path)
    assert spec_of(tmp_path, bos="<s>").bos_id == 2
    assert spec_of(tmp_path, bos=None).bos_id is None
    assert spec_of(tmp_path).bos_id == 3


def template(*pieces: str) -> processors.TemplateProcessing:
    ids = [("<s>", 2), ("</s>", 3)]
    return processors.TemplateProcessing(" ".join(pieces), None, ids)


@pytest.mark.parametrize(
    ("processor", "adds_bos"),
    [
        (None, False),
        (template("<s>", "$A"), True),
        (template("$A", "</s>"), False),
        (template("$A", "<s>"), False),
        (processors.Sequence([processors.ByteLevel(), template("<s>", "$A")]), True),
    ],
)
def test_the_post_processor_tells_whether_text_gets_a_beginning(
    tmp_path: Path, processor: Any, adds_bos: bool
) -> None:
    write_fast(tmp_path, processor)
    assert spec_of(tmp_path, bos="<s>").add_bos == adds_bos
    assert spec_of(tmp_path, bos="<s>", add_bos_token=not adds_bos).add_bos != adds_bos


def test_tokens_that_the_settings_add_to_a_tokenizer_model(tmp_path: Path) -> None:
    train_sentencepiece(tmp_path).rename(tmp_path / "tokenizer.model")
    spec = spec_of(
        tmp_path,
        eos="<|end|>",
        added_tokens_decoder={
            "450": {"content": "<|end|>", "special": True, "rstrip": True, "normalized": False},
            "451": {"content": "<think>", "special": False},
        },
    )
    assert spec.eos_ids == [450, 4]
    tokenizer = build_tokenizer(spec)
    hello = tokenizer.encode("hello")
    assert tokenizer.encode("hello<|end|> <think>hello", allow_special=True) == [
        *hello, 450, 451, *hello,
    ]  # fmt: skip
    assert 450 not in tokenizer.encode("<|end|>")
    assert tokenizer.decode([451, *hello, 450]) == "<think> hello"


@pytest.mark.parametrize(
    "added", [{"x": {"content": "a"}}, {"5": {}}, {"5": 3}, {"500": {"content": "a"}}, [1]]
)
def test_added_tokens_that_cannot_be_are_named(tmp_path: Path, added: Any) -> None:
    train_sentencepiece(tmp_path).rename(tmp_path / "tokenizer.model")
    with pytest.raises(BadModelFile, match="added_tokens_decoder"):
        spec_of(tmp_path, added_tokens_decoder=added)


def test_templates_are_looked_for_in_three_places(tmp_path: Path) -> None:
    write_fast(tmp_path)
    (tmp_path / "chat_template.json").write_text('{"chat_template": "third"}')
    assert spec_of(tmp_path).chat_template == "third"
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "second"}]
    assert spec_of(tmp_path, chat_template=named).chat_template == "second"
    (tmp_path / "chat_template.jinja").write_text("first")
    assert spec_of(tmp_path, chat_template="second").chat_template == "first"


@pytest.mark.parametrize(
    "content", ["[]", '{"post_processor": 3}', '{"post_processor": {"single": [1]}}']
)
def test_a_damaged_tokenizer_json_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(BadModelFile, match=r"tokenizer\.json"):
        spec_of(tmp_path)


def test_a_beginning_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    tokenizer = {"added_tokens": [{"id": 500, "content": "<far>"}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(BadModelFile, match=r"bos_token.* none of 500 tokens; got 500"):
        spec_of(tmp_path, bos="<far>")
    assert spec_of(tmp_path, eos="<far>").eos_ids == [4]


def test_a_template_is_bounded_and_an_empty_one_is_none(tmp_path: Path) -> None:
    write_fast(tmp_path)
    assert spec_of(tmp_path, chat_template="").chat_template is None
    with pytest.raises(BadModelFile, match=r"chat_template.* too long; got 1048577"):
        spec_of(tmp_path, chat_template="x" * (2**20 + 1))
