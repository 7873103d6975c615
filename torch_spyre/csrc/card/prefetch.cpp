// SPDX-License-Identifier: Apache-2.0
#include "prefetch.h"

#include <algorithm>

namespace spyre::card {
namespace {

constexpr size_t kLine = 64;
constexpr int kIntoSecondCache = 2;

}  // namespace

void PrefetchBoard::announce(std::span<const Span> spans) {
  for (Half& half : halves_) half.end.store(0, std::memory_order_relaxed);
  size_t chunks = 0, used = 0;
  for (Span span : spans) {
    if (used == kMaxSpans) break;
    if (span.size() < kChunk) continue;
    chunks += span.size() / kChunk;  // a short rest is not worth it
    entries_[used].address.store(reinterpret_cast<uintptr_t>(span.data()), std::memory_order_relaxed);
    entries_[used++].chunks.store(chunks, std::memory_order_relaxed);
  }
  const size_t middle = chunks / 2, most = kMaxBytes / kChunk;
  halves_[0].next.store(0, std::memory_order_relaxed);
  halves_[0].end.store(std::min(middle, most), std::memory_order_release);
  halves_[1].next.store(middle, std::memory_order_relaxed);
  halves_[1].end.store(std::min(chunks, middle + most), std::memory_order_release);
}

bool PrefetchBoard::help(bool leader) {
  Half& half = halves_[leader ? 0 : 1];
  const size_t end = half.end.load(std::memory_order_acquire);
  if (half.next.load(std::memory_order_relaxed) >= end) return false;
  const size_t chunk = half.next.fetch_add(1, std::memory_order_relaxed);
  if (chunk >= end) return false;
  size_t before = 0;
  for (const Entry& entry : entries_) {
    const size_t upto = entry.chunks.load(std::memory_order_relaxed);
    if (chunk < upto) {
      const auto* p =
          reinterpret_cast<const std::byte*>(entry.address.load(std::memory_order_relaxed)) + (chunk - before) * kChunk;
      for (size_t at = 0; at < kChunk; at += kLine) __builtin_prefetch(p + at, 0, kIntoSecondCache);
      return true;
    }
    before = upto;
  }
  return true;
}

}  // namespace spyre::card
