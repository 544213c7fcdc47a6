"""From the fused weights of ``models.weight_names`` to the tensors that a file keeps of them.

A fused weight is its parts below each other, in order. Of stacked experts, the parts of the first
come before those of the second. A reader that takes part after part never holds more than one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from hybridgen.models.config import ModelConfig
from hybridgen.models.weight_names import EMBEDDING, FINAL_NORM, LM_HEAD

Shape = tuple[int, ...]

_IN_LAYER = "model.layers."
_EXPERT = "{expert}"
_QKV = "self_attn.qkv_proj"


class Part(NamedTuple):
    """Rows of a fused weight: one tensor of the file, or one expert of a stacked tensor."""

    name: str
    shape: Shape
    """Of the whole tensor in the file."""
    expert: int | None = None
    """Which to take along the first axis; None takes the tensor as it is."""
    permuted_heads: int = 0
    """Heads whose rows the file keeps interleaved; 0 for rotate-half order."""

    @property
    def taken_shape(self) -> Shape:
        """Of what is taken."""
        return self.shape if self.expert is None else self.shape[1:]


#: Fused name → its parts from first row to last.
Parts = Mapping[str, tuple[Part, ...]]


class TensorNames(NamedTuple):
    """How one kind of file names a family's tensors.

    Names in ``modules`` are of one layer and without the ending ``.weight`` or ``.bias``, which is
    the same on both sides; a name with ``{expert}`` stands for one tensor per expert.
    """

    embedding: str
    final_norm: str
    lm_head: str
    layer: str
    """What comes before the names of a layer, with ``{layer}`` in it."""
    modules: Mapping[str, tuple[str, ...]]
    """Fused module → the file's modules below each other; one that is missing has its own name."""
    is_permuted: bool = False
    """Rows of q and k are interleaved."""
    is_squeezed: bool = False
    """A matrix of one row is stored as a vector."""

    def changed(self, modules: Mapping[str, tuple[str, ...]]) -> TensorNames:
        """The same with other parts for some modules."""
        return self._replace(modules={**self.modules, **modules})

    def below(self, prefix: str) -> TensorNames:
        """The same with ``prefix`` in front of every name."""
        return self._replace(
            embedding=prefix + self.embedding,
            final_norm=prefix + self.final_norm,
            lm_head=prefix + self.lm_head,
            layer=prefix + self.layer,
        )


def weight_parts(
    config: ModelConfig, variants: Iterable[TensorNames], there: Collection[str]
) -> Parts:
    """The parts of every weight of ``config``, named as in the variant that fits the file best.

    Args:
        config: of the model.
        variants: ways in which such files name tensors, the usual one first.
        there: names of the tensors in the file.
    """
    # Layers of one kind are named alike: the first of each tells.
    layers = range(config.num_layers)
    samples = {
        next((i for i in layers if config.has_experts(i) is kind), 0) for kind in (True, False)
    }

    def num_found(names: TensorNames) -> int:
        return sum(part.name in there for part in _all(_named(config, names, samples)))

    return _named(config, max(variants, key=num_found), layers)


def tensor_shapes(parts: Parts) -> dict[str, Shape]:
    """Name → shape of every tensor that a file with these parts has."""
    return {part.name: part.shape for part in _all(parts)}


def _all(parts: Parts) -> Iterator[Part]:
    return (part for members in parts.values() for part in members)


def _named(config: ModelConfig, names: TensorNames, layers: Collection[int]) -> Parts:
    top = {EMBEDDING: names.embedding, FINAL_NORM: names.final_norm, LM_HEAD: names.lm_head}
    parts: dict[str, tuple[Part, ...]] = {}
    for name, shape in config.weight_shapes().items():
        if name in top:
            parts[name] = (Part(top[name], shape),)
            continue
        layer, inner = name.removeprefix(_IN_LAYER).split(".", 1)
        if int(layer) not in layers:
            continue
        module, ending = _split_ending(inner)
        prefix = names.layer.format(layer=layer)
        files = [prefix + file + ending for file in names.modules.get(module, (module,))]
        if config.experts is not None and len(shape) == 3:
            parts[name] = _expert_parts(files, shape)
        else:
            parts[name] = tuple(_plain_parts(config, names, module, files, shape))
    return parts


def _split_ending(name: str) -> tuple[str, str]:
    for ending in (".weight", ".bias"):
        if name.endswith(ending):
            return name.removesuffix(ending), ending
    return name, ""


def _expert_parts(files: list[str], shape: Shape) -> tuple[Part, ...]:
    """Parts of a fused weight [experts, rows, columns]."""
    count, rows = shape[0], shape[1] // len(files)
    taken = (rows, *shape[2:])
    return tuple(
        Part(file.replace(_EXPERT, str(expert)), taken)
        if _EXPERT in file
        else Part(file, (count, *taken), expert)
        for expert in range(count)
        for file in files
    )


def _plain_parts(
    config: ModelConfig, names: TensorNames, module: str, files: list[str], shape: Shape
) -> Iterator[Part]:
    heads = [0] * len(files)
    rows = [shape[0] // len(files)] * len(files)
    if module == _QKV and len(files) == 3:
        rows = [config.q_size, config.kv_size, config.kv_size]
        heads = [config.num_heads, config.num_kv_heads, 0] if names.is_permuted else heads
    for file, num_rows, num_heads in zip(files, rows, heads, strict=True):
        stored = (num_rows, *shape[1:])
        if names.is_squeezed and len(stored) > 1 and num_rows == 1:
            stored = stored[1:]
        yield Part(file, stored, permuted_heads=num_heads)
