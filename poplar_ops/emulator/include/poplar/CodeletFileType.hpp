// SPDX-License-Identifier: Apache-2.0
#pragma once

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
} // namespace poplar
