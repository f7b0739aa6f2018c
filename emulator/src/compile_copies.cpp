// SPDX-License-Identifier: Apache-2.0
// Copies between tensors, streams and remote buffers.
#include "compiler.hpp"

namespace poplar {
namespace core {

using sparq::emulator::StepKind;

void RunBuilder::add(Address dst, Address src, std::uint64_t bytes) {
  if (out_.size() > first_) {
    Run &last = out_.back();
    if (last.count == 1 && last.dst + last.bytes == dst && last.src + last.bytes == src) {
      last.bytes += bytes;
      return;
    }
    if (last.bytes == bytes) {
      const std::int64_t d = static_cast<std::int64_t>(dst - last.dst),
                         s = static_cast<std::int64_t>(src - last.src);
      if (last.count == 1) {
        last.dstStep = d;
        last.srcStep = s;
        last.count = 2;
        return;
      }
      const auto n = static_cast<std::int64_t>(last.count);
      if (d == n * last.dstStep && s == n * last.srcStep) {
        ++last.count;
        return;
      }
    }
    // The last two pieces looked like the start of a pattern, but the second goes on contiguously:
    // take them apart.
    if (last.count == 2) {
      const Address d = last.dst + static_cast<Address>(last.dstStep),
                    s = last.src + static_cast<Address>(last.srcStep);
      if (d + last.bytes == dst && s + last.bytes == src) {
        const std::uint64_t merged = last.bytes + bytes;
        last.count = 1;
        out_.push_back({d, s, merged, 1, 0, 0});
        return;
      }
    }
  }
  out_.push_back({dst, src, bytes, 1, 0, 0});
}

// The tensor's elements against a packed array: dst is an address, src an offset in the array.
std::vector<Run> Compiler::packRuns(const Tensor &t) const {
  std::vector<Run> runs;
  RunBuilder b(runs);
  const std::size_t size = typeSize(t.elementType());
  std::uint64_t at = 0;
  forEachPiece(Access::impl(t), [&](VarId v, std::size_t begin, std::size_t n) {
    b.add(addressOf(v, begin), at, n * size);
    at += n * size;
  });
  return runs;
}

static std::vector<std::size_t> withoutOnes(const std::vector<std::size_t> &shape) {
  std::vector<std::size_t> r;
  for (std::size_t n : shape)
    if (n != 1)
      r.push_back(n);
  return r;
}

static void checkDestination(const std::string &what, const Tensor &t) {
  if (t.containsConstant())
    throw errors::copy_destination(what + ": destination must not be constant, got " +
                                   tensorName(t));
  if (t.containsAliases())
    throw errors::copy_destination(what + ": destination must not repeat elements, got " +
                                   t.getDebugStr());
}

Step Compiler::compileCopy(const ProgramImpl &p, const std::string &name) {
  const std::string what = name.empty() ? "Copy" : "Copy '" + name + "'";
  const Tensor &src = p.src, &dst = p.dst;
  if (src.elementType() != dst.elementType())
    throw errors::type_mismatch(what + ": source and destination must have one element type, got " +
                                src.getDebugStr() + " and " + dst.getDebugStr());
  if (withoutOnes(src.shape()) != withoutOnes(dst.shape()))
    throw errors::copy_shape(
        what + ": source and destination must have one shape (up to dimensions of 1), got " +
        src.getDebugStr() + " and " + dst.getDebugStr());
  checkDestination(what, dst);
  for (const auto &pair : p.replicaMap)
    if (std::max(pair.first, pair.second) >= g_.replication)
      throw errors::replica_out_of_range(
          what + ": replicas must be below the graph's " + std::to_string(g_.replication) +
          ", got " + std::to_string(pair.first) + " to " + std::to_string(pair.second));
  checkMapped(src, what);
  checkMapped(dst, what);
  const std::size_t size = typeSize(src.elementType());
  CopyPlan plan;
  RunBuilder runs(plan.runs);
  std::vector<Move> moves;
  forEachPair(src, dst, [&](VarId from, std::size_t a, VarId to, std::size_t b, std::size_t n) {
    runs.add(addressOf(to, b), addressOf(from, a), n * size);
    g_.variables[from].tiles.forEach(
        a, a + n, [&](std::size_t sb, std::size_t se, unsigned srcTile) {
          g_.variables[to].tiles.forEach(
              b + sb - a, b + se - a, [&](std::size_t db, std::size_t de, unsigned dstTile) {
                if (srcTile != dstTile)
                  moves.push_back({srcTile, dstTile, from, a + db - b, a + de - b});
                else {
                  code_.addPieces(srcTile, 1);
                  addLocal(srcTile, se - sb, (se - sb) * size);
                }
              });
        });
  });
  if (src.intersectsWith(dst)) {
    plan.stagingBytes = src.numElements() * size;
    plan.staging = allocate(plan.stagingBytes, 64);
    // First out to the staging area, then in: two packed transfers.
    std::vector<Run> out = packRuns(src), in = packRuns(dst);
    plan.runs.clear();
    for (const Run &r : out)
      plan.runs.push_back({plan.staging + r.src, r.dst, r.bytes, r.count, r.srcStep, r.dstStep});
    for (const Run &r : in)
      plan.runs.push_back({r.dst, plan.staging + r.src, r.bytes, r.count, r.dstStep, r.srcStep});
  }
  Step s;
  s.op = StepOp::Copy;
  s.index = static_cast<unsigned>(exe_->copies.size());
  StepCount cost;
  cost.name = name;
  cost.kind = StepKind::Copy;
  cost.bytes = src.numElements() * size;
  cost.localCopy = takeLocal();
  if (!moves.empty()) {
    cost.exchanges = 1;
    cost.syncs = 1;
    cost.before = exchange(byTile(moves));
    addLinks(moves, cost);
  }
  addIPUs(src, cost.ipus);
  addIPUs(dst, cost.ipus);
  s.cost = addCost(std::move(cost));
  exe_->copies.push_back(std::move(plan));
  return s;
}

// Packets of at most 1 KiB; one does not span two rows or two tiles. Counts them, the code that
// they take on their tiles, and what waits there: offsets of rows, and, where a packet's elements
// do not lie together or are no whole words, all of it.
std::uint64_t Compiler::accountTransfer(const Tensor &t, std::size_t rowElements,
                                        const Tensor &offsets) {
  constexpr std::uint64_t packetBytes = 1024, wordBytes = 4;
  const std::size_t size = typeSize(t.elementType());
  std::fill(temporaries_.begin(), temporaries_.end(), 0);
  std::map<unsigned, std::uint64_t> packetsOf; // by tile
  std::uint64_t bytes = 0;
  std::size_t leftInRow = rowElements, pieces = 0;
  unsigned current = noTile;
  VarId var = 0;
  std::size_t next = 0;
  std::vector<std::size_t> lengths; // of the pieces
  auto close = [&] {
    if (bytes == 0)
      return;
    packetsOf[current] += (bytes + packetBytes - 1) / packetBytes;
    if (offsets.valid())
      temporaries_[current] += wordBytes;
    if (pieces > 1 || bytes % wordBytes) {
      temporaries_[current] += bytes;
      code_.addPieces(current, pieces);
      for (const std::size_t n : lengths)
        addLocal(current, n, n * size);
    }
    bytes = 0;
    pieces = 0;
    lengths.clear();
  };
  forEachPiece(Access::impl(t), [&](VarId v, std::size_t begin, std::size_t n) {
    g_.variables[v].tiles.forEach(begin, begin + n,
                                  [&](std::size_t b, std::size_t e, unsigned tile) {
                                    if (tile != current)
                                      close();
                                    current = tile;
                                    while (b < e) {
                                      const std::size_t m = std::min(e - b, leftInRow);
                                      pieces += bytes == 0 || v != var || b != next;
                                      bytes += m * size;
                                      lengths.push_back(m);
                                      b += m;
                                      var = v;
                                      next = b;
                                      leftInRow -= m;
                                      if (leftInRow == 0) {
                                        close();
                                        leftInRow = rowElements;
                                      }
                                    }
                                  });
  });
  close();
  accountTemporaries();
  std::uint64_t packets = 0;
  for (const auto &tile : packetsOf) {
    packets += tile.second;
    code_.addTransfer(tile.first, tile.second);
  }
  return packets;
}

Step Compiler::compileStream(const ProgramImpl &p, const std::string &name) {
  const StreamInfo &stream = Access::info(p.stream);
  const bool in = p.kind == ProgramKind::CopyFromStream;
  const Tensor &t = in ? p.dst : p.src;
  const std::string what = "Copy: stream '" + stream.handle + "'";
  if (g_.streams.count(stream.handle) == 0 || g_.streams.at(stream.handle).get() != &stream)
    throw errors::unknown_handle(what + " must belong to this graph");
  if (isHostToDevice(stream.direction) != in)
    throw errors::stream_direction(what + " must run " +
                                   (in ? "from host to device" : "from device to host") +
                                   ", got the other direction");
  if (t.elementType() != stream.type)
    throw errors::type_mismatch(what + ": the tensor's type must be " +
                                stream.type.toString().str() + ", got " + t.getDebugStr());
  if (t.numElements() != stream.numElements)
    throw errors::copy_shape(what + ": the tensor must have " + std::to_string(stream.numElements) +
                             " elements, got " + std::to_string(t.numElements()) + " of " +
                             t.getDebugStr());
  if (in)
    checkDestination(what, t);
  checkMapped(t, what);
  TransferPlan plan;
  plan.index = stream.index;
  plan.toDevice = in;
  plan.rows = 1;
  const std::size_t size = typeSize(stream.type);
  plan.bytes = plan.rowBytes = stream.numElements * size;
  plan.runs = packRuns(t);
  plan.name = name;
  Step s;
  s.op = in ? StepOp::StreamIn : StepOp::StreamOut;
  s.index = static_cast<unsigned>(exe_->transfers.size());
  StepCount cost;
  cost.name = name;
  cost.kind = in ? StepKind::StreamIn : StepKind::StreamOut;
  cost.buffer = stream.handle;
  cost.rows = 1;
  cost.bytes = plan.bytes;
  cost.packets = accountTransfer(t, stream.numElements, Tensor());
  cost.localCopy = takeLocal();
  addIPUs(t, cost.ipus);
  cost.syncs = 1;
  s.cost = addCost(std::move(cost));
  exe_->transfers.push_back(std::move(plan));
  return s;
}

// With offsets the tensor has a row for each; without, the buffer has one row, which is the tensor.
static void checkRemoteShape(const std::string &what, const RemoteBufferInfo &buffer,
                             const Tensor &t, const Tensor &offsets) {
  if (!offsets.valid()) {
    if (buffer.repeats != 1)
      throw errors::copy_shape(what + ": a copy without offset needs a buffer of 1 row, got " +
                               std::to_string(buffer.repeats) + " rows");
    if (t.numElements() != buffer.numElements)
      throw errors::copy_shape(what + ": the tensor must have the row's " +
                               std::to_string(buffer.numElements) + " elements, got " +
                               std::to_string(t.numElements()) + " of " + t.getDebugStr());
    return;
  }
  if (offsets.elementType() != UNSIGNED_INT && offsets.elementType() != INT)
    throw errors::type_mismatch(what + ": offsets must be unsigned int or int, got " +
                                offsets.getDebugStr());
  if (offsets.rank() > 1)
    throw errors::copy_shape(what + ": offsets must have rank 0 or 1, got " +
                             offsets.getDebugStr());
  const std::size_t rows = offsets.numElements();
  if (rows == 1 && t.numElements() == buffer.numElements)
    return;
  if (t.rank() != 2 || t.dim(0) != rows || t.dim(1) != buffer.numElements)
    throw errors::copy_shape(what + ": the tensor must have shape {" + std::to_string(rows) + "," +
                             std::to_string(buffer.numElements) +
                             "} (offsets, elements of a row), got " + t.getDebugStr());
}

// Streaming memory belongs to an IPU: its tiles alone reach a buffer there, and one buffer has one
// IPU. PopART refuses a buffer of several virtual graphs. Offsets may lie elsewhere.
void Compiler::claimRemote(const RemoteBufferInfo &buffer, const Tensor &t,
                           const std::string &what) {
  std::vector<unsigned> ipus;
  if (remoteClaimed_[buffer.index])
    ipus.push_back(exe_->remoteIPUs[buffer.index]);
  addIPUs(t, ipus);
  if (ipus.size() > 1)
    throw errors::remote_buffer_over_ipus(
        what + ": copies of a remote buffer must be to and from the tiles " +
        "of one IPU, got IPU " + std::to_string(ipus[0]) + " and IPU " + std::to_string(ipus[1]));
  remoteClaimed_[buffer.index] = true;
  exe_->remoteIPUs[buffer.index] = ipus.empty() ? 0 : ipus[0];
}

// Large streaming memory takes an engine option. From which size on is not documented: public
// programs of the vendor's set it for 16 GiB or more. Whether of one buffer or of all of an IPU is
// not known either: the stricter reading is all.
void Compiler::checkStreamingMemory() const {
  constexpr std::uint64_t limit = std::uint64_t(16) << 30;
  std::vector<std::uint64_t> bytes(g_.target.getNumIPUs(), 0);
  for (const auto &b : g_.remoteList)
    bytes[exe_->remoteIPUs[b->index]] +=
        std::uint64_t(b->repeats) * b->numElements * typeSize(b->type);
  const auto extended = exe_->options.find("target.extendedMemory");
  if (extended != exe_->options.end() && extended->second == "true")
    return;
  for (std::size_t ipu = 0; ipu != bytes.size(); ++ipu)
    if (bytes[ipu] >= limit)
      throw errors::no_extended_memory(
          "engine option target.extendedMemory must be true where remote buffers" +
          (bytes.size() == 1 ? std::string() : " of IPU " + std::to_string(ipu)) + " have " +
          std::to_string(limit) + " bytes or more, got " + std::to_string(bytes[ipu]) + " bytes");
}

Step Compiler::compileRemote(const ProgramImpl &p, const std::string &name) {
  const RemoteBufferInfo &buffer = Access::info(p.remote);
  const bool in = p.kind == ProgramKind::CopyFromRemote;
  const Tensor &t = in ? p.dst : p.src;
  const std::string what = "Copy: remote buffer '" + buffer.handle + "'";
  if (g_.remotes.count(buffer.handle) == 0 || g_.remotes.at(buffer.handle).get() != &buffer)
    throw errors::unknown_handle(what + " must belong to this graph");
  if (t.elementType() != buffer.type)
    throw errors::type_mismatch(what + ": the tensor's type must be " +
                                buffer.type.toString().str() + ", got " + t.getDebugStr());
  checkRemoteShape(what, buffer, t, p.offset);
  TransferPlan plan;
  plan.hasOffsets = p.offset.valid();
  plan.rows = 1;
  if (plan.hasOffsets) {
    checkMapped(p.offset, what);
    plan.rows = p.offset.numElements();
    plan.offsetRuns = packRuns(p.offset);
    plan.offsetsSigned = p.offset.elementType() == INT;
  }
  if (in)
    checkDestination(what, t);
  checkMapped(t, what);
  claimRemote(buffer, t, what);
  const std::size_t size = typeSize(buffer.type);
  plan.index = buffer.index;
  plan.toDevice = in;
  plan.rowBytes = buffer.numElements * size;
  plan.bytes = plan.rows * plan.rowBytes;
  plan.name = name;
  // No run crosses a row: one run per row where all rows are contiguous, else the pieces of each.
  const Tensor rows = t.reshape({plan.rows, buffer.numElements});
  bool whole = true;
  std::vector<Run> pieces;
  for (std::uint64_t r = 0; r < plan.rows; ++r) {
    RunBuilder b(pieces);
    std::uint64_t at = 0;
    forEachRegion(Access::impl(rows[r]), [&](VarId v, std::size_t begin, std::size_t n) {
      b.add(addressOf(v, begin), at, n * size);
      at += n * size;
    });
    plan.rowEnd.push_back(pieces.size());
    whole = whole && pieces.size() == r + 1 && pieces.back().count == 1;
  }
  plan.runs = std::move(pieces);
  if (whole)
    plan.rowEnd.clear();
  Step s;
  s.op = in ? StepOp::RemoteRead : StepOp::RemoteWrite;
  s.index = static_cast<unsigned>(exe_->transfers.size());
  StepCount cost;
  cost.name = name;
  cost.kind = in ? StepKind::RemoteRead : StepKind::RemoteWrite;
  cost.buffer = buffer.handle;
  cost.rows = plan.rows;
  cost.bytes = plan.bytes;
  cost.packets = accountTransfer(t, buffer.numElements, p.offset);
  cost.localCopy = takeLocal();
  addIPUs(t, cost.ipus);
  cost.syncs = 1;
  s.cost = addCost(std::move(cost));
  exe_->transfers.push_back(std::move(plan));
  return s;
}

} // namespace core
} // namespace poplar
