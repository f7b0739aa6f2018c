// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>
#include <memory>
#include <string>

#include "OptionFlags.hpp"
#include "StringRef.hpp"

namespace poplar {

namespace core {
struct ExecutableImpl;
struct Access;
} // namespace core

/// A compiled graph with its programs. Move-only.
class Executable {
public:
  Executable(); // of nothing: to be assigned
  Executable(Executable &&) noexcept;
  Executable &operator=(Executable &&) noexcept;
  Executable(const Executable &) = delete;
  Executable &operator=(const Executable &) = delete;
  ~Executable();
  /// With its codelets, for this build of the emulator. Throws runtime_error unless the target is
  /// an IPU: executables of models cannot be serialised.
  void serialize(std::ostream &out) const;
  /// Throws graph_object_load_error if the data is incomplete or from another build, whatever the
  /// value of checkPackageHash.
  static Executable deserialize(std::istream &in, bool checkPackageHash = true);

private:
  friend struct core::Access;
  std::shared_ptr<core::ExecutableImpl> impl;
};

} // namespace poplar
