from __future__ import annotations

from hybridgen.config import Config
from hybridgen.launch.config_fields import config_fields, describe_type, section_types


def test_every_field_has_documentation_under_it() -> None:
    for field in config_fields().values():
        assert field.doc.endswith("."), field.name


def test_names_are_unique_over_all_sections() -> None:
    num_fields = sum(len(section.__struct_fields__) for section in section_types().values())
    assert len(config_fields()) == num_fields


def test_one_name_makes_flag_variable_and_key() -> None:
    field = config_fields()["max_num_seqs"]
    assert (field.flag, field.env, field.key) == (
        *("--max-num-seqs", "HYBRIDGEN_MAX_NUM_SEQS", "max-num-seqs"),
    )
    assert field.default == Config().scheduler.max_num_seqs


def test_types_are_described_with_their_bounds() -> None:
    fields = config_fields()
    assert fields["max_num_seqs"].type_text == "int, 1 … 1,024"
    assert fields["device"].type_text == "auto | cpu | cuda"
    assert fields["num_kv_blocks"].type_text == "int, at least 0"
    assert fields["disable_cpu_affinity"].type_text == "true | false"
    assert fields["gpu_memory"].type_text.startswith("share or bytes, as 0.9, 90%, 60GiB")
    assert describe_type(str) == "str"
