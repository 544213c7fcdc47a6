"""The names that the one model of this server answers to."""

from __future__ import annotations

import msgspec

from hybridgen.errors import ModelNotFound
from hybridgen.server.json_body import shown


class ServedModels(msgspec.Struct, frozen=True, kw_only=True):
    """The first name is the one that answers carry."""

    names: tuple[str, ...]
    created: int
    """Seconds since 1970; clients expect a date here."""
    max_model_len: int
    """Context length in tokens."""

    def resolve(self, name: str | None) -> str:
        """The name to answer with; none asked for means the model there is.

        Raises:
            ModelNotFound: another model is asked for.
        """
        if name is None:
            return self.names[0]
        if name in self.names:
            return name
        raise ModelNotFound(
            "this model is not served here",
            value=shown(name),
            remedy=f"Ask for {self.names[0]}",
            param="model",
        )
