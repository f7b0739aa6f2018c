// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <iostream>

// Prints a name and what follows. One of the programs is C++11, so there is no fold here.
template <class... T> static void line(const char *name, const T &...values) {
  std::cout << name << "|";
  const char *between = "";
  (void)std::initializer_list<int>{(std::cout << between << values, between = " ", 0)...};
  std::cout << "\n";
}
