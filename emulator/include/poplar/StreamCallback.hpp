// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

namespace poplar {

/// What the engine calls to fill or drain a stream buffer on the host.
class StreamCallbackBase {
public:
  enum class Result { Success, NotAvailable };
  virtual ~StreamCallbackBase() = default;
  virtual void complete() {}
  virtual void invalidatePrefetched() {}
};

class StreamCallback : public StreamCallbackBase {
public:
  using Result = StreamCallbackBase::Result;
  virtual Result prefetch(void *p) = 0;
  virtual void fetch(void *p) = 0;
};

class LegacyStreamCallback final : public StreamCallback {
public:
  LegacyStreamCallback(std::function<void(void *)> f) : callback_(std::move(f)) {}
  Result prefetch(void *) override { return Result::NotAvailable; }
  void fetch(void *p) override { callback_(p); }
  void invalidatePrefetched() override {}
  void complete() override {}

private:
  std::function<void(void *)> callback_;
};

/// Holds a callback; built from a function of a pointer or from an owned StreamCallback.
class StreamCallbackHandle {
public:
  template <class F, typename = typename std::enable_if<
                         std::is_convertible<F, std::function<void(void *)>>::value>::type>
  StreamCallbackHandle(F &&f)
      : callback_(std::make_shared<LegacyStreamCallback>(
            std::function<void(void *)>(std::forward<F>(f)))) {}
  template <class C,
            typename = typename std::enable_if<std::is_base_of<StreamCallback, C>::value>::type>
  StreamCallbackHandle(std::unique_ptr<C> p) : callback_(std::move(p)) {}
  StreamCallback *get() const { return callback_.get(); }
  StreamCallback *operator->() const { return callback_.get(); }
  StreamCallback &operator*() const { return *callback_; }

private:
  std::shared_ptr<StreamCallback> callback_;
};

} // namespace poplar
