"""32,768 tokens of context are the most that is served, wherever more is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hybridgen.errors import ConfigError, ContextLengthExceeded, HybridGenError
from hybridgen.formats.serve_hints import ServeHints
from hybridgen.launch.banner import context_text
from hybridgen.launch.config_sources import config_from_options, resolve
from hybridgen.launch.model_facts import model_facts
from hybridgen.scheduler.admission import Admission
from hybridgen.scheduler.tree_shape import TreeShape
from tests.launch.test_plan import plan_of, real_model
from tests.support.fake_clock import FakeClock

LIMIT = 32_768


def by_file(folder: Path) -> None:
    file = folder / "c.toml"
    file.write_text(f"max-model-len = {LIMIT + 1}\n")
    resolve({}, {}, file)


ENTRANCES: dict[str, Callable[[Path], object]] = {
    "flag --max-model-len": lambda _: resolve({"max_model_len": str(LIMIT + 1)}, {}),
    "environment HYBRIDGEN_MAX_MODEL_LEN": lambda _: resolve(
        {}, {"HYBRIDGEN_MAX_MODEL_LEN": str(LIMIT + 1)}
    ),
    "file ": by_file,
    "option max_model_len": lambda _: config_from_options({"max_model_len": LIMIT + 1}),
}


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_more_is_refused_with_value_limit_remedy_and_where_it_came_from(
    entrance: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        ENTRANCES[entrance](tmp_path)
    fields = caught.value.fields
    assert entrance in str(caught.value)
    assert str(fields["value"]) == str(LIMIT + 1)
    assert "32,768" in str(fields["limit"])
    assert "--max-model-len" in str(fields["remedy"])


def test_a_hint_of_more_is_refused() -> None:
    with pytest.raises(HybridGenError, match=r"max_model_len.*32768|32768.*max_model_len"):
        ServeHints(max_model_len=LIMIT + 1).check()


def test_exactly_so_many_are_served() -> None:
    plan = plan_of(model=real_model(LIMIT), max_model_len=LIMIT)
    assert plan.geometry.max_model_len == LIMIT
    assert context_text(plan) == "32768 tokens"


def test_of_a_longer_model_so_many_are_served_and_that_is_said() -> None:
    model = real_model(131_072)
    plan = plan_of(model=model)
    assert plan.geometry.max_model_len == LIMIT
    text = "32768 tokens, the most that is served of the model's own 131072"
    assert context_text(plan) == text
    assert context_text(plan_of(model=model, max_model_len=4096)) == "4096 tokens"
    facts = model_facts(model)
    assert (facts["max_position"], facts["longest_context"]) == (131_072, LIMIT)


def test_a_request_beyond_is_refused_with_the_limit() -> None:
    shape = TreeShape(num_tokenizers=1, num_detokenizers=1, vocab_size=100, max_model_len=LIMIT)
    admission = Admission(shape, config_from_options({}).scheduler, FakeClock())
    assert admission.max_len(LIMIT - 1, 1) == LIMIT
    for prompt_len, max_tokens in ((LIMIT, None), (LIMIT - 1, 2)):
        with pytest.raises(ContextLengthExceeded) as caught:
            admission.max_len(prompt_len, max_tokens)
        assert (caught.value.fields["value"], caught.value.fields["limit"]) == (LIMIT + 1, LIMIT)
        assert caught.value.fields["remedy"]
