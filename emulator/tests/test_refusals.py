# SPDX-License-Identifier: Apache-2.0
"""Every defect is refused: the right exception, naming the thing and both values; the control is accepted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

EMULATOR = Path(__file__).resolve().parents[1]
#: names of errors and their types
LISTED = re.findall(r"^ +ERROR\((\w+), (\w+)\)", (EMULATOR / "src/errors.hpp").read_text(), re.MULTILINE)
#: a type that is thrown as one of its own
OUT_OF_MEMORY = ("OutOfTileMemory", "graph_memory_allocation_error")

# case: (exception, of namespace poplar unless it names another, what the message must hold, in order)
EXPECTED = {
    "unmapped_variable": ("invalid_tile_mapping", "element 7 of 10 of variable 'orphan'"),
    "unmapped_constant": ("invalid_tile_mapping", "element 0 of 8 of constant 'lost'"),
    "unmapped_host_read": ("invalid_tile_mapping", "'handle'.*variable 'unseen'"),
    "vertex_without_tile": ("invalid_tile_mapping", "test::Increment.*'work'.*got none"),
    "tile_out_of_range": ("invalid_tile_mapping", "below 4, got 4"),
    "vertex_tile_out_of_range": ("invalid_tile_mapping", "below 4, got 9"),
    "virtual_tile_out_of_range": ("invalid_tile_mapping", "below 2, got 2"),
    "unknown_vertex": ("unknown_vertex_type", "'test::WeightedRows<int>'"),
    "unknown_field": ("unknown_field", "test::Increment.*'date'"),
    "unconnected_field": ("graph_connection_error", "test::Affine on tile 2.*'work'.*'out'"),
    "unconnected_list_element": ("graph_connection_error", r"'rows'\[1\]"),
    "list_without_size": ("no_size_specified", r"'rows'.* must have its size set"),
    "list_size_below_its_elements": ("graph_connection_error", "room for 3 elements, got 2"),
    "list_index_out_of_range": ("index_error", "size 3, got 3"),
    "list_size_changed": ("graph_connection_error", "size 3, got 4"),
    "field_size_mismatch": ("graph_connection_error", "tensor 8, got 9"),
    "state_not_set": ("graph_connection_error", "test::Affine.*'bias'.*initial value"),
    "state_value_too_large": ("type_error", "'c'.*unsigned char, got 256"),
    "state_value_negative": ("type_error", "'step'.*unsigned int, got -1"),
    "initial_value_of_edge": ("graph_connection_error", "'counter'.*state, got an edge"),
    "connect_state": ("graph_connection_error", "'step'.*got state"),
    "connect_twice": ("graph_connection_error", "'in'.*once.*'x'"),
    "connect_wrong_type": ("type_error", "'data'.*float, got half tensor 'rows'"),
    "connect_wrong_rank": ("graph_connection_error", r"rank 1, got shape \{4,8\} of tensor 'x'"),
    "connect_scalar_of_rank_1": ("graph_connection_error", r"rank 0, got shape \{1\}"),
    "connect_list_of_rank_1": ("graph_connection_error", r"rank 2, got shape \{32\}"),
    "short_span_too_long": ("graph_connection_error", "at most 2047.*got 2048"),
    "output_repeats_elements": ("graph_connection_error", "'out'.*repeat.*'y'"),
    "inout_overlaps_itself": ("graph_connection_error", "'data'.*repeat.*'x'"),
    "output_is_constant": ("graph_connection_error", "'out'.*constant.*'stone'"),
    "tensor_of_another_graph": ("graph_connection_error", "'data'.*its graph"),
    "two_vertices_write_one_element": (
        "graph_cycle_error",
        "'work'.*written once.*element 7 of 'y'.*element 7 of 'y'",
    ),
    "two_fields_write_one_element": (
        "graph_cycle_error",
        "'remainder'.*tile 0.*'word'.*'remainder'.*tile 1",
    ),
    "read_of_what_another_writes": (
        "graph_cycle_error",
        "'out'.*element 7 of 'y'.*'in'.*element 7 of 'y'",
    ),
    "inout_against_read": ("graph_cycle_error", "'data'.*element 0 of 'x'.*'in'"),
    "slice_out_of_range": ("index_error", r"\[0, 8\).*got \[2, 9\)"),
    "slice_backwards": ("index_error", r"got \[3, 2\)"),
    "slice_dimension_out_of_range": ("index_error", "rank 2.*got 2"),
    "index_out_of_range": ("index_error", "below 4.*got 4"),
    "reshape_changes_size": ("tensor_creation_error", r"32 elements.*got \{4,9\}"),
    "permutation_repeats": ("tensor_creation_error", r"2 dimensions.*got \{1,1\}"),
    "concat_shapes": ("tensor_creation_error", r"\{4,8\} and \{4,7\}"),
    "concat_types": ("type_error", "float and half"),
    "squeeze_wide_dimension": ("tensor_creation_error", "size 1, got 8"),
    "reinterpret_other_size": ("type_error", "float, got half"),
    "invalid_tensor": ("tensor_creation_error", "default-constructed"),
    "constant_size": ("tensor_creation_error", "3 elements.*got 2"),
    "initial_value_below_all": ("type_error", "setInitialValue: the value must fit short, got -32769"),
    "scale_of_quarters": ("tensor_metadata_error", "got 32"),
    "metadata_of_floats": ("tensor_metadata_error", "type float must have no metadata, got tensor 'y'"),
    "copy_type_mismatch": ("type_error", r"'rows' half.*'y' float"),
    "copy_shape_mismatch": ("control_program_error", r"\{8,4\}.*\{4,8\}"),
    "copy_size_mismatch": ("control_program_error", r"\{7\}.*\{8\}"),
    "copy_to_constant": ("control_program_error", "'stone'"),
    "copy_to_repeated_elements": ("control_program_error", "repeat.*'y'"),
    "write_undef_of_constant": ("control_program_error", "'stone'"),
    "remote_row_length": ("control_program_error", r"'remote'.*\{3,16\}.*\{3,15\}"),
    "remote_rows_against_offsets": ("control_program_error", r"'remote'.*\{2,16\}.*\{3,16\}"),
    "remote_type_mismatch": ("type_error", "'remote'.*half, got 'floats' float"),
    "remote_offset_type": ("type_error", "'remote'.*got 'shorts' unsigned short"),
    "remote_offset_rank": ("control_program_error", r"'remote'.*rank 0 or 1.*\{3,1\}"),
    "remote_offset_out_of_range": ("application_runtime_error", r"'remote'.*'gather'.*\[1\].*5 rows, got 5"),
    "remote_offset_negative": ("application_runtime_error", r"'remote'.*\[2\].*5 rows, got -1"),
    "remote_store_out_of_range": ("application_runtime_error", r"'remote'.*'scatter'.*5 rows, got 1000000"),
    "remote_store_repeats_row": ("application_runtime_error", r"'remote'.*\[2\].*got 4 again"),
    "remote_without_offset": ("control_program_error", "'remote'.*1 row, got 5 rows"),
    "remote_of_another_graph": ("stream_connection_error", "'remote'.*this graph"),
    "remote_load_to_constant": ("control_program_error", "'remote'.*'stone'"),
    "remote_host_row_out_of_range": ("index_error", "'remote'.*below 5, got 5"),
    "remote_host_row_size": ("stream_connection_error", "'remote'.*32 bytes, got 34"),
    "remote_unknown_handle": ("stream_connection_error", "'remoto'"),
    "remote_buffers_need_extended_memory": (
        "stream_memory_allocation_error",
        "target.extendedMemory must be true.*17179869184 bytes or more, got 17179869344 bytes",
    ),
    "remote_buffers_just_without_extended_memory": (
        "stream_memory_allocation_error",
        "target.extendedMemory must be true.*got 17179869184 bytes",
    ),
    "extended_memory_is_true_or_false": ("invalid_option", "target.extendedMemory.*got '1'"),
    "remote_empty": ("stream_memory_allocation_error", "'new'.*got 0 rows of 16"),
    "duplicate_remote_handle": ("stream_connection_error", "'remote' again"),
    "duplicate_stream_handle": ("stream_connection_error", "'in' again"),
    "duplicate_host_write": ("stream_connection_error", "'w' again"),
    "duplicate_host_read": ("stream_connection_error", "'r' again"),
    "host_write_to_constant": ("tensor_io_state_error", "'stone'.*'w'"),
    "unknown_host_handle": ("stream_connection_error", "'q'"),
    "host_array_size": ("stream_connection_error", "'r'.*128 bytes, got 124"),
    "stream_size_mismatch": ("control_program_error", "'in'.*32 elements, got 8"),
    "stream_type_mismatch": ("type_error", "'in'.*float, got 'ints' int"),
    "stream_direction": ("control_program_error", "'out'.*host to device"),
    "stream_not_connected": ("stream_connection_error", "'in'.*connected"),
    "stream_unknown": ("stream_connection_error", "'inn'"),
    "stream_buffer_size": ("stream_connection_error", "'in'.*128 bytes.*got 252"),
    "predicate_of_rank_1": ("control_program_error", r"If.*scalar.*\{1\}.*'t'"),
    "predicate_of_float": ("control_program_error", "RepeatWhileTrue.*got float"),
    "switch_control_type": ("control_program_error", "Switch.*got short"),
    "switch_repeats_case": ("control_program_error", "unique, got 3 again"),
    "switch_out_of_bounds": ("application_runtime_error", "2 cases, got 7"),
    "abort_on_condition": ("application_runtime_error", "the condition holds"),
    "error_program": ("application_runtime_error", "seen: 17"),
    "function_calls_itself": ("graph_recursion_error", "function 0"),
    "run_before_load": ("application_runtime_error", "run: .*loaded"),
    "unknown_program": ("index_error", "1 programs, got 1"),
    "device_of_another_size": ("application_runtime_error", "4 tiles.*got 5 tiles"),
    "tile_memory": (
        "sparq::emulator::OutOfTileMemory",
        r"tile 2.*at most 638976 bytes, got 644064 \(largest: big 640000",
    ),
    "tile_memory_of_landing": (
        "sparq::emulator::OutOfTileMemory",
        "tile 3.*638976.*own 400000.*temporaries.* 300004",
    ),
    "serialise": ("runtime_error", "got IPU_MODEL"),
    "replication_factor": ("graph_replication_error", "divide the 2 IPUs of the target, got 3"),
    "replica_tile": ("invalid_tile_mapping", "below 4, got 4"),
    "replicas_to_run": ("graph_replication_error", "load: .*1 replica to run here, got 2"),
    "replica_out_of_range": ("graph_replication_error", "below the graph's 2, got 1 to 2"),
    "remote_buffer_of_two_ipus": (
        "control_program_error",
        "'rows'.*the tiles of one IPU, got IPU 0 and IPU 1",
    ),
    "remote_copy_over_two_ipus": ("control_program_error", "one IPU, got IPU 0 and IPU 1"),
    "streaming_memory_of_an_ipu": (
        "stream_memory_allocation_error",
        "remote buffers of IPU 1 have 17179869184 bytes or more, got 17179869184",
    ),
    "virtual_graph_across_ipus": ("invalid_tile_mapping", r"all of each \(4\), got 2 to 6"),
    "virtual_tile_of_each_ipu": ("invalid_tile_mapping", "tile of an IPU must be below 4, got 4"),
    "virtual_graph_of_no_tile": ("invalid_tile_mapping", "lowerTile must be below upperTile, got 2 and 2"),
    "target_of_no_tile": ("invalid_machine_model", "must be at least 1, got 1 and 0"),
    "tile_memory_of_an_ipu": ("sparq::emulator::OutOfTileMemory", "tile 2 of IPU 1 must need at most 638976"),
    "switch_reaches_unreachable_default": ("application_runtime_error", "got 2"),
    "execute_predicate_type": ("control_program_error", "outPredicate must be bool, got int"),
    "stochastic_rounding": ("invalid_option", "enableStochasticRounding must be false here, got 'true'"),
    "stochastic_rounding_program": ("poplar_error", "enable must be false here, got true"),
    "floating_point_words_of_nobody": (
        "application_runtime_error",
        "behaviour must be what .* gave, got 4294967295",
    ),
    "floating_point_words_of_three_tiles": (
        "poplar_error",
        r"behaviour must be .*\{4\} \(tiles\), got .*\{3\}",
    ),
    "compute_set_of_another_graph": ("control_program_error", "this graph's 1, got id 1"),
    "device_that_is_not_there": ("poplar_error", "getDevice: .*got.* 99"),
    "options_not_json": ("parse_error", "readJSON: expected .* at character 21, got '}'"),
    "model_version": ("invalid_machine_model", "must be ipu1, ipu2 or ipu21, got ipu3"),
    "field_indexed_twice": ("graph_connection_error", r"'rows' must be indexed once, got \[1\]\[2\]"),
    "size_of_a_field_without_one": ("no_size_specified", "'rows'.* must have its size set"),
    "stream_of_nothing": ("stream_connection_error", "got a default-constructed DataStream"),
    "remote_buffer_of_nothing": ("stream_connection_error", "got a default-constructed RemoteBuffer"),
    "missing_codelet_file": ("file_load_error", r"test_codelets.gp.not'"),
    "codelet_syntax": ("link_error", "expected ';'"),
    "codelet_defined_twice": ("graph_object_load_error", "test::Increment is defined already"),
    "object_not_codelets": ("graph_object_load_error", "/proc/self/exe"),
    "codelet_field_type": ("link_error", "vertex fields hold bool, integers"),
}


@pytest.fixture(scope="module")
def outcomes(programs) -> dict:
    return {o["case"]: o for o in programs.json_lines("refusals", programs.codelets)}


@pytest.mark.parametrize("case", sorted(EXPECTED))
def test_refused(outcomes, case):
    exception, message = EXPECTED[case]
    refused = outcomes[case]["refused"]
    assert refused != "accepted"
    assert refused["type"] == (exception if "::" in exception else f"poplar::{exception}")
    assert re.search(message, refused["message"]), refused["message"]


@pytest.mark.parametrize("case", sorted(EXPECTED))
def test_control_is_accepted(outcomes, case):
    assert outcomes[case]["control"] == "accepted"


def test_every_case_is_expected(outcomes):
    assert set(outcomes) == set(EXPECTED)


def test_every_error_is_provoked(outcomes):
    """The closed list: the names that messages end with, and their types."""
    listed = dict(LISTED)
    seen = {}
    for refused in (outcome["refused"] for outcome in outcomes.values()):
        name = re.fullmatch(r".* \[(\w+)\]", refused["message"], re.DOTALL)
        assert name, refused
        seen[name[1]] = refused["type"].rpartition("::")[2].replace(*OUT_OF_MEMORY)
    others = {name: re.compile(rf"\[{name}\\?\]") for name in set(listed) - set(seen)}
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert {name for name, text in others.items() if not text.search(tests)} == set()
    assert seen.items() <= listed.items()


def test_the_page_has_every_error():
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| \S", (EMULATOR / "errors.md").read_text(), re.MULTILINE)
    assert rows == sorted(LISTED)


def test_no_error_is_without_a_name():
    for path in (EMULATOR / "src").glob("*.?pp"):
        thrown = re.findall(
            r"\bthrow (?!(?:poplar::)?errors::|std::bad_alloc|sparq::emulator::OutOfTileMemory)\w.*",
            path.read_text(),
        )
        assert not thrown, f"{path.name}: {thrown}"
