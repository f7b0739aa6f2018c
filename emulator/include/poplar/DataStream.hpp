// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "ReplicatedStreamMode.hpp"
#include "Type.hpp"

namespace poplar {

enum class DataStreamType {
  HostToDeviceFIFO,
  DeviceToHostFIFO,
  HostToDeviceBuffer,
  DeviceToHostBuffer
};

bool isDeviceToHost(DataStreamType type);
bool isHostToDevice(DataStreamType type);
bool isRemoteBuffer(DataStreamType type);

namespace core {
struct StreamInfo;
struct RemoteBufferInfo;
struct Access;
} // namespace core

/// A FIFO between host and device, made by Graph::addHostToDeviceFIFO or addDeviceToHostFIFO.
class DataStream {
public:
  DataStream() = default;
  DataStream(const DataStream &) = default;
  DataStream &operator=(const DataStream &) = default;

  std::string handle() const;
  std::size_t numElements() const;
  unsigned replicationFactor() const;
  ReplicatedStreamMode replicatedMode() const;
  DataStreamType type() const;
  Type elementType() const;
  friend bool operator==(const DataStream &a, const DataStream &b) { return a.info == b.info; }
  friend bool operator!=(const DataStream &a, const DataStream &b) { return !(a == b); }

private:
  friend struct core::Access;
  std::shared_ptr<const core::StreamInfo> info;
};

/// Rows of numElements() elements in streaming memory, made by Graph::addRemoteBuffer.
class RemoteBuffer {
public:
  RemoteBuffer() = default;
  RemoteBuffer(const RemoteBuffer &) = default;
  RemoteBuffer &operator=(const RemoteBuffer &) = default;

  std::string handle() const;
  DataStream getIpuToHostStream() const;
  DataStream getHostToIpuStream() const;
  std::size_t numElements() const;
  std::size_t getRepeats() const;
  Type elementType() const;
  bool isRearrangeOnHost() const;
  bool isOptimisedForMemory() const;
  friend bool operator==(const RemoteBuffer &a, const RemoteBuffer &b) { return a.info == b.info; }
  friend bool operator!=(const RemoteBuffer &a, const RemoteBuffer &b) { return !(a == b); }

private:
  friend struct core::Access;
  std::shared_ptr<const core::RemoteBufferInfo> info;
};

} // namespace poplar
