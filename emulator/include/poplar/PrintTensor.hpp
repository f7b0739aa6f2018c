// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace poplar {

/// How PrintTensor writes a tensor: all elements in one format and width, of `digits` digits (0:
/// each by itself), in lines of up to maxLineWidth characters (0: one line), and of more than
/// summariseThreshold elements (0: of any number all) edgeItems at both ends of each dimension.
class PrintTensorFmt {
public:
  enum class FloatFormat { Auto, Fixed, Scientific, None };
  PrintTensorFmt(unsigned summariseThreshold = 1000, unsigned edgeItems = 3,
                 unsigned maxLineWidth = 75, unsigned digits = 8,
                 FloatFormat floatFormat = FloatFormat::Auto, char separator = ' ',
                 char openBracket = '[', char closeBracket = ']')
      : summariseThreshold(summariseThreshold), edgeItems(edgeItems), maxLineWidth(maxLineWidth),
        digits(digits), floatFormat(floatFormat), separator(separator), openBracket(openBracket),
        closeBracket(closeBracket) {}
  PrintTensorFmt(const PrintTensorFmt &) = default;
  PrintTensorFmt &operator=(const PrintTensorFmt &) = default;
  /// Prints everything, with all significant digits.
  static PrintTensorFmt disableFormatting() { return {~0u, 3, ~0u, 9, FloatFormat::None}; }

  unsigned summariseThreshold;
  unsigned edgeItems;
  unsigned maxLineWidth;
  unsigned digits;
  FloatFormat floatFormat;
  char separator;
  char openBracket;
  char closeBracket;
};

} // namespace poplar
