"""Sound models of every format and of very different families, for ``tools.fuzz_models``."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from hybridgen.config import Config
from hybridgen.formats.convert import convert_model
from hybridgen.formats.inspect import inspect_model
from tools.make_tiny_model import CHAT_TEMPLATE, TinyModel, byte_vocabulary, make_tiny_model
from tools.mutate_gguf import with_entries

FAMILIES = ("llama", "qwen2_moe", "gemma2", "gemma3_text", "phi3")
_CHANGES: dict[str, dict[str, Any]] = {
    "llama": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        }
    },
    "gemma3_text": {"num_hidden_layers": 2},
}
_STRING, _INT32, _FLOAT32 = 8, 5, 6  # types of GGUF
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6  # kinds of pieces
_TEXTS = ("hello world", "the quick brown fox", "grüße, wörld", "0 1 2 3 4 5 6 7 8 9", "日本語")
_NUM_PIECES = 320


class Specimen(NamedTuple):
    """A model as files.

    Attributes:
        name: format and family.
        files: file name → content; all of one folder.
        path: what stands for the model: a file's name, or "" for the folder.
    """

    name: str
    files: dict[str, bytes]
    path: str

    @property
    def kind(self) -> str:
        """Format."""
        return self.name.partition("-")[0]


def make_specimens(folder: Path) -> None:
    """Write one folder for each below ``folder``."""
    for family in FAMILIES:
        changes = {"model_type": family, "num_hidden_layers": 1, **_CHANGES.get(family, {})}
        model = make_tiny_model(folder / "made" / family, **changes)
        _copy([model.gguf], folder / f"gguf-{family}")
        _copy(sorted(model.folder.iterdir()), folder / f"folder-{family}")
        info = inspect_model(str(model.gguf), Config())
        output = folder / f"hybridgen-{family}" / "model.hybridgen"
        output.parent.mkdir()
        convert_model(info, "float32", output, is_int8=family == "qwen2_moe")
    _make_sharded(model, folder / "folder-sharded")
    _make_pieces(folder)
    shutil.rmtree(folder / "made")


def read_specimens(folder: Path) -> list[Specimen]:
    """What ``make_specimens`` wrote there."""
    found = []
    for path in sorted(folder.iterdir()):
        files = {file.name: file.read_bytes() for file in sorted(path.iterdir())}
        single = next(iter(files)) if len(files) == 1 else ""
        found.append(Specimen(path.name, files, single))
    return found


def _copy(files: list[Path], folder: Path) -> None:
    folder.mkdir()
    for file in files:
        shutil.copy(file, folder)


def _make_sharded(model: TinyModel, folder: Path) -> None:
    from safetensors.numpy import save_file

    _copy([path for path in model.folder.iterdir() if path.suffix == ".json"], folder)
    names = sorted(model.weights)
    half = len(names) // 2
    places: dict[str, str] = {}
    for index, part in enumerate((names[:half], names[half:]), start=1):
        file = f"model-{index:05}-of-00002.safetensors"
        save_file({name: model.weights[name] for name in part}, folder / file)
        places |= dict.fromkeys(part, file)
    content = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content), encoding="utf-8")


def _make_pieces(folder: Path) -> None:
    """Models with a SentencePiece vocabulary."""
    changes = {"vocab_size": _NUM_PIECES, "num_hidden_layers": 1}
    model = make_tiny_model(folder / "made" / "pieces", has_gguf=False, **changes)
    files = [path for path in model.folder.iterdir() if path.name != "tokenizer.json"]
    _copy(files, folder / "folder-pieces")
    (folder / "folder-pieces" / "tokenizer.model").write_bytes(_piece_model())
    (folder / "folder-pieces" / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    source = (folder / "gguf-llama" / "tiny.gguf").read_bytes()
    num_tokens = len(byte_vocabulary()[0])
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256))]
    pieces += [f"▁{index}" for index in range(num_tokens - len(pieces))]
    kinds = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256, *[_NORMAL] * (num_tokens - 259)]
    entries: dict[str, tuple[int, Any]] = {
        "model": (_STRING, b"llama"),
        "tokens": (_STRING, [piece.encode() for piece in pieces]),
        "scores": (_FLOAT32, [-float(index) for index in range(num_tokens)]),
        "token_type": (_INT32, kinds),
    }
    target = folder / "gguf-pieces" / "pieces.gguf"
    target.parent.mkdir()
    named = {f"tokenizer.ggml.{key}": entry for key, entry in entries.items()}
    target.write_bytes(with_entries(source, named))


def _piece_model() -> bytes:
    """A tokenizer.model: BPE with byte fallback."""
    from sentencepiece import SentencePieceTrainer

    written = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(_TEXTS * 20),
        model_writer=written,
        model_type="bpe",
        vocab_size=_NUM_PIECES,
        byte_fallback=True,
        normalization_rule_name="identity",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return written.getvalue()
