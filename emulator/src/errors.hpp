// SPDX-License-Identifier: Apache-2.0
// All errors of the emulator: each has a name, which its message ends with, and the exception type
// that the SDK throws. emulator/errors.md explains them; a test provokes each.
#pragma once

#include <string>

#include <poplar/exceptions.hpp>

#define SPARQ_ERRORS(ERROR)                                                                        \
  ERROR(bad_argument, poplar_error)                                                                \
  ERROR(bad_control, control_program_error)                                                        \
  ERROR(bad_engine_option, invalid_option)                                                         \
  ERROR(bad_environment, invalid_option)                                                           \
  ERROR(bad_floating_point, application_runtime_error)                                             \
  ERROR(bad_mapping, invalid_tile_mapping)                                                         \
  ERROR(bad_object, graph_object_load_error)                                                       \
  ERROR(bad_output, graph_connection_error)                                                        \
  ERROR(bad_target, invalid_machine_model)                                                         \
  ERROR(bad_values, tensor_creation_error)                                                         \
  ERROR(codelets_do_not_compile, link_error)                                                       \
  ERROR(connected_twice, graph_connection_error)                                                   \
  ERROR(copy_destination, control_program_error)                                                   \
  ERROR(copy_shape, control_program_error)                                                         \
  ERROR(dry_run_needs_data, runtime_error)                                                         \
  ERROR(engine_not_loaded, application_runtime_error)                                              \
  ERROR(field_kind, graph_connection_error)                                                        \
  ERROR(field_rank, graph_connection_error)                                                        \
  ERROR(field_size, graph_connection_error)                                                        \
  ERROR(floating_point_exception, application_runtime_error)                                       \
  ERROR(function_calls_itself, graph_recursion_error)                                              \
  ERROR(handle_used_twice, stream_connection_error)                                                \
  ERROR(host_access_to_constant, tensor_io_state_error)                                            \
  ERROR(host_array_size, stream_connection_error)                                                  \
  ERROR(index_out_of_range, index_error)                                                           \
  ERROR(invalid_tensor, tensor_creation_error)                                                     \
  ERROR(json_syntax, parse_error)                                                                  \
  ERROR(no_codelet_file, file_load_error)                                                          \
  ERROR(no_cycle_counter, runtime_error)                                                           \
  ERROR(no_cycle_estimate, missing_perf_estimate)                                                  \
  ERROR(no_device, poplar_error)                                                                   \
  ERROR(no_extended_memory, stream_memory_allocation_error)                                        \
  ERROR(no_floating_point_events, application_runtime_error)                                       \
  ERROR(no_initial_value, graph_connection_error)                                                  \
  ERROR(no_size, no_size_specified)                                                                \
  ERROR(no_stochastic_rounding, poplar_error)                                                      \
  ERROR(not_connected, graph_connection_error)                                                     \
  ERROR(not_implemented, poplar_error)                                                             \
  ERROR(not_serialisable, runtime_error)                                                           \
  ERROR(out_of_tile_memory, graph_memory_allocation_error)                                         \
  ERROR(overlapping_writes, graph_cycle_error)                                                     \
  ERROR(program_aborted, application_runtime_error)                                                \
  ERROR(quarter_metadata, tensor_metadata_error)                                                   \
  ERROR(read_beside_write, graph_cycle_error)                                                      \
  ERROR(remote_buffer_over_ipus, control_program_error)                                            \
  ERROR(remote_row_out_of_range, application_runtime_error)                                        \
  ERROR(remote_row_stored_twice, application_runtime_error)                                        \
  ERROR(replica_out_of_range, graph_replication_error)                                             \
  ERROR(replicas_do_not_run, graph_replication_error)                                              \
  ERROR(replication_factor, graph_replication_error)                                               \
  ERROR(stream_direction, control_program_error)                                                   \
  ERROR(stream_not_connected, stream_connection_error)                                             \
  ERROR(stream_size, stream_memory_allocation_error)                                               \
  ERROR(switch_without_case, application_runtime_error)                                            \
  ERROR(type_mismatch, type_error)                                                                 \
  ERROR(unknown_graph_object, graph_connection_error)                                              \
  ERROR(unknown_handle, stream_connection_error)                                                   \
  ERROR(unknown_program_object, control_program_error)                                             \
  ERROR(unknown_vertex, unknown_vertex_type)                                                       \
  ERROR(unknown_vertex_field, unknown_field)                                                       \
  ERROR(unmapped, invalid_tile_mapping)                                                            \
  ERROR(value_does_not_fit, type_error)                                                            \
  ERROR(vertex_defined_twice, graph_object_load_error)                                             \
  ERROR(view_shape, tensor_creation_error)                                                         \
  ERROR(workers_disagree, application_runtime_error)                                               \
  ERROR(write_outside, application_runtime_error)                                                  \
  ERROR(wrong_device, application_runtime_error)

namespace poplar {
namespace errors {

/// `throw errors::name("what must hold, got what")`; the arguments are those of the type.
#define SPARQ_ERROR(NAME, TYPE)                                                                    \
  template <class... Texts> TYPE NAME(const Texts &...texts) {                                     \
    struct Named : TYPE {                                                                          \
      Named(const Texts &...texts) : TYPE(texts...) { message += " [" #NAME "]"; }                 \
    };                                                                                             \
    return Named(texts...);                                                                        \
  }
SPARQ_ERRORS(SPARQ_ERROR)
#undef SPARQ_ERROR

} // namespace errors
} // namespace poplar
