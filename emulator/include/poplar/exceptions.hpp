// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <exception>
#include <stdexcept>
#include <string>

#include "ErrorCode.hpp"

namespace poplar {

class DebugContext;

/// Base of every exception of the library.
struct poplar_error : std::exception {
  poplar_error(const std::string &s) : message(s) {}
  poplar_error(const char *s) : message(s) {}
  void attachSourceLocation(const DebugContext &) {}
  const char *what() const noexcept override { return message.c_str(); }

protected:
  std::string message;
};

#define POPLAR_ERROR(NAME, BASE)                                                                   \
  struct NAME : BASE {                                                                             \
    NAME(const std::string &s) : BASE(s) {}                                                        \
    NAME(const char *s) : BASE(s) {}                                                               \
  }

POPLAR_ERROR(graph_program_compilation_error, poplar_error);
POPLAR_ERROR(graph_object_creation_error, poplar_error);
struct graph_object_load_error : poplar_error {
  graph_object_load_error(const std::string &path, const std::string &error)
      : poplar_error("cannot load " + path + ": " + error) {}
};
POPLAR_ERROR(no_environment, poplar_error);
struct unknown_vertex_type : poplar_error {
  explicit unknown_vertex_type(const std::string &s) : poplar_error(s) {}
};
struct unknown_field : poplar_error {
  explicit unknown_field(const std::string &s) : poplar_error(s) {}
  explicit unknown_field(const char *s) : poplar_error(s) {}
  unknown_field(const std::string &vertexName, const std::string &fieldName)
      : poplar_error("vertex " + vertexName + " has no field '" + fieldName + "'") {}
};
struct control_program_error : poplar_error {
  explicit control_program_error(const std::string &s) : poplar_error(s) {}
};
POPLAR_ERROR(type_error, poplar_error);
struct index_error : poplar_error {
  explicit index_error(const std::string &s) : poplar_error(s) {}
  explicit index_error(const char *s) : poplar_error(s) {}
  index_error(const std::string &prefix, std::size_t index)
      : poplar_error(prefix + ": index out of range, got " + std::to_string(index)) {}
};
struct no_size_specified : poplar_error {
  explicit no_size_specified(const std::string &s) : poplar_error(s) {}
  explicit no_size_specified(const char *s) : poplar_error(s) {}
  no_size_specified(const std::string &fieldName, const std::string &vertexName)
      : poplar_error("field '" + fieldName + "' of vertex " + vertexName + " has no size") {}
};
POPLAR_ERROR(graph_connection_error, poplar_error);
POPLAR_ERROR(graph_cycle_error, poplar_error);
POPLAR_ERROR(graph_recursion_error, poplar_error);
POPLAR_ERROR(graph_replication_error, poplar_error);
struct profiling_disabled : poplar_error {
  profiling_disabled() : poplar_error("profiling is disabled") {}
};
struct missing_profile_data : poplar_error {
  missing_profile_data() : poplar_error("no profile data") {}
};
struct missing_graph_profile : poplar_error {
  missing_graph_profile() : poplar_error("no graph profile") {}
  explicit missing_graph_profile(const std::string &s) : poplar_error(s) {}
  explicit missing_graph_profile(const char *s) : poplar_error(s) {}
};
struct missing_perf_estimate : poplar_error {
  explicit missing_perf_estimate(const std::string &s) : poplar_error(s) {}
};
POPLAR_ERROR(invalid_tile_mapping, poplar_error);
POPLAR_ERROR(tensor_creation_error, poplar_error);
POPLAR_ERROR(tensor_io_state_error, poplar_error);
POPLAR_ERROR(tensor_metadata_error, poplar_error);
POPLAR_ERROR(stream_connection_error, poplar_error);
POPLAR_ERROR(overflow_error, poplar_error);
POPLAR_ERROR(memory_elem_constraints_error, poplar_error);
struct graph_memory_allocation_error : poplar_error {
  explicit graph_memory_allocation_error(const std::string &s) : poplar_error(s) {}
  explicit graph_memory_allocation_error(const char *s) : poplar_error(s) {}
  /// The path of the graph's profile; empty if none was written. The emulator writes none.
  std::string profilePath;
};
POPLAR_ERROR(stream_memory_allocation_error, poplar_error);
POPLAR_ERROR(invalid_machine_model, poplar_error);
POPLAR_ERROR(invalid_option, poplar_error);
struct link_error : poplar_error {
  std::string output;
  link_error(const std::string &s, const std::string &out = "") : poplar_error(s), output(out) {}
  link_error(const char *s, const char *out = "") : poplar_error(s), output(out) {}
};
struct runtime_error : poplar_error {
  struct ErrorInfo {
    ErrorCode code = ErrorCode::NONE;
  };
  runtime_error(const std::string &s) : poplar_error(s) {}
  runtime_error(const char *s) : poplar_error(s) {}
};
POPLAR_ERROR(application_runtime_error, runtime_error);
POPLAR_ERROR(system_runtime_error, runtime_error);
enum class RecoveryAction { IPU_RESET, LINK_RESET, PARTITION_RESET, FULL_RESET };
struct recoverable_runtime_error : system_runtime_error {
  recoverable_runtime_error(RecoveryAction a, const std::string &s)
      : system_runtime_error(s), action(a) {}
  recoverable_runtime_error(RecoveryAction a, const char *s) : system_runtime_error(s), action(a) {}
  RecoveryAction getRecoveryAction() const { return action; }

private:
  RecoveryAction action;
};
POPLAR_ERROR(unrecoverable_runtime_error, system_runtime_error);
POPLAR_ERROR(unknown_runtime_error, system_runtime_error);
struct symbol_error : poplar_error {
  symbol_error(const std::string &name, const unsigned tile)
      : poplar_error("symbol " + name + " not found on tile " + std::to_string(tile)) {}
};
struct file_load_error : poplar_error {
  explicit file_load_error(const std::string &s) : poplar_error(s) {}
};
POPLAR_ERROR(parse_error, poplar_error);
#undef POPLAR_ERROR

} // namespace poplar
