// SPDX-License-Identifier: Apache-2.0
// One call of a group under way: what its rank sends to and expects from each peer, step by step.
//
// Every step moves what can move and returns; the group calls again when something has changed. A collective begins
// with a letter to every peer: what is called, on what, and when the rank's stream got there. Small data travels with
// the letter; larger data follows when all letters agree. So ranks that disagree hear of it, and no byte of one call
// ends up in another.
#pragma once
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "buffers.h"
#include "combine.h"
#include "dma.h"
#include "spyre/links.h"

namespace spyre::card {

/// Largest message that travels with its letter.
constexpr uint64_t kEnclosedBytes = 64u << 10;

struct Letter {
  uint64_t sequence = 0, arrival_ns = 0;
  uint64_t bytes = 0;     // for the receiver, in all
  uint64_t enclosed = 0;  // that follow at once
  int32_t root = 0, tag = 0, dtype = 0;
  Collective kind = Collective::barrier;
  Combine combine = Combine::sum;
  char text[118] = {};

  std::string call() const;
};

/// Elements of several tensors as one run of bytes in the card's format.
class Pieces {
 public:
  explicit Pieces(std::span<const Elements> elements, bool to_device);
  uint64_t bytes() const { return bytes_; }
  void read(std::byte* memory, std::byte* to) const;
  void write(std::byte* memory, const std::byte* from) const;
  const std::vector<DmaPlan>& plans() const { return plans_; }

 private:
  void move(std::byte* memory, std::byte* bytes) const;

  std::vector<DmaPlan> plans_;
  uint64_t bytes_ = 0;
  bool to_device_;
};

/// What all operations of a group share.
struct Peers {
  const GroupOptions& options;
  std::vector<std::unique_ptr<Link>>& links;  // none for the own rank
  std::shared_ptr<BufferPool> buffers;

  int rank() const { return options.rank; }
  int size() const { return options.size; }
};

class Operation {
 public:
  Operation(const Call& call, Peers peers);
  virtual ~Operation() = default;

  /// The stream is there.
  virtual void begin(std::byte* memory, uint64_t arrival_ns) = 0;
  /// Moves what can move; true when all is done. Throws what ends it.
  virtual bool advance(bool& moved) = 0;
  /// Peers that it waits for.
  virtual std::vector<int> awaited() const = 0;
  virtual int source() const { return -1; }
  /// How often peers will ring the bell, at least, before all is done.
  virtual uint32_t rings_awaited() const { return 1; }

  uint64_t end_ns() const { return end_ns_; }
  const Call& call() const { return call_; }
  uint64_t message_bytes() const { return message_bytes_; }
  std::string describe() const;
  uint64_t sequence = 0;
  uint64_t sent_bytes = 0, received_bytes = 0;

 protected:
  uint64_t price_ns() const;

  Call call_;
  Peers peers_;
  std::vector<Pieces> inputs_, outputs_;
  uint64_t message_bytes_ = 0;  // as the time of the collective counts them
  uint64_t end_ns_ = 0;
};

std::unique_ptr<Operation> make_collective(const Call& call, Peers peers);

/// Messages from peers that nobody has asked for yet, and who asks.
class Inbox;
std::shared_ptr<Inbox> make_inbox(Peers peers);
std::unique_ptr<Operation> make_send(const Call& call, Peers peers);
std::unique_ptr<Operation> make_receive(const Call& call, Peers peers, std::shared_ptr<Inbox> inbox);

}  // namespace spyre::card
