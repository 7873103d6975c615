// SPDX-License-Identifier: Apache-2.0
// The shared memory of one rank of a group: a bell, how the rank is, and a ring of bytes for each peer and lane.
//
// A ring has one writer, the peer, and one reader, the owner. Who waits for a peer sleeps on its own bell. A writer
// rings the bell of the reader once for all that it has written; a reader rings back only if the writer lacks room.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>

#include "segment.h"
#include "spyre/links.h"

namespace spyre::card {

constexpr uint64_t kRingBytes[kLanes] = {1u << 20, 256u << 10};

struct Ring {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) std::atomic<uint32_t> full;  // the writer waits for room
};

struct MailboxHead {
  alignas(64) std::atomic<uint32_t> bell;  // counts
  std::atomic<uint32_t> sleepers;          // whom to wake: Mailbox::Sleeper, or'ed
  std::atomic<uint32_t> wake_at;           // the count from which sleepers have something to do
  std::atomic<uint32_t> polling;           // threads that look at the bell anyway
  /// 0: well, 1: has left the group, 2: has given up. `reason` is written before.
  alignas(64) std::atomic<uint32_t> state;
  char reason[448];
};

class Mailbox {
 public:
  enum State : uint32_t { well, left, gave_up };
  /// The thread of the group; the thread that will run what comes after, which is to be preferred.
  enum Sleeper : uint32_t { keeper = 1, attendant = 2 };

  explicit Mailbox(int ranks) : segment_(Segment::create(bytes_for(ranks))), ranks_(ranks) {}
  Mailbox(int ranks, const LinkGroup::Address& at)
      : segment_(Segment::open(at.process, at.fd, bytes_for(ranks))), ranks_(ranks) {}

  const Segment& segment() const { return segment_; }
  MailboxHead& head() const { return *reinterpret_cast<MailboxHead*>(segment_.data()); }

  Ring& ring(int from, Lane lane) const {
    return reinterpret_cast<Ring*>(segment_.data() + sizeof(MailboxHead))[from * kLanes + static_cast<int>(lane)];
  }
  std::byte* bytes(int from, Lane lane) const {
    const uint64_t before = lane == Lane::collective ? 0 : kRingBytes[0];
    return segment_.data() + heads(ranks_) + static_cast<uint64_t>(from) * (kRingBytes[0] + kRingBytes[1]) + before;
  }

  /// Gives the memory back; nobody hears of this rank any more.
  void close() { segment_ = Segment(); }
  bool closed() const { return !segment_.data(); }

  /// Something has moved. A system call only if somebody sleeps who has waited for it.
  void ring_bell() const {
    if (closed()) return;
    const uint32_t count = head().bell.fetch_add(1, std::memory_order_seq_cst) + 1;
    if (head().polling.load(std::memory_order_seq_cst)) return;
    const uint32_t sleepers = head().sleepers.load(std::memory_order_seq_cst);
    if (!sleepers || !reached(count, head().wake_at.load(std::memory_order_seq_cst))) return;
    shared_futex_wake(head().bell, sleepers & attendant ? attendant : keeper);
  }
  /// Wakes the threads of this rank, whatever they wait for.
  void wake_own() const {
    if (closed()) return;
    head().bell.fetch_add(1, std::memory_order_seq_cst);
    shared_futex_wake(head().bell, keeper | attendant);
  }
  /// The bell has come to `count`, which wraps around.
  static bool reached(uint32_t bell, uint32_t count) { return static_cast<int32_t>(bell - count) >= 0; }
  void say(State state, const std::string& reason) const {
    if (closed() || head().state.load() != well) return;
    std::strncpy(head().reason, reason.c_str(), sizeof(head().reason) - 1);
    head().state.store(state, std::memory_order_release);
  }

  static uint64_t bytes_for(int ranks) {
    return heads(ranks) + static_cast<uint64_t>(ranks) * (kRingBytes[0] + kRingBytes[1]);
  }

 private:
  static uint64_t heads(int ranks) {
    const uint64_t bytes = sizeof(MailboxHead) + static_cast<uint64_t>(ranks) * kLanes * sizeof(Ring);
    return (bytes + 4095) / 4096 * 4096;
  }

  Segment segment_;
  int ranks_;
};

/// Rings to and from a peer whose process runs on this host.
std::unique_ptr<Link> shared_link(std::shared_ptr<const Mailbox> own, int rank, int peer, const LinkGroup::Address& at,
                                  int ranks);

}  // namespace spyre::card
