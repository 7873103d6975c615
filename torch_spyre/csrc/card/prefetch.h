// SPDX-License-Identifier: Apache-2.0
// Memory that a host thread with nothing to do brings into the caches, because the next shared work reads it.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace spyre::card {

/// What one thread announces and others prefetch while they wait. The board owns nothing: an announcement may be out of
/// date, half replaced, or about memory that was freed since. A prefetch of such an address does nothing.
class PrefetchBoard {
 public:
  static constexpr size_t kMaxSpans = 16;
  static constexpr size_t kMaxBytes = 2 << 20;  // of each half: more would push itself out of the host's caches
  static constexpr size_t kChunk = 2048;

  using Span = std::span<const std::byte>;

  /// Replaces what was announced; spans beyond the limit are left out.
  void announce(std::span<const Span> spans);
  /// Prefetches one chunk that no thread has taken yet, from the half that the leader of a team, or its helpers, will
  /// begin with. False if there is none.
  bool help(bool leader);

 private:
  struct Entry {
    std::atomic<uintptr_t> address{0};
    std::atomic<size_t> chunks{0};  // of the entries up to this one
  };
  /// Chunks of one half.
  struct Half {
    std::atomic<size_t> next{0}, end{0};
  };
  std::array<Entry, kMaxSpans> entries_;
  alignas(64) Half halves_[2];
};

}  // namespace spyre::card
