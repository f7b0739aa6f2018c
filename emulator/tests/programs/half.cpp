// SPDX-License-Identifier: Apache-2.0
// Conversions, as raw words on stdout:
//   half widen          all 65536 halves to float
//   half narrow         the floats on stdin to half
//   half narrow-double  the doubles on stdin to half
//   half quarter METADATA         all 256 quarters to double
//   half to-quarter METADATA NAN  the doubles on stdin to quarter; NAN is 1 where overflow gives
//   NaN
//   half target         sizes of types, and units of a tile, as text
#include <poplar/HalfFloat.hpp>
#include <poplar/QuarterFloat.hpp>
#include <poplar/Target.hpp>
#include <poplar/TypeConversion.hpp>

#include <cstdint>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

template <class T> static std::vector<T> readAll() {
  std::vector<T> v;
  T x;
  while (std::cin.read(reinterpret_cast<char *>(&x), sizeof x))
    v.push_back(x);
  return v;
}

template <class T> static void writeAll(const std::vector<T> &v) {
  std::cout.write(reinterpret_cast<const char *>(v.data()),
                  static_cast<std::streamsize>(v.size() * sizeof(T)));
}

// The functions of codelets agree with the host's.
static int quarters(const std::string &mode, int byte, bool nanOnOverflow) {
  const auto m = poplar::unpackMetadata(static_cast<poplar::MetadataType>(byte));
  const poplar::QuarterMetadata metadata(m.format, m.scale);
  if (metadata.getBinary() != byte)
    return 3;
  if (mode == "quarter") {
    std::vector<std::uint8_t> q(256);
    for (unsigned i = 0; i < 256; ++i)
      q[i] = static_cast<std::uint8_t>(i);
    std::vector<double> d(256);
    poplar::convertFromDeviceType(poplar::QUARTER, metadata, q.data(), d.data(), 256);
    for (unsigned i = 0; i < 256; ++i) {
      const float f = poplar::toFloat(quarter::fromBits(q[i]), m);
      if (i != 0x80 && f != static_cast<float>(d[i]))
        return 1;
      if (poplar::toHalf(quarter::fromBits(q[i]), m).bits() != half(f).bits())
        return 1;
    }
    writeAll(d);
    return 0;
  }
  const std::vector<double> d = readAll<double>();
  std::vector<std::uint8_t> q(d.size());
  poplar::convertToDeviceType(poplar::QUARTER, metadata, poplar::ArrayRef<double>(d), q.data(),
                              nanOnOverflow);
  for (std::size_t i = 0; i < d.size(); ++i) {
    const float f = static_cast<float>(d[i]);
    if (static_cast<double>(f) == d[i] && !nanOnOverflow && poplar::toQuarter(f, m).bits() != q[i])
      return 1;
  }
  writeAll(q);
  return 0;
}

int main(int argc, char **argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (argc > 2)
    return quarters(mode, std::stoi(argv[2]), argc > 3 && std::stoi(argv[3]));
  const poplar::Target target;
  if (mode == "target") {
    using poplar::FLOAT, poplar::HALF;
    for (const poplar::Type &type : {poplar::BOOL, poplar::QUARTER_METADATA, HALF, FLOAT})
      std::cout << target.getTypeSize(type) << " ";
    for (const poplar::Type &of : {HALF, FLOAT})
      std::cout << target.getNumConvUnits(of, HALF) << " " << target.getNumConvUnits(of, FLOAT)
                << " ";
    return 0;
  }
  if (mode == "widen") {
    std::vector<std::uint16_t> h(65536);
    for (unsigned i = 0; i < 65536; ++i)
      h[i] = static_cast<std::uint16_t>(i);
    std::vector<float> f(65536);
    poplar::copyDeviceHalfToFloat(target, h.data(), f.data(), h.size());
    for (unsigned i = 0; i < 65536; ++i) // the scalar type agrees with the bulk conversion
      if (poplar::half_bits::asBits(half::fromBits(h[i])) != poplar::half_bits::asBits(f[i]))
        return 1;
    writeAll(f);
    return 0;
  }
  std::vector<std::uint16_t> h;
  if (mode == "narrow") {
    const std::vector<float> f = readAll<float>();
    h.resize(f.size());
    poplar::copyFloatToDeviceHalf(target, f.data(), h.data(), f.size());
    for (std::size_t i = 0; i < f.size(); ++i)
      if (half(f[i]).bits() != h[i])
        return 1;
  } else if (mode == "narrow-double") {
    const std::vector<double> d = readAll<double>();
    h.resize(d.size());
    poplar::copyDoubleToDeviceHalf(target, d.data(), h.data(), d.size());
  } else {
    return 2;
  }
  writeAll(h);
}
