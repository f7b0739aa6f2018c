// SPDX-License-Identifier: Apache-2.0
#include "sparq/cache.hpp"
#include "sparq/host_cache.hpp"
#include "stores/history.hpp"

namespace sparq {

using namespace poplar;

HostHistory::HostHistory(Graph &graph, const Cache &cache) {
  const History &history = cache.plan.history;
  if (history.nRecent == 0)
    return;
  nRecent_ = history.nRecent;
  length_ = history.length;
  nPieces_ = history.nPieces;
  batch_ = cache.plan.shape.batch;
  capacity_ = cache.plan.shape.capacity;
  const unsigned nLayers = cache.layout().nLayers;
  lengths_.assign(nLayers, std::vector<std::deque<std::uint32_t>>(batch_));
  newest_.assign(nLayers, std::vector<std::uint32_t>(batch_, 0));
  const RecentShares::OfLayer layer = storeOf<RecentShares>(cache).ofLayer(graph, cache);
  if (nLayers != 1) {
    loadLayer(cache, load_, {cache.name});
    load_.add(layer.load);
    loadLayer(cache, store_, {cache.name});
    store_.add(layer.store);
  }
  const auto handle = [&](const char *what) { return cache.name + "/" + what; };
  readRows_ = HostTensor::readable(graph, layer.rows, handle("history_rows"));
  writeRows_ = HostTensor::writable(graph, layer.rows, handle("history_rows"));
  writeSums_ = HostTensor::writable(graph, layer.sums, handle("history_sums"));
  writeStep_ = HostTensor::writable(graph, layer.step, handle("history_step"));
}

std::vector<program::Program> HostHistory::programs() const {
  if (lengths_.size() <= 1)
    return {};
  return {load_, store_};
}

void HostHistory::advance(unsigned layer, const std::vector<std::uint32_t> &lengths) {
  for (unsigned b = 0; b != batch_; ++b) {
    std::deque<std::uint32_t> &of = lengths_[layer][b];
    of.push_back(lengths[b]);
    if (of.size() > nRecent_)
      of.pop_front();
    newest_[layer][b] = (newest_[layer][b] + 1) % nRecent_;
  }
}

bool HostHistory::any(unsigned layer) const {
  if (nRecent_ != 0)
    for (const std::deque<std::uint32_t> &of : lengths_[layer])
      if (!of.empty())
        return true;
  return false;
}

std::vector<HostHistory::Steps> HostHistory::read(Engine &engine, unsigned layer) const {
  std::vector<Steps> all(batch_);
  if (!any(layer))
    return all;
  if (lengths_.size() > 1)
    engine.run(firstProgram_);
  std::vector<std::uint32_t> rows(readRows_.size());
  readRows_.read(engine, rows.data());
  for (unsigned b = 0; b != batch_; ++b) {
    const std::uint32_t *const ofElement = rows.data() + b * (rows.size() / batch_);
    const std::deque<std::uint32_t> &lengths = lengths_[layer][b];
    for (std::size_t i = 0; i != lengths.size(); ++i) {
      const std::size_t back = lengths.size() - 1 - i,
                        row = (newest_[layer][b] + nRecent_ - back) % nRecent_;
      std::vector<std::uint32_t> shares(lengths[i]);
      for (std::size_t p = 0; p != shares.size(); ++p)
        shares[p] = ofElement[at(row, p)];
      all[b].push_back(std::move(shares));
    }
  }
  return all;
}

void HostHistory::check(const std::vector<Steps> &steps) const {
  const auto refuse = [](const char *what, std::size_t most, std::size_t got) {
    throw Error(std::string("set_history: ") + what + std::to_string(most) + ", got " +
                std::to_string(got));
  };
  if (steps.size() != batch_)
    refuse("steps must be of each of batch=", batch_, steps.size());
  for (const Steps &of : steps) {
    if (of.size() > nRecent_)
      refuse("steps must be at most n_recent=", nRecent_, of.size());
    for (const std::vector<std::uint32_t> &shares : of)
      if (shares.size() > capacity_)
        refuse("a step must have at most capacity=", capacity_, shares.size());
  }
}

void HostHistory::write(Engine &engine, unsigned layer, const std::vector<Steps> &steps) {
  check(steps);
  std::vector<std::uint32_t> rows(writeRows_.size(), 0), sums(writeSums_.size(), 0),
      newest(writeStep_.size());
  for (unsigned b = 0; b != batch_; ++b) {
    std::uint32_t *const ofElement = rows.data() + b * (rows.size() / batch_),
                         *const sum = sums.data() + b * (sums.size() / batch_);
    std::deque<std::uint32_t> lengths;
    for (const std::vector<std::uint32_t> &shares : steps[b]) {
      for (std::size_t p = 0; p != shares.size(); ++p) {
        ofElement[at(lengths.size(), p)] = shares[p];
        sum[p] += shares[p];
      }
      lengths.push_back(static_cast<std::uint32_t>(shares.size()));
    }
    newest_[layer][b] = static_cast<std::uint32_t>((lengths.size() + nRecent_ - 1) % nRecent_);
    std::fill_n(newest.begin() + b * nPieces_, nPieces_, newest_[layer][b]);
    lengths_[layer][b] = std::move(lengths);
  }
  writeRows_.write(engine, rows.data());
  writeSums_.write(engine, sums.data());
  writeStep_.write(engine, newest.data());
  if (lengths_.size() > 1)
    engine.run(firstProgram_ + 1);
}

} // namespace sparq
