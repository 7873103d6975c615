// SPDX-License-Identifier: Apache-2.0
#include "prefetch.h"

#include <algorithm>

namespace spyre::card {
namespace {

constexpr size_t kLine = 64;
constexpr int kIntoSecondCache = 2;

}  // namespace

void PrefetchBoard::announce(std::span<const Span> spans) {
  end_.store(0, std::memory_order_relaxed);
  size_t chunks = 0, used = 0;
  for (Span span : spans) {
    const size_t room = kMaxBytes / kChunk - chunks, wanted = span.size() / kChunk;  // a short rest is not worth it
    if (used == kMaxSpans || room == 0) break;
    if (wanted == 0) continue;
    chunks += std::min(room, wanted);
    entries_[used].address.store(reinterpret_cast<uintptr_t>(span.data()), std::memory_order_relaxed);
    entries_[used++].chunks.store(chunks, std::memory_order_relaxed);
  }
  next_.store(0, std::memory_order_relaxed);
  end_.store(chunks, std::memory_order_release);
}

bool PrefetchBoard::help() {
  const size_t end = end_.load(std::memory_order_acquire);
  if (next_.load(std::memory_order_relaxed) >= end) return false;
  const size_t chunk = next_.fetch_add(1, std::memory_order_relaxed);
  if (chunk >= end) return false;
  size_t before = 0;
  for (const Entry& entry : entries_) {
    const size_t upto = entry.chunks.load(std::memory_order_relaxed);
    if (chunk < upto) {
      const auto* p = reinterpret_cast<const std::byte*>(entry.address.load(std::memory_order_relaxed)) +
                      (chunk - before) * kChunk;
      for (size_t at = 0; at < kChunk; at += kLine) __builtin_prefetch(p + at, 0, kIntoSecondCache);
      return true;
    }
    before = upto;
  }
  return true;
}

}  // namespace spyre::card
