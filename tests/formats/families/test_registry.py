from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from hybridgen.errors import BadModelFile, UnsupportedModel
from hybridgen.formats.families.registry import FAMILIES, family_named, gguf_config_of
from hybridgen.formats.gguf import GgufFile
from tests.formats.families.folders import parse
from tests.formats.gguf_bytes import GgufBytes, entry, text
from tools.make_tiny_model import make_tiny_model
from tools.tiny_families import TINY_CONFIGS, tiny_config
from tools.tiny_gguf import ARCHITECTURES


def test_every_name_belongs_to_one_family():
    names = [family.name for family in FAMILIES]
    types = [name for family in FAMILIES for name in family.model_types]
    ggufs = [(family.gguf_architecture, family.has_gguf_experts) for family in FAMILIES]
    for members in (names, types, ggufs):
        assert max(Counter(members).values()) == 1


def test_an_unknown_model_type_lists_the_known_ones():
    with pytest.raises(UnsupportedModel) as caught:
        parse({"model_type": "gpt2"})
    fields = caught.value.fields
    assert (fields["field"], fields["value"]) == ("model_type", "gpt2")
    for family in FAMILIES:
        assert family.model_types[0] in str(fields["limit"])


def test_an_unknown_architecture_lists_the_known_ones(tmp_path: Path):
    made = GgufBytes(metadata=[entry("general.architecture", 8, text("mamba"))])
    with GgufFile(made.write(tmp_path)) as gguf, pytest.raises(UnsupportedModel) as caught:
        gguf_config_of(gguf, None, [])
    fields = caught.value.fields
    assert (fields["field"], fields["value"]) == ("general.architecture", "mamba")
    assert set(str(fields["limit"]).split(", ")) == {f.gguf_architecture for f in FAMILIES}


def test_an_unknown_family_is_named():
    with pytest.raises(UnsupportedModel, match="architecture"):
        family_named("gpt2")


@pytest.mark.parametrize("model_type", TINY_CONFIGS)
def test_a_gguf_file_is_of_the_family_of_its_folder(model_type: str, tmp_path: Path):
    made = make_tiny_model(tmp_path, model_type=model_type)
    with GgufFile(made.gguf) as gguf:
        found = gguf_config_of(gguf, 1, [2]).architecture
    expected = parse(made.config).architecture
    # Mistral's architecture is Llama's in this format.
    assert found == ("llama" if expected == "mistral" else expected)
    assert ARCHITECTURES[model_type] == family_named(found).gguf_architecture


SIZES: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 512,
    "intermediate_size": 128,
    "num_hidden_layers": 30,
    "num_attention_heads": 64,
}


@pytest.mark.parametrize("model_type", TINY_CONFIGS)
def test_keys_that_are_left_out_have_transformers_defaults(model_type: str):
    given = {"model_type": model_type, **SIZES, "bos_token_id": 1, "eos_token_id": 2}
    if model_type in ("qwen2", "qwen3", "qwen2_moe"):
        given["num_key_value_heads"] = 32  # theirs is a number that fits their default size only
    theirs = AutoConfig.for_model(**given, pad_token_id=0)
    assert parse(given) == parse({**theirs.to_dict(), "rope_scaling": None})


@pytest.mark.parametrize("model_type", TINY_CONFIGS)
@pytest.mark.parametrize("value", [0, -1, 2**40, 10**400, 1e308, -1e-300, [], [[]], {}, "x", True])
def test_a_hostile_value_of_any_key_is_a_typed_error_or_harmless(model_type: str, value: object):
    config = tiny_config(1000, {"model_type": model_type})
    extra = ["layer_types", "mlp_only_layers", "text_config", "rope_parameters"]
    for key in [*config, *extra]:
        with contextlib.suppress(BadModelFile, UnsupportedModel):
            parse({**config, key: value})
