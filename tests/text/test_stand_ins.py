from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hybridgen.text.stand_ins import StandIns

GUARD = "\ufdd0"


@given(st.lists(st.text(st.characters(exclude_characters=GUARD)), max_size=9), st.text("ab<>"))
def test_texts_come_back_wherever_their_stand_ins_were_put(texts: list[str], between: str) -> None:
    stand_ins = StandIns(GUARD)
    marked = between.join(stand_ins.put(text) for text in texts)
    assert stand_ins.fill(marked) == between.join(texts)
    assert stand_ins.num_chars(marked) == len(between.join(texts))


def test_order_and_number_are_the_templates_matter() -> None:
    stand_ins = StandIns(GUARD)
    one, other = stand_ins.put("one"), stand_ins.put("other")
    assert stand_ins.fill(f"[{other}|{one}|{other}]") == "[other|one|other]"


def test_half_a_stand_in_is_no_text() -> None:
    stand_ins = StandIns(GUARD)
    first, second = stand_ins.put("text")
    assert stand_ins.fill(f"{first}a{second}") == f"a{second}"
    assert stand_ins.fill(f"a{first}") == "a"


def test_other_guards_are_left_out() -> None:
    stand_ins = StandIns(GUARD)
    assert stand_ins.fill(f"{GUARD}<{GUARD}>") == "<>"
    assert stand_ins.fill(f"{GUARD}<{stand_ins.put('x')}{GUARD}>") == "<x>"
