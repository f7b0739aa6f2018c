// SPDX-License-Identifier: Apache-2.0
#include "workers.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>
#include <utility>

namespace poplar {
namespace core {

using codelet_abi::Direction;

namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::uint64_t wordBytes = 4; // the smallest that a tile stores at once
constexpr unsigned nobody = ~0u;

// Loops over bytes with nothing in them but arrays, which a compiler makes vectors of: these checks
// would take most of the time of a program that is tested.

// Adds to `written` the bytes that differ.
void markChanged(const Bytes &before, const Bytes &after, Bytes &written) {
  const std::uint8_t *a = before.data(), *b = after.data();
  std::uint8_t *w = written.data();
  const std::size_t n = written.size();
  for (std::size_t i = 0; i != n; ++i)
    w[i] = static_cast<std::uint8_t>(w[i] | (a[i] != b[i]));
}

// Whether a byte that is marked differs.
bool anyDiffers(const Bytes &marked, const Bytes &one, const Bytes &other) {
  const std::uint8_t *m = marked.data(), *a = one.data(), *b = other.data();
  const std::size_t n = marked.size();
  std::uint8_t any = 0;
  for (std::size_t i = 0; i != n; ++i)
    any = static_cast<std::uint8_t>(any | (m[i] & (a[i] != b[i])));
  return any != 0;
}

// `start`, and of `made` the bytes that are marked.
Bytes merged(const Bytes &start, const Bytes &marked, const Bytes &made) {
  Bytes result(start.size());
  const std::uint8_t *s = start.data(), *m = marked.data(), *a = made.data();
  std::uint8_t *r = result.data();
  const std::size_t n = start.size();
  for (std::size_t i = 0; i != n; ++i)
    r[i] = static_cast<std::uint8_t>(s[i] ^ ((s[i] ^ a[i]) & (0 - m[i])));
  return result;
}

// A part of what the workers may write, and its place among all of it.
struct Share {
  const Written *what;
  std::uint64_t at;
};

class Workers {
public:
  Workers(std::uint8_t *base, const ComputeSetPlan &plan, const VertexPlan &v, const Written *begin,
          const Written *end, Generators &generators)
      : base_(base), plan_(plan), v_(v), generators_(generators) {
    for (unsigned w = 0; w < v.calls && plan.asksWorker; ++w) {
      generators.enter(v.tile, w);
      const std::uint64_t *state = currentWorker()->generator;
      states_.push_back({state[0], state[1]});
    }
    layOut(begin, end);
    before_ = Bytes(bytes_);
    read(before_);
  }

  bool run(const WorkerList &list) {
    runAlone();
    checkWords();
    const std::vector<unsigned> order(list.begin(), list.begin() + v_.calls);
    runInOrder({order.rbegin(), order.rend()});
    const bool all = runInOrder(order); // leaves its results
    checkOutputsAreNotRead();
    return all;
  }

private:
  // Shares in order of address. Those that share a word on the device share it here.
  void layOut(const Written *begin, const Written *end) {
    std::vector<const Written *> sorted;
    for (const Written *w = begin; w != end; ++w)
      sorted.push_back(w);
    std::sort(sorted.begin(), sorted.end(),
              [](const Written *a, const Written *b) { return a->at < b->at; });
    for (const Written *w : sorted) {
      std::uint64_t at = (bytes_ + wordBytes - 1) / wordBytes * wordBytes + w->at % wordBytes;
      if (!shares_.empty()) {
        const Share &last = shares_.back();
        const Address end = last.what->at + last.what->bytes;
        if (end > w->at || (end % wordBytes && end / wordBytes == w->at / wordBytes))
          at = last.at + (w->at - last.what->at);
      }
      shares_.push_back({w, at});
      bytes_ = at + w->bytes;
    }
    bytes_ = (bytes_ + wordBytes - 1) / wordBytes * wordBytes; // what is nobody's stays 0
  }

  void read(Bytes &to) const {
    for (const Share &p : shares_)
      std::memcpy(to.data() + p.at, base_ + p.what->at, p.what->bytes);
  }
  void write(const Bytes &from) const {
    for (const Share &p : shares_)
      std::memcpy(base_ + p.what->at, from.data() + p.at, p.what->bytes);
  }
  bool call(unsigned worker) const {
    if (plan_.asksWorker) {
      generators_.enter(v_.tile, worker);
      std::copy(states_[worker].begin(), states_[worker].end(), currentWorker()->generator);
    }
    return v_.run(base_ + v_.state, worker);
  }

  // What `worker` leaves behind when it runs on `start`, which is then put back.
  Bytes resultOn(const Bytes &start, unsigned worker) const {
    Bytes after(start);
    write(start);
    call(worker);
    read(after);
    return after;
  }

  // Starts that tell what a worker writes, whatever its value. One byte at least differs from what
  // is stored where Outputs are the complement of what they were. An InOut or state has a meaning,
  // so its values change only a little, and only those that can not be an index.
  Bytes withOtherOutputs() const {
    Bytes start(before_);
    for (const Share &p : shares_)
      if (p.what->direction == Direction::Output)
        for (std::uint64_t i = 0; i < p.what->bytes; ++i)
          start[p.at + i] = static_cast<std::uint8_t>(~start[p.at + i]);
    return start;
  }
  Bytes withOtherInOuts() const {
    Bytes start(before_);
    for (const Share &p : shares_) {
      const bool number = p.what->type == FLOAT || p.what->type == HALF;
      if (p.what->direction != Direction::InOut || !(number || p.what->type == BOOL))
        continue;
      const std::size_t size = typeSize(p.what->type);
      for (std::uint64_t i = 0; i < p.what->bytes; i += size) // of a number the last place
        if (number || start[p.at + i] <= 1)
          start[p.at + i] ^= 1;
    }
    return start;
  }

  // Each worker with nobody else: what it writes, and its results.
  void runAlone() {
    const Bytes otherOutputs = withOtherOutputs(), otherInOuts = withOtherInOuts();
    for (unsigned w = 0; w < v_.calls; ++w) {
      write(before_);
      returned_.push_back(call(w));
      Bytes result(before_);
      read(result);
      Bytes written(bytes_, 0);
      markChanged(before_, result, written);
      if (otherOutputs != before_) {
        const Bytes other = resultOn(otherOutputs, w);
        markChanged(otherOutputs, other, written);
        if (outputReader_ == nobody && anyDiffers(written, other, result)) {
          outputReader_ = w;
          while (!written[outputRead_] || other[outputRead_] == result[outputRead_])
            ++outputRead_;
        }
      }
      if (otherInOuts != before_)
        markChanged(otherInOuts, resultOn(otherInOuts, w), written);
      written_.push_back(std::move(written));
      alone_.push_back(std::move(result));
    }
  }

  void checkWords() const {
    std::vector<std::uint8_t> writers(bytes_ / wordBytes);
    for (const Bytes &written : written_) {
      const std::uint8_t *w = written.data();
      std::uint8_t *n = writers.data();
      for (std::size_t k = 0, words = writers.size(); k != words; ++k, w += wordBytes)
        n[k] = static_cast<std::uint8_t>(n[k] + (w[0] | w[1] | w[2] | w[3]));
    }
    for (std::size_t k = 0; k != writers.size(); ++k)
      if (writers[k] > 1)
        failShared(k * wordBytes);
  }

  // Two workers write to the word at this byte.
  [[noreturn]] void failShared(std::uint64_t word) const {
    std::vector<std::pair<unsigned, std::uint64_t>> found; // worker, byte
    for (unsigned w = 0; w < v_.calls; ++w)
      for (std::uint64_t i = word; i < word + wordBytes; ++i)
        if (written_[w][i] && (found.empty() || found.back().first != w))
          found.emplace_back(w, i);
    fail("workers " + std::to_string(found[0].first) + " and " + std::to_string(found[1].first) +
         " must not write to one 32-bit word, got " + place(found[0].second) + " and " +
         place(found[1].second));
  }

  // What `worker` must make of `start`: its own results, and the rest as it was.
  Bytes expected(const Bytes &start, unsigned worker) const {
    return merged(start, written_[worker], alone_[worker]);
  }

  bool runInOrder(const std::vector<unsigned> &order) const {
    bool all = true;
    Bytes now(before_), after(before_);
    write(now);
    for (std::size_t k = 0; k < order.size(); ++k) {
      const unsigned w = order[k];
      const bool returned = call(w);
      read(after);
      if (returned != returned_[w] || after != expected(now, w))
        failSeen(w, {order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k)}, after,
                 expected(now, w));
      all &= returned;
      now = after;
    }
    return all;
  }

  // `worker` did not come to the same after `others`: says which of them it saw, and where.
  [[noreturn]] void failSeen(unsigned worker, const std::vector<unsigned> &others, Bytes got,
                             Bytes wanted) const {
    std::string after = "others";
    for (unsigned other : others) {
      const Bytes start = expected(before_, other);
      write(start);
      const bool returned = call(worker);
      Bytes end(start);
      read(end);
      if (returned == returned_[worker] && end == expected(start, worker))
        continue;
      after = "worker " + std::to_string(other);
      got = end;
      wanted = expected(start, worker);
      break;
    }
    const std::string rule = "worker " + std::to_string(worker) +
                             " must come to the same whether others have run or not, got ";
    const auto differ = std::mismatch(got.begin(), got.end(), wanted.begin());
    if (differ.first == got.end())
      fail(rule + "another return value of compute() after " + after);
    const auto i = static_cast<std::uint64_t>(differ.first - got.begin());
    fail(rule + value(got, i) + " after " + after + " and " + value(wanted, i) + " without, in " +
         place(i));
  }

  void checkOutputsAreNotRead() const {
    if (outputReader_ != nobody)
      fail("worker " + std::to_string(outputReader_) +
           " must not use what an Output held before it ran, got " + place(outputRead_) +
           " made from it");
  }

  const Share &shareAt(std::uint64_t i) const {
    std::size_t k = shares_.size() - 1;
    while (shares_[k].at > i)
      --k;
    return shares_[k];
  }
  std::string place(std::uint64_t i) const {
    const Share &p = shareAt(i);
    return "element " + std::to_string((i - p.at) / typeSize(p.what->type)) + " of " +
           p.what->field;
  }
  std::string value(const Bytes &bytes, std::uint64_t i) const {
    const Share &p = shareAt(i);
    const std::size_t size = typeSize(p.what->type);
    std::ostringstream s;
    s.precision(9);
    s << valueAsDouble(bytes.data() + p.at + (i - p.at) / size * size, p.what->type);
    return s.str();
  }
  [[noreturn]] void fail(const std::string &text) const {
    throw errors::workers_disagree(
        std::string("vertex ") + v_.name + " on tile " + std::to_string(v_.tile) +
        (plan_.name.empty() ? "" : " of compute set '" + plan_.name + "'") + ": " + text);
  }

  std::uint8_t *base_;
  const ComputeSetPlan &plan_;
  const VertexPlan &v_;
  Generators &generators_;
  std::vector<std::array<std::uint64_t, 2>> states_; // of the workers' generators, at the start
  std::vector<Share> shares_;
  std::uint64_t bytes_ = 0;
  Bytes before_;
  // By worker: what it makes of `before_`, which bytes it writes, what it returns.
  std::vector<Bytes> alone_, written_;
  std::vector<bool> returned_;
  unsigned outputReader_ = nobody;
  std::uint64_t outputRead_ = 0; // a byte that depends on what Outputs held
};

} // namespace

bool runChecked(std::uint8_t *base, const ComputeSetPlan &plan, const VertexPlan &v,
                const Written *begin, const Written *end, const WorkerList &order,
                Generators &generators) {
  return Workers(base, plan, v, begin, end, generators).run(order);
}

} // namespace core
} // namespace poplar
