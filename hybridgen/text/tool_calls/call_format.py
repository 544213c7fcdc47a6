"""What tells one family's calls from another's."""

from __future__ import annotations

from typing import NamedTuple


class CallFormat(NamedTuple):
    """How a family of models writes calls.

    A call is a JSON object with the name and the arguments of a function. Calls stand between
    ``opener`` and ``closer``, one or several, bare or in an array.
    """

    name: str
    """What --tool-call-parser calls it."""
    opener: str
    """Text or special token before calls."""
    closer: str = ""
    """The same after them; a family without one ends calls where their JSON ends."""
    arguments_key: str = "arguments"
    """The key that models of the family are trained to write; all known ones are read."""
    is_opener_rare: bool = False
    """Models of the family mostly begin with the JSON itself."""
    takes_plain_name: bool = False
    """A function's name may stand bare before its arguments."""
    around_calls: tuple[str, str, str] = ("", "\n", "")
    """Before, between and after calls that share an opener; with a closer each has its own."""
    inner_marks: tuple[str, ...] = ()
    """Further ones, inside calls."""
    template_marks: tuple[str, ...] = ()
    """Texts that all stand in the chat templates of the family."""
    foreign_marks: tuple[str, ...] = ()
    """Texts of other formats that share this one's marks: with one of these it is not this."""
    id_prefix: str = "call_"
    num_id_chars: int = 24
    """Ids of calls: the prefix and so many letters and digits; some templates insist on it."""

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks that are part of calls."""
        ends = (self.opener, self.closer) if self.closer else (self.opener,)
        return (*ends, *self.inner_marks)
