// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "ProfileValue.hpp"
#include "StringRef.hpp"

namespace poplar {

using DebugId = std::uint64_t;

/// Where in the host program something was made.
class SourceLocation {
public:
  SourceLocation() = default;
  SourceLocation(const char *function, const char *file, unsigned line)
      : function_(function), file_(file), line_(line) {}
  const char *getFunctionName() const { return function_; }
  const char *getFileName() const { return file_; }
  unsigned getLineNumber() const { return line_; }
  bool isValid() const { return line_ != 0; }
  static SourceLocation Current(const char *function = __builtin_FUNCTION(),
                                const char *file = __builtin_FILE(),
                                unsigned line = __builtin_LINE()) {
    return {function, file, line};
  }

private:
  const char *function_ = "";
  const char *file_ = "";
  unsigned line_ = 0;
};

class DebugContext;
enum class DebugSerializationFormat { JSON, CBOR };

/// Debug information of one operation; its path names everything the operation makes.
class DebugInfo {
public:
  DebugInfo(const DebugContext &context, std::string api);
  DebugInfo(const DebugInfo &) = delete;
  DebugInfo &operator=(const DebugInfo &) = delete;
  virtual ~DebugInfo() = default;
  DebugId getId() const { return 0; }
  std::string getPathName() const { return path_; }
  /// Kept, and written nowhere.
  bool setValue(std::string name, ProfileValue value) {
    values_[std::move(name)] = std::move(value);
    return true;
  }
  // Not implemented in the emulator: these throw.
  static void
  initializeStreamer(const std::string &fileName,
                     const DebugSerializationFormat &format = DebugSerializationFormat::CBOR);
  static void closeStreamer();

private:
  std::string path_;
  std::map<std::string, ProfileValue> values_;
};

/// A name and the path of its parent: "parent/name".
class DebugNameAndId {
public:
  DebugNameAndId(std::string name = "", DebugId debugId = {}, std::string parentPath = "");
  DebugNameAndId(const char *name);
  DebugNameAndId(DebugId debugId);
  DebugNameAndId(const DebugInfo &debugInfo, std::string name = "");
  DebugNameAndId(const DebugNameAndId &parent, StringRef name = "");
  DebugNameAndId &operator=(const DebugNameAndId &) = default;
  std::string getPathName() const { return path_; }

private:
  std::string path_;
};

/// Names the things made by a call: implicit from "name", {"name"} and {parent, "name"}.
class DebugContext {
public:
  DebugContext(SourceLocation loc = SourceLocation::Current()) : loc_(loc) {}
  DebugContext(const char *name, SourceLocation loc = SourceLocation::Current())
      : path_(name), loc_(loc) {}
  DebugContext(StringRef name, SourceLocation loc = SourceLocation::Current())
      : path_(name.str()), loc_(loc) {}
  DebugContext(std::string name, SourceLocation loc = SourceLocation::Current())
      : path_(std::move(name)), loc_(loc) {}
  DebugContext(const DebugNameAndId &id, std::string name = "",
               SourceLocation loc = SourceLocation::Current())
      : path_(join(id.getPathName(), name)), loc_(loc) {}
  DebugContext(const DebugInfo &info, std::string name = "",
               SourceLocation loc = SourceLocation::Current())
      : path_(join(info.getPathName(), name)), loc_(loc) {}
  DebugContext(const DebugContext &parent, StringRef name)
      : path_(join(parent.path_, name.str())), loc_(parent.loc_) {}
  DebugContext(const DebugContext &) = default;
  DebugContext(DebugContext &&) = default;
  DebugContext &operator=(const DebugContext &) = default;
  std::string getPathName() const { return path_; }

private:
  static std::string join(const std::string &parent, const std::string &name) {
    return parent.empty() || name.empty() ? parent + name : parent + "/" + name;
  }
  std::string path_;
  SourceLocation loc_;
};

inline std::ostream &operator<<(std::ostream &os, const DebugNameAndId &id) {
  return os << id.getPathName();
}
inline std::ostream &operator<<(std::ostream &os, const DebugContext &context) {
  return os << context.getPathName();
}

inline DebugInfo::DebugInfo(const DebugContext &context, std::string)
    : path_(context.getPathName()) {}
inline DebugNameAndId::DebugNameAndId(std::string name, DebugId, std::string parentPath)
    : path_(parentPath.empty() || name.empty() ? parentPath + name : parentPath + "/" + name) {}
inline DebugNameAndId::DebugNameAndId(const char *name) : path_(name) {}
inline DebugNameAndId::DebugNameAndId(DebugId) {}
inline DebugNameAndId::DebugNameAndId(const DebugInfo &debugInfo, std::string name)
    : DebugNameAndId(std::move(name), 0, debugInfo.getPathName()) {}
inline DebugNameAndId::DebugNameAndId(const DebugNameAndId &parent, StringRef name)
    : DebugNameAndId(name.str(), 0, parent.path_) {}

} // namespace poplar
