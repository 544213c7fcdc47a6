"""Matchers of a model, made when the first grammar comes: most servers never see one.

They need llguidance and all tokens in a trie, which cost a third of a second and, for 50,000
tokens, 40 MB.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hybridgen.config import Config
from hybridgen.formats.inspect import inspect_model
from hybridgen.request import Grammar
from hybridgen.text.vocabulary import build_vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from hybridgen.sampling.matchers import Matchers


class LazyMatchers:
    """As ``Matchers``.

    Args:
        model: a path, ``demo`` or ``mock``.
        config: of the tree.
        max_compile_s: as ``Matchers`` takes it.
    """

    def __init__(self, model: str, config: Config, max_compile_s: float = math.inf) -> None:
        self._model = model
        self._config = config
        self._max_compile_s = max_compile_s
        self._matchers: Matchers | None = None

    def start(self, grammar: Grammar) -> LLMatcher:
        """A matcher of ``grammar`` that no token was given yet.

        Raises:
            InvalidRequest: the grammar is malformed, unsupported or too costly; names its param.
        """
        return self.load().start(grammar)

    def load(self) -> Matchers:
        """Make them now, unless they are there."""
        if self._matchers is None:
            from hybridgen.sampling.matchers import Matchers  # noqa: PLC0415 - heavy

            info = inspect_model(self._model, self._config)
            vocabulary = build_vocabulary(info.tokenizer)
            self._matchers = Matchers(vocabulary, info.config.eos_ids, self._max_compile_s)
        return self._matchers
