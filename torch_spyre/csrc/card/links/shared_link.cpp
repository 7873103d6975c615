// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "mailbox.h"

namespace spyre::card {
namespace {

/// Copies between a ring, which wraps around, and a run of bytes.
template <class Copy>
void in_ring(uint64_t position, uint64_t capacity, uint64_t n, const Copy& copy) {
  const uint64_t begin = position % capacity, first = std::min(n, capacity - begin);
  copy(begin, uint64_t{0}, first);
  if (first < n) copy(uint64_t{0}, first, n - first);
}

class SendFlow final : public Flow {
 public:
  /// `untold` is set when the peer is to hear of what was written.
  SendFlow(const Mailbox& to, bool& untold, int rank, Lane lane, std::span<const std::byte> bytes)
      : untold_(untold), ring_(to.ring(rank, lane)), data_(to.bytes(rank, lane)), lane_(lane), bytes_(bytes) {}

  bool advance(bool& moved) override {
    if (bytes_.empty() || write(moved)) return true;
    ring_.full.store(1, std::memory_order_seq_cst);
    return write(moved);  // what was read before it could see the line above
  }

 private:
  bool write(bool& moved) {
    const uint64_t capacity = kRingBytes[static_cast<int>(lane_)];
    const uint64_t written = ring_.written.load(std::memory_order_relaxed);
    const uint64_t room = capacity - (written - ring_.read.load(std::memory_order_seq_cst));
    const uint64_t n = std::min<uint64_t>(room, bytes_.size());
    if (n) {
      in_ring(written, capacity, n, [&](uint64_t at, uint64_t from, uint64_t count) {
        std::memcpy(data_ + at, bytes_.data() + from, count);
      });
      ring_.written.store(written + n, std::memory_order_release);
      bytes_ = bytes_.subspan(n);
      moved = untold_ = true;
    }
    return bytes_.empty();
  }

  bool& untold_;
  Ring& ring_;
  std::byte* data_;
  Lane lane_;
  std::span<const std::byte> bytes_;
};

class ReceiveFlow final : public Flow {
 public:
  ReceiveFlow(const Mailbox& own, const Mailbox& from, int peer, Lane lane, std::span<std::byte> bytes)
      : from_(from), ring_(own.ring(peer, lane)), data_(own.bytes(peer, lane)), lane_(lane), bytes_(bytes) {}

  bool advance(bool& moved) override {
    const uint64_t capacity = kRingBytes[static_cast<int>(lane_)];
    const uint64_t read = ring_.read.load(std::memory_order_relaxed);
    const uint64_t here = ring_.written.load(std::memory_order_acquire) - read;
    const uint64_t n = std::min<uint64_t>(here, bytes_.size());
    if (n) {
      in_ring(read, capacity, n,
              [&](uint64_t at, uint64_t to, uint64_t count) { std::memcpy(bytes_.data() + to, data_ + at, count); });
      ring_.read.store(read + n, std::memory_order_seq_cst);
      bytes_ = bytes_.subspan(n);
      if (ring_.full.load(std::memory_order_seq_cst)) {
        ring_.full.store(0, std::memory_order_seq_cst);
        from_.ring_bell();
      }
      moved = true;
    }
    return bytes_.empty();
  }

 private:
  const Mailbox& from_;
  Ring& ring_;
  std::byte* data_;
  Lane lane_;
  std::span<std::byte> bytes_;
};

class SharedLink final : public Link {
 public:
  SharedLink(std::shared_ptr<const Mailbox> own, int rank, int peer, const LinkGroup::Address& at, int ranks)
      : own_(std::move(own)), theirs_(ranks, at), watch_(at.process), process_(at.process), rank_(rank), peer_(peer) {}

  std::unique_ptr<Flow> send(Lane lane, std::span<const std::byte> bytes) override {
    return std::make_unique<SendFlow>(theirs_, untold_, rank_, lane, bytes);
  }
  std::unique_ptr<Flow> receive(Lane lane, std::span<std::byte> bytes) override {
    return std::make_unique<ReceiveFlow>(*own_, theirs_, peer_, lane, bytes);
  }
  void tell() override {
    if (std::exchange(untold_, false)) theirs_.ring_bell();
  }
  std::string lost() override {
    const uint32_t state = theirs_.head().state.load(std::memory_order_acquire);
    const std::string process = "(process " + std::to_string(process_) + ")";
    if (state == Mailbox::gave_up) return process + " gave up: " + theirs_.head().reason;
    if (state == Mailbox::left) return process + " has left the group";
    return watch_.alive() ? "" : process + " has ended";
  }
  const char* name() const override { return "shared memory"; }

 private:
  std::shared_ptr<const Mailbox> own_;
  Mailbox theirs_;
  ProcessWatch watch_;
  int process_, rank_, peer_;
  bool untold_ = false;
};

}  // namespace

std::unique_ptr<Link> shared_link(std::shared_ptr<const Mailbox> own, int rank, int peer, const LinkGroup::Address& at,
                                  int ranks) {
  return std::make_unique<SharedLink>(std::move(own), rank, peer, at, ranks);
}

}  // namespace spyre::card
