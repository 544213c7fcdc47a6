"""Do the tensors of a file fit the model's configuration?"""

from __future__ import annotations

from collections.abc import Mapping

from hybridgen.errors import WeightsMismatch

Shape = tuple[int, ...]


def check_weights(expected: Mapping[str, Shape], found: Mapping[str, Shape], source: str) -> None:
    """Compare names and shapes; both mappings name tensors as the file does.

    Raises:
        WeightsMismatch: naming the first tensor that is missing, too many, or of another shape,
            and both shapes.
    """
    for name, shape in expected.items():
        if found.get(name) != shape:
            raise _mismatch(name, found.get(name), shape, source)
    for name in found:
        if name not in expected:
            raise _mismatch(name, found[name], None, source)


def _mismatch(
    name: str, found: Shape | None, expected: Shape | None, source: str
) -> WeightsMismatch:
    problem = "is missing" if found is None else "has another shape"
    if expected is None:
        problem = "is not part of this architecture"
    return WeightsMismatch(
        f"tensor {name} {problem}",
        tensor=name,
        value="no tensor" if found is None else format_shape(found),
        limit="no tensor" if expected is None else format_shape(expected),
        remedy="The file does not fit its own configuration; fetch or convert it again",
        file=source,
    )


def format_shape(shape: Shape) -> str:
    """``(3, 4)`` → ``[3, 4]``."""
    return f"[{', '.join(map(str, shape))}]"
