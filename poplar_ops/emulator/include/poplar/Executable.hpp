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
  /// In a form of the emulator's own, with the codelets: for the machine that it was compiled on. Throws runtime_error
  /// for targets that are no IPU: executables of models cannot be serialised.
  void serialize(std::ostream &out) const;
  static Executable deserialize(std::istream &in, bool checkPackageHash = true);

private:
  friend struct core::Access;
  std::shared_ptr<core::ExecutableImpl> impl;
};

} // namespace poplar
