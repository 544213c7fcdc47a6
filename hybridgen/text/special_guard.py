"""Who wrote which character: keeps special-token text in messages from becoming special ids.

The rendered template is one text in which the template's own ``<|im_end|>`` and one that a user
typed look alike. So the template is rendered a second time with marks in what people wrote, each
of which begins with a guard character (a Unicode noncharacter); a special token counts only where
no guard is inside it or right before it, that is, where every character of it comes from the
template. A template that looks into its messages may then render differently; that shows when the
marks are taken out again, and the next way of marking is tried:

1. A stand-in of two characters for the text of each message: exact, and long texts cost nothing.
   Tools, calls and variables are marked as in 2.
2. A guard before every character that occurs in any special token: exact, also where a template
   cuts or changes what messages say.
3. Guards on special texts that are whole, or cut off by a message's end: for templates that search
   in messages, for ``</think>``, say.

When even that changes what the template does, the request is refused. What none of them can tell
is a template that writes, of its own, just the special text that a message consists of, and does so
only for messages of that length: it renders alike and is believed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

from hybridgen.errors import InvalidRequest
from hybridgen.text.conversation import Conversation
from hybridgen.text.special_tokens import SpecialTokens
from hybridgen.text.stand_ins import StandIns

#: Noncharacters (Unicode 23.7): no text needs them, so one that nobody used is soon found.
GUARDS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
#: Roles that templates may well put into a special token's text (``<|user|>``).
KNOWN_ROLES = frozenset(
    {"assistant", "developer", "environment", "function", "ipython", "model", "system", "tool",
     "user"}
)  # fmt: skip
#: Words of schemas and of calls that templates compare with or ask for. They stay as they are,
#: as roles do, wherever they stand alone in a tool or a call.
KNOWN_WORDS = frozenset(
    {"$defs", "$ref", "additionalProperties", "allOf", "anyOf", "arguments", "array", "boolean",
     "const", "default", "description", "enum", "format", "function", "id", "integer", "items",
     "maxItems", "maximum", "minItems", "minimum", "name", "null", "nullable", "number", "object",
     "oneOf", "parameters", "pattern", "properties", "required", "return", "string", "title",
     "type"}
)  # fmt: skip
_WORD_KEYS = ("id", "name")
_TEXT_KEYS = ("content", "reasoning_content")
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")

Render = Callable[[Conversation], str]
_Mark = Callable[[str], str]


class SpecialGuard:
    """Cuts rendered conversations at the special tokens that the template itself wrote."""

    def __init__(self, specials: SpecialTokens) -> None:
        self._specials = specials
        self._texts = sorted(specials.texts, key=len, reverse=True)
        self._max_chars = max(map(len, self._texts), default=0)
        self._joined = "\0".join(self._texts)
        self._heads = {text[:n] for text in self._texts for n in range(1, len(text))}
        self._tails = {text[-n:] for text in self._texts for n in range(1, len(text))}
        self._whole = _anywhere(self._texts)
        self._alphabet = frozenset("".join(self._texts))
        self._has_blanks = any(map(str.isspace, self._alphabet))

    def split(self, render: Render, conversation: Conversation) -> Iterable[int | str]:
        """Special ids and runs of text of the rendered ``conversation``, in order.

        Raises:
            InvalidRequest: a role could be part of a special token, or special-token text in a
                message steers the template.
        """
        for message in conversation.messages:
            self._check_role(message["role"])
        rendered = render(conversation)
        if not self._alphabet:
            return [rendered]
        guard = _unused_guard(rendered, conversation)
        for marks in self._ways_to_mark(guard):
            marked = marks.conversation(conversation)
            try:
                text = rendered if marked == conversation else render(marked)
            except InvalidRequest:
                continue  # it accepted the messages as they are
            # Values that are shown as Python or ASCII-only JSON show the guard as its escape.
            text = text.replace(_escaped(guard), guard)
            stand_ins = marks.stand_ins
            if stand_ins.num_chars(text) == len(rendered) and stand_ins.fill(text) == rendered:
                return self._specials.split(text, guard, stand_ins.fill)
        raise InvalidRequest(
            "special-token text in a message changes what the chat template does",
            param="messages",
            remedy="Leave the model's special tokens out of messages and tools",
        )

    def _ways_to_mark(self, guard: str) -> Iterator[_Marks]:
        none, stand_ins = StandIns(guard), StandIns(guard)
        dense, sparse = (
            partial(self._mark_all, guard=guard),
            partial(self._mark_suspects, guard=guard),
        )
        yield _Marks(partial(self._stand_in, stand_ins), dense, sparse, stand_ins)
        yield _Marks(dense, dense, sparse, none)
        yield _Marks(sparse, sparse, sparse, none)

    def _check_role(self, role: str) -> None:
        is_part = role not in KNOWN_ROLES and any(role in text for text in self._texts)
        if is_part or not _ROLE.fullmatch(role):
            raise InvalidRequest(
                "a message's role is not a plain word, or is part of a special token",
                param="messages",
                value=ascii(role[:64]),
                limit=", ".join(sorted(KNOWN_ROLES)) + ", or another word",
                remedy="Use one of the usual roles",
            )

    def _stand_in(self, stand_ins: StandIns, content: str) -> str:
        """White space at the ends stays: templates trim it."""
        core = content if self._has_blanks else content.strip()
        if not core:
            return content
        begin = content.find(core)
        return content[:begin] + stand_ins.put(core) + content[begin + len(core) :]

    def _mark_all(self, text: str, guard: str) -> str:
        return text.translate(_guarded(self._alphabet, guard))

    def _mark_suspects(self, content: str, guard: str) -> str:
        """Guards on whole special texts, and on parts of them at the ends of the content."""
        suspects: set[int] = set()
        for match in self._whole.finditer(content):
            suspects.update(range(*match.span(1)))
        core = content.strip()
        begin = content.find(core)
        end = begin + len(core)
        if 0 < len(core) <= self._max_chars and core in self._joined:
            suspects.update(range(begin, end))
        sizes = range(min(len(core), self._max_chars - 1), 0, -1)
        num_tail = next((n for n in sizes if core[:n] in self._tails), 0)
        num_head = next((n for n in sizes if core[-n:] in self._heads), 0)
        suspects.update(range(begin, begin + num_tail), range(end - num_head, end))
        if not suspects:
            return content
        return "".join(
            guard + char if index in suspects else char for index, char in enumerate(content)
        )


def _anywhere(texts: list[str]) -> re.Pattern[str]:
    """Finds, as group 1, the longest of ``texts`` at each place, also where they overlap.

    Args:
        texts: longest first.
    """
    firsts = "".join(sorted({text[0] for text in texts}))
    if not firsts:
        return re.compile("(?!)")
    # Few places begin like a special token; the others are not compared with every one of them.
    return re.compile(f"(?=[{re.escape(firsts)}])(?=({'|'.join(map(re.escape, texts))}))")


@lru_cache(len(GUARDS))
def _guarded(alphabet: frozenset[str], guard: str) -> dict[int, str]:
    """For ``str.translate``."""
    return {ord(char): guard + char for char in alphabet}


def _unused_guard(rendered: str, conversation: Conversation) -> str:
    texts = [rendered]
    _collect_texts(conversation, texts)
    for guard in GUARDS:
        if not any(guard in text for text in texts) and _escaped(guard) not in rendered:
            return guard
    raise InvalidRequest(
        "the messages use every Unicode noncharacter",
        param="messages",
        value=len(GUARDS),
        limit=len(GUARDS) - 1,
        remedy="Leave noncharacters out of messages",
    )


def _collect_texts(value: Any, texts: list[str]) -> None:
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, dict):
        texts += value
        for item in value.values():
            _collect_texts(item, texts)
    elif isinstance(value, list | tuple):
        for item in value:
            _collect_texts(item, texts)


def _escaped(guard: str) -> str:
    return ascii(guard)[1:-1]


class _Marks(NamedTuple):
    """Marks a conversation."""

    content: _Mark
    """For what a message says."""
    text: _Mark
    """For texts of tools, of calls and of variables."""
    word: _Mark
    """For names and ids: templates count their characters, and compare them."""
    stand_ins: StandIns
    """Those that ``content`` puts."""

    def conversation(self, turns: Conversation) -> Conversation:
        """All of it but roles."""
        messages = [self._message(message) for message in turns.messages]
        tools, kwargs = self._value(turns.tools), None
        if turns.template_kwargs:
            # Templates compare them with words: these get sparse guards, their names none.
            sparse = self._replace(text=self.word)
            kwargs = {key: sparse._value(value) for key, value in turns.template_kwargs.items()}
        return Conversation(messages, tools, kwargs)

    def _message(self, message: dict[str, Any]) -> dict[str, Any]:
        marked: dict[str, Any] = {"role": message["role"]}
        for key, value in message.items():
            if key in _TEXT_KEYS:
                marked[key] = self.content(value)
            elif key not in marked:
                marked[key] = self.word(value) if isinstance(value, str) else self._value(value)
        return marked

    def _value(self, value: Any) -> Any:
        """Tools, calls and what is in them; templates read these by the known words."""
        if isinstance(value, str):
            return value if value in KNOWN_WORDS else self.text(value)
        if isinstance(value, dict):
            return {self._value(key): self._item(key, item) for key, item in value.items()}
        return [self._value(item) for item in value] if isinstance(value, list) else value

    def _item(self, key: str, item: Any) -> Any:
        is_word = key in _WORD_KEYS and isinstance(item, str)
        return self.word(item) if is_word else self._value(item)
