// SPDX-License-Identifier: Apache-2.0
// What the tests' programs share.
#pragma once

#include <poplar/Engine.hpp>
#include <poplar/IPUModel.hpp>

#include <iostream>
#include <string>
#include <vector>

inline poplar::Device emulatedDevice(unsigned tiles) {
  poplar::IPUModel model;
  model.tilesPerIPU = tiles;
  return model.createDevice();
}

// Quotes a string for JSON.
inline std::string quoted(const std::string &s) {
  std::string r = "\"";
  for (char c : s) {
    if (c == '"' || c == '\\')
      r += '\\';
    r += c == '\n' ? ' ' : c;
  }
  return r + "\"";
}

template <class T> std::string jsonList(const std::vector<T> &values) {
  std::string r = "[";
  for (std::size_t i = 0; i < values.size(); ++i)
    r += (i ? "," : "") + (values[i] == values[i] ? std::to_string(values[i]) : "NaN");
  return r + "]";
}

template <class T>
std::vector<T> readTensor(poplar::Engine &e, const std::string &handle, std::size_t n) {
  std::vector<T> v(n);
  e.readTensor(handle, v.data(), v.data() + n);
  return v;
}
