"""Who wrote which character: keeps special-token text in messages from becoming special ids.

The rendered template is one text in which the template's own ``<|im_end|>`` and one that a user
typed look alike. So the template is rendered a second time with a guard character (a Unicode
noncharacter) before characters of the messages; a special token counts only where no guard is
inside it or right before it, that is, where every character of it comes from the template.

With a guard before every character that occurs in any special token this is exact. A template
that searches in its messages (for ``</think>``, say) may then render differently; that shows when
the guards are taken out again, and a sparse guard is tried: only on special texts that are whole,
or cut off by a message's end. When even that changes what the template does, the request is
refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from hybridgen.errors import InvalidRequest
from hybridgen.request import ChatMessage
from hybridgen.text.special_tokens import SpecialTokens

#: Noncharacters (Unicode 23.7): no text needs them, so one that nobody used is soon found.
GUARDS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
#: Roles that templates may well put into a special token's text (``<|user|>``).
KNOWN_ROLES = frozenset(
    {"assistant", "developer", "environment", "function", "ipython", "model", "system", "tool",
     "user"}
)  # fmt: skip
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")

Render = Callable[[Sequence[ChatMessage]], str]


class SpecialGuard:
    """Cuts rendered conversations at the special tokens that the template itself wrote."""

    def __init__(self, specials: SpecialTokens) -> None:
        self._specials = specials
        self._texts = sorted(specials.texts)
        alphabet = "".join(sorted(set("".join(self._texts))))
        self._dense = re.compile(f"([{re.escape(alphabet)}])") if alphabet else None

    def split(self, render: Render, messages: Sequence[ChatMessage]) -> Iterable[int | str]:
        """Special ids and runs of text of the rendered ``messages``, in order.

        Raises:
            InvalidRequest: a role could be part of a special token, or special-token text in a
                message steers the template.
        """
        for message in messages:
            self._check_role(message.role)
        rendered = render(messages)
        if self._dense is None:
            return [rendered]
        guard = self._unused_guard(rendered, messages)
        for mark in (self._mark_all, self._mark_suspects):
            marked = [ChatMessage(turn.role, mark(turn.content, guard)) for turn in messages]
            text = rendered if marked == [*messages] else render(marked)
            if text.replace(guard, "") == rendered:
                return self._specials.split(text, guard)
        raise InvalidRequest(
            "special-token text in a message changes what the chat template does",
            param="messages",
            remedy="Leave the model's special tokens out of messages",
        )

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

    def _unused_guard(self, rendered: str, messages: Sequence[ChatMessage]) -> str:
        used = set(rendered).union(*(turn.content for turn in messages))
        for guard in GUARDS:
            if guard not in used:
                return guard
        raise InvalidRequest(
            "the messages use every Unicode noncharacter",
            param="messages",
            value=len(GUARDS),
            limit=len(GUARDS) - 1,
            remedy="Leave noncharacters out of messages",
        )

    def _mark_all(self, content: str, guard: str) -> str:
        return self._dense.sub(guard + r"\1", content) if self._dense else content

    def _mark_suspects(self, content: str, guard: str) -> str:
        """Guards on whole special texts, and on parts of them at the ends of the content."""
        suspects: set[int] = set()
        core = content.strip()
        offset = content.find(core)
        for text in self._texts:
            for match in re.finditer(f"(?={re.escape(text)})", content):
                suspects.update(range(match.start(), match.start() + len(text)))
            if core and core in text:
                suspects.update(range(offset, offset + len(core)))
            for num_chars in range(1, min(len(text), len(core) + 1)):
                if core.startswith(text[-num_chars:]):
                    suspects.update(range(offset, offset + num_chars))
                if core.endswith(text[:num_chars]):
                    end = offset + len(core)
                    suspects.update(range(end - num_chars, end))
        return "".join(
            guard + char if index in suspects else char for index, char in enumerate(content)
        )
