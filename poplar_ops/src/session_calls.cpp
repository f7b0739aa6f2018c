// SPDX-License-Identifier: Apache-2.0
//
// What a session does for the host once it is loaded.
#include "sparq/session.hpp"

namespace sparq {

const Session::Entry &Session::entryOf(const char *op, unsigned layer) const {
  for (const Entry &entry : entries_)
    if (entry.shards.front()->own(layer) < entry.shards.front()->share.nLayers)
      return entry;
  throw Error(std::string(op) + ": layer must be in [0, n_layers=" + std::to_string(nLayers_) +
              "), got " + std::to_string(layer));
}

void Session::checkBatch(const char *op, std::size_t n) const {
  if (n != shape_.batch)
    throw Error(std::string(op) + ": lengths must have shape (batch=" +
                std::to_string(shape_.batch) + ",), got (" + std::to_string(n) + ",)");
}

const PlannedAttention &Session::program(std::int64_t index) const {
  if (index < 0 || index >= static_cast<std::int64_t>(nAttention()))
    throw Error("attention: index must be in [0, " + std::to_string(nAttention()) + "), got " +
                std::to_string(index));
  return plan().attention[static_cast<std::size_t>(index)];
}

void Session::select(const Entry &entry, unsigned layer) {
  for (const Shard *const shard : entry.shards)
    shard->host->selectLayer(*engine_, shard->own(layer));
}

std::vector<std::uint32_t> Session::lengths(unsigned layer) const {
  std::vector<std::uint32_t> all(shape_.batch);
  for (const Shard *const shard : entryOf("lengths", layer).shards) {
    const std::vector<std::uint32_t> &own = shard->host->lengths(shard->own(layer));
    std::copy(own.begin(), own.end(), all.begin() + shard->share.firstBatch);
  }
  return all;
}

void Session::write(const std::uint16_t *key, const std::uint16_t *value, unsigned nTokens,
                    const std::vector<std::uint32_t> &counts, unsigned layer) {
  const Entry &entry = entryOf("append", layer);
  checkBatch("append", counts.size());
  for (const Shard *const shard : entry.shards) // before any is altered
    shard->host->checkRoom(shard->own(layer), nTokens, shard->share.ofBatch(counts),
                           shard->share.firstBatch);
  const std::size_t each = std::size_t(nTokens) * shape_.headDim;
  for (Shard *const shard : entry.shards)
    shard->host->write(*engine_, shard->own(layer), partOf(shape_, shard->share, key, each).data(),
                       partOf(shape_, shard->share, value, each).data(), nTokens,
                       shard->share.ofBatch(counts));
}

void Session::read(std::uint16_t *key, std::uint16_t *value, unsigned nTokens, unsigned layer) {
  const std::size_t each = std::size_t(nTokens) * shape_.headDim;
  for (const Shard *const shard : entryOf("read", layer).shards) {
    std::vector<std::uint16_t> k(shard->share.shape.nTasks() * each), v(k.size());
    shard->host->read(*engine_, shard->own(layer), k.data(), v.data(), nTokens);
    putPart(shape_, shard->share, k, key, each);
    putPart(shape_, shard->share, v, value, each);
  }
}

void Session::reset(unsigned layer) {
  for (Shard *const shard : entryOf("reset", layer).shards)
    shard->host->reset(*engine_, shard->own(layer));
}

void Session::assumeLengths(const std::vector<std::uint32_t> &lengths, unsigned layer) {
  checkBatch("plan", lengths.size());
  for (Shard *const shard : entryOf("plan", layer).shards)
    shard->host->setLengths(*engine_, shard->own(layer), shard->share.ofBatch(lengths));
}

void Session::append(const std::uint16_t *key, const std::uint16_t *value,
                     const std::vector<std::uint32_t> &active, unsigned layer) {
  const Entry &entry = entryOf("append", layer);
  checkBatch("append", active.size());
  for (const Shard *const shard : entry.shards)
    shard->host->checkRoom(shard->own(layer), 1, shard->share.ofBatch(active),
                           shard->share.firstBatch);
  select(entry, layer);
  entry.ports->key.host.write(*engine_, key);
  entry.ports->value.host.write(*engine_, value);
  entry.ports->active.host.write(*engine_, active.data());
  engine_->run(entry.firstProgram);
  for (Shard *const shard : entry.shards)
    shard->host->advance(shard->own(layer), shard->share.ofBatch(active));
}

void Session::tookStep(const Entry &entry, std::size_t index, unsigned layer) {
  last_ = &entry;
  lastIndex_ = index;
  if (plan().attention[index].remembers())
    for (Shard *const shard : entry.shards)
      shard->host->history().advance(shard->own(layer), shard->host->lengths(shard->own(layer)));
}

void Session::attention(std::size_t index, const std::uint16_t *query, std::uint16_t *output,
                        unsigned layer) {
  program(static_cast<std::int64_t>(index));
  const Entry &entry = entryOf("attention", layer);
  select(entry, layer);
  entry.ports->query.host.write(*engine_, query);
  engine_->run(entry.firstProgram + static_cast<unsigned>(1 + index));
  entry.ports->outputs[index].host.read(*engine_, output);
  tookStep(entry, index, layer);
}

void Session::attendAll(std::size_t index, const std::uint16_t *query, std::uint16_t *output) {
  if (firstStack_ == 0)
    throw Error("attention: the session must have been made with stacked=True, got False");
  program(static_cast<std::int64_t>(index));
  entries_.front().ports->query.host.write(*engine_, query);
  engine_->run(firstStack_ + static_cast<unsigned>(index));
  entries_.back().ports->outputs[index].host.read(*engine_, output);
  for (unsigned layer = 0; layer != nLayers_; ++layer)
    tookStep(entryOf("attention", layer), index, layer);
}

std::vector<HostHistory::Steps> Session::history(unsigned layer) {
  const Entry &entry = entryOf("history", layer);
  std::vector<HostHistory::Steps> all(shape_.batch);
  for (const Shard *const shard : entry.shards) {
    std::vector<HostHistory::Steps> own = shard->host->history().read(*engine_, shard->own(layer));
    std::move(own.begin(), own.end(), all.begin() + shard->share.firstBatch);
  }
  return all;
}

void Session::setHistory(const std::vector<HostHistory::Steps> &steps, unsigned layer) {
  const Entry &entry = entryOf("set_history", layer);
  if (steps.size() != shape_.batch)
    throw Error("set_history: steps must be of each of batch=" + std::to_string(shape_.batch) +
                ", got " + std::to_string(steps.size()));
  for (const Shard *const shard : entry.shards) // before any is altered
    shard->host->history().check(shard->share.ofBatch(steps));
  for (Shard *const shard : entry.shards)
    shard->host->history().write(*engine_, shard->own(layer), shard->share.ofBatch(steps));
}

std::uint64_t Session::cycles() {
  if (!timed_)
    throw Error("cycles: the session must have been made with timed=True, got False");
  std::uint32_t words[2]; // the low one first
  last_->cycles[lastIndex_].read(*engine_, words);
  return words[0] + (std::uint64_t(words[1]) << 32);
}

double Session::clock() const { return device_.getTarget().getTileClockFrequency(); }

void Session::forgetHot() {
  for (unsigned layer = 0; layer != nLayers_; ++layer) {
    const Entry &entry = entryOf("forget_hot", layer);
    select(entry, layer);
    for (Shard *const shard : entry.shards)
      if (!shard->host->forgetHot(*engine_))
        throw noTiers("forget_hot");
  }
}

Error Session::noTiers(const char *op) const {
  const Memory memory =
      nAttention() == 0 ? Memory::streaming : plan().attention.front().kernel->memory;
  return Error(std::string(op) + ": memory must be 'tiered', got '" + nameOf(memory) + "'");
}

std::vector<std::uint32_t> Session::misses() {
  std::vector<std::uint32_t> all(shape_.nTasks());
  for (const Shard *const shard : last_->shards) {
    const auto own = shard->host->misses(*engine_);
    if (!own)
      throw noTiers("misses");
    putPart(shape_, shard->share, *own, all.data(), 1);
  }
  return all;
}

} // namespace sparq
