// SPDX-License-Identifier: Apache-2.0
// Cards that work together: a group of ranks, one card each, in processes of one host or of several.
//
// A collective is an Exchange (card.h) that a LinkGroup makes. Its data travels in the card's own format over links,
// one for each peer; how a link moves bytes is its own matter: shared memory here, anything else by the user of this
// header. Results do not depend on it: values are combined in ascending order of ranks, and each step rounds once to
// the format, as a chain of cards does that add what they receive and pass it on.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "spyre/card.h"

namespace spyre::card {

enum class Collective : uint8_t {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  gather,
  scatter,
  all_to_all,
  barrier,
  send,
  receive
};
constexpr int kCollectives = 11;
const char* name_of(Collective kind);

enum class Combine : uint8_t { sum, average, product, min, max, bit_and, bit_or, bit_xor };
const char* name_of(Combine combine);

/// What values of a format mean where the format alone does not say.
enum class Meaning : uint8_t { numbers, booleans, bytes };

/// Elements of card memory, in the order of the sizes.
struct Elements {
  DeviceTensor tensor;
  std::vector<int64_t> size;
};

/// Lanes of a link do not wait for each other.
enum class Lane : uint8_t { collective, message };
constexpr int kLanes = 2;

/// Bytes on their way.
class Flow {
 public:
  virtual ~Flow() = default;
  /// Moves what can move now. True when all of it has; `moved` is set if something has.
  virtual bool advance(bool& moved) = 0;
};

/// The way to one peer and back. Bytes of one lane arrive in the order in which they were sent. When bytes can move, it
/// rings the bell of the group: at least once for every flow that waits.
class Link {
 public:
  virtual ~Link() = default;
  virtual std::unique_ptr<Flow> send(Lane lane, std::span<const std::byte> bytes) = 0;
  virtual std::unique_ptr<Flow> receive(Lane lane, std::span<std::byte> bytes) = 0;
  /// After flows have advanced: lets the peer know what they have sent.
  virtual void tell() {}
  /// Why nothing more will come, or empty.
  virtual std::string lost() = 0;
  virtual const char* name() const = 0;
};

/// What a collective costs on the device clock: a line over the bytes of the message.
struct CollectiveCost {
  double start_ns = 0, ns_per_byte = 0, wire_bytes_per_byte = 0;
  std::string algorithm;
};

struct GroupOptions {
  int rank = 0, size = 1;
  std::string name;
  std::vector<int> world_ranks;
  std::chrono::milliseconds timeout{1'800'000};
  std::vector<CollectiveCost> costs;  // one for each kind
  bool may_spin = true;               // there is a CPU for each rank of this host
};

/// One call of a rank.
struct Call {
  Collective kind = Collective::barrier;
  Combine combine = Combine::sum;
  int root = 0;    // of rooted kinds; the peer of a message, -1 for anyone
  int tag = 0;     // of a message
  int dtype = 0;   // as the caller counts them; equal on all ranks
  int format = 0;  // of the elements on the card
  Meaning meaning = Meaning::numbers;
  std::string text;  // for people: dtype and sizes
  /// One, or one for each rank: scatter (at its root), reduce_scatter and all_to_all give, all_gather, gather (at its
  /// root) and all_to_all take one piece each.
  std::vector<std::vector<Elements>> inputs, outputs;
  std::chrono::milliseconds timeout{0};  // 0: that of the group
  bool timing_only = false;
};

/// An exchange that can be asked where its message came from.
class GroupExchange : public Exchange {
 public:
  virtual int source() const = 0;
  virtual std::shared_ptr<const ExchangeInfo> info() const = 0;
  virtual std::span<const ExchangeUse> uses() const = 0;
};

struct Traffic {
  uint64_t collectives = 0, messages = 0, sent_bytes = 0, received_bytes = 0;
};

class LinkGroup {
 public:
  /// What peers of the same host need to open this rank's mailbox.
  struct Address {
    int process = 0, fd = -1;
    uint64_t bytes = 0;
  };

  static std::shared_ptr<LinkGroup> make(GroupOptions options);
  virtual ~LinkGroup() = default;
  virtual Address address() const = 0;
  /// Shared memory with a peer of the same host.
  virtual void connect(int peer, const Address& address) = 0;
  /// Any other way. `bell` of the group may be rung from any thread.
  virtual void connect(int peer, std::unique_ptr<Link> link) = 0;
  virtual std::function<void()> bell() const = 0;

  virtual std::shared_ptr<GroupExchange> exchange(const Call& call) = 0;
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
  /// Ends everything under way with an error and tells the peers.
  virtual void abort(const std::string& reason) = 0;
  /// When nothing is under way any more, after `abort`: gives back the memory that is shared with peers.
  virtual void close() = 0;
  virtual Traffic traffic() const = 0;
  virtual const GroupOptions& options() const = 0;
  virtual const char* link_name(int peer) const = 0;
};

}  // namespace spyre::card
