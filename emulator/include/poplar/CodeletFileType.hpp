// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace poplar {
enum class CodeletFileType {
  PreprocessedAsmSource,
  AsmSource,
  CSource,
  CppSource,
  IrSource,
  Object,
  Auto
};

/// By the end of a file's name.
CodeletFileType getCodeletFileType(const char *path);
/// The end of the names of such files, with its dot.
std::string getExtensionFromFileType(CodeletFileType type);
/// The compiler's option for such files.
std::string getLanguageOption(CodeletFileType type);
} // namespace poplar
