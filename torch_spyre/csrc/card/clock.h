// SPDX-License-Identifier: Apache-2.0
// The device clock: virtual nanoseconds that advance in the order of submission and never by wall time.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>

#include "spyre/card.h"

namespace spyre::card {

enum class Engine : uint8_t { compute, dma_in, dma_out };

/// What a command costs on the device clock.
struct Cost {
  Engine engine = Engine::compute;
  uint64_t duration_ns = 0;
};

/// One engine does one thing at a time; engines run beside each other. Not thread-safe.
class Clock {
 public:
  /// Books work on a stream and returns its end.
  uint64_t book(int stream, Cost cost) {
    uint64_t& free = free_[static_cast<int>(cost.engine)];
    uint64_t end = std::max(now(stream), free) + cost.duration_ns;
    busy_[static_cast<int>(cost.engine)] += cost.duration_ns;
    return ready_[stream] = free = end;
  }
  /// When the work of a stream is done. What the host has waited for lies in the past of everything it submits later.
  uint64_t now(int stream) const { return std::max(ready_[stream], host_); }
  void wait_until(int stream, uint64_t time) { ready_[stream] = std::max(now(stream), time); }
  void host_saw(uint64_t time) { host_ = std::max(host_, time); }

  uint64_t latest() const { return std::max(host_, *std::max_element(ready_.begin(), ready_.end())); }
  uint64_t busy(Engine engine) const { return busy_[static_cast<int>(engine)]; }

 private:
  std::array<uint64_t, kStreams> ready_{};
  std::array<uint64_t, 3> free_{}, busy_{};
  uint64_t host_ = 0;
};

}  // namespace spyre::card
