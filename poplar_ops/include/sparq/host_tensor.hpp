// SPDX-License-Identifier: Apache-2.0
//
// A tensor that the host writes or reads. Poplar limits a host transfer to 128 MiB, so a large one
// goes in pieces; and a handle serves one direction only, as in the vendor's own programs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <poplar/Engine.hpp>
#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>
#include <string>
#include <vector>

namespace sparq {

class HostTensor {
public:
  HostTensor() = default;
  // Handles begin with `name`.
  static HostTensor writable(poplar::Graph &graph, const poplar::Tensor &tensor,
                             const std::string &name);
  static HostTensor readable(poplar::Graph &graph, const poplar::Tensor &tensor,
                             const std::string &name);

  std::size_t size() const { return pieces_.empty() ? 0 : pieces_.back().end; } // elements

  // size() elements, each as large as the tensor's.
  void write(poplar::Engine &engine, const void *data) const;
  void read(poplar::Engine &engine, void *data) const;

private:
  struct Piece {
    std::string handle;
    std::size_t begin, end; // elements
  };
  template <class Create>
  static HostTensor inPieces(const poplar::Graph &graph, const poplar::Tensor &tensor,
                             const std::string &name, const Create &create);

  std::vector<Piece> pieces_;
  std::size_t elementBytes_ = 0;
};

// Rows of a remote buffer that the host writes or reads: a batch of rows in one run of a program,
// which copies them between a staging tensor and the rows that a list names. A call to the engine
// for each row would take minutes for a long cache.
class RemoteRows {
public:
  // Rows in one batch, for a buffer of nRows on nTiles. A buffer has a batch of spare rows behind
  // those in use: the padding of a batch goes there, because a store may not name a row twice.
  static std::size_t batchSize(std::size_t nRows, std::size_t rowBytes, unsigned nTiles);

  RemoteRows() = default;
  // Adds the staging tensor to the graph. The first `nRows` rows of the buffer are in use. Handles
  // begin with `name`.
  RemoteRows(poplar::Graph &graph, const poplar::RemoteBuffer &buffer, std::size_t nRows,
             const std::string &name);

  // To be among the engine's programs, the first of them as number `first`.
  std::vector<poplar::program::Program> programs() const { return {write_, read_}; }
  void setFirstProgram(unsigned first) { firstProgram_ = first; }

  // Collects rows; writes them a batch at a time, and what is left when it is told to.
  class Writer {
  public:
    Writer(const RemoteRows &rows, poplar::Engine &engine);
    void add(std::size_t row, const void *data);
    void finish();

  private:
    const RemoteRows &rows_;
    poplar::Engine &engine_;
    std::vector<std::uint32_t> index_;
    std::vector<char> data_;
  };

  // Calls use(i, data) for each of the rows, in their order.
  void read(poplar::Engine &engine, const std::vector<std::size_t> &rows,
            const std::function<void(std::size_t, const void *)> &use) const;

private:
  std::size_t nRows_ = 0, batch_ = 0, rowBytes_ = 0;
  HostTensor rows_, writeData_, readData_;
  poplar::program::Sequence write_, read_;
  unsigned firstProgram_ = 0;
};

} // namespace sparq
