// SPDX-License-Identifier: Apache-2.0
// The device clock: virtual nanoseconds that advance in the order of submission and never by wall time.
//
// An exchange with other cards ends when they say so. What is booked behind it gets a time that is computed then: each
// unknown time is a node that knows what it waits for.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "spyre/card.h"

namespace spyre::card {

enum class Engine : uint8_t { compute, dma_in, dma_out };

/// What a command costs on the device clock.
struct Cost {
  Engine engine = Engine::compute;
  uint64_t duration_ns = 0;
};

/// The latest of the times it waits for, plus a duration.
struct TimeNode : LaterTime {
  uint64_t base = 0, add = 0;
  int missing = 0;
  /// Of the end of an exchange: exchanges of one stream end one after the other.
  int stream = -1;
  uint64_t turn = 0;
  std::vector<std::shared_ptr<TimeNode>> next;  // nodes that wait for this one

  void say(uint64_t value) {
    ns.store(value, std::memory_order_release);
    known.store(true, std::memory_order_release);
    for (const auto& node : std::exchange(next, {})) {
      node->base = std::max(node->base, value);
      if (--node->missing == 0) node->say(node->base + node->add);
    }
  }
};
using NodePtr = std::shared_ptr<TimeNode>;

/// A time: `ns`, or the latest of it and of times that are not known yet.
class Moment {
 public:
  Moment(uint64_t ns = 0) : ns_(ns) {}
  explicit Moment(NodePtr node) { join(std::move(node)); }
  explicit Moment(const Marker& marker) : ns_(marker.later ? 0 : marker.time_ns) {
    if (marker.later) join(std::static_pointer_cast<TimeNode>(marker.later));
  }

  /// The later of both.
  void join(const Moment& other) {
    ns_ = std::max(ns_, other.ns_);
    for (const NodePtr& node : other.nodes_) join(node);
  }
  bool known() {
    std::erase_if(nodes_, [&](const NodePtr& node) {
      if (node->known) ns_ = std::max(ns_, node->ns.load());
      return node->known.load();
    });
    return nodes_.empty();
  }
  /// What is sure.
  uint64_t at_least() const {
    uint64_t ns = ns_;
    for (const NodePtr& node : nodes_) ns = std::max(ns, node->ns.load());
    return ns;
  }
  /// The time after `duration`; one node, if it is not known.
  Moment plus(uint64_t duration) {
    if (known()) return ns_ + duration;
    auto node = std::make_shared<TimeNode>();
    node->base = ns_;
    node->add = duration;
    node->ns = at_least() + duration;
    node->missing = static_cast<int>(nodes_.size());
    for (const NodePtr& waited : nodes_) waited->next.push_back(node);
    return Moment(std::move(node));
  }
  /// The node of a time that `plus` gave; null if it is known.
  NodePtr node() const { return nodes_.empty() ? nullptr : nodes_.front(); }

 private:
  /// Keeps as few nodes as can be: a stream that only waits for exchanges is joined to each of them.
  void join(NodePtr node) {
    if (node->known) {
      ns_ = std::max(ns_, node->ns.load());
      return;
    }
    if (known()) return nodes_.push_back(std::move(node));
    for (NodePtr& mine : nodes_) {
      if (mine == node) return;
      if (node->stream < 0 || mine->stream != node->stream) continue;
      if (mine->turn < node->turn) mine = std::move(node);
      return;
    }
    nodes_.push_back(std::move(node));
  }

  uint64_t ns_ = 0;
  std::vector<NodePtr> nodes_;
};

/// One engine does one thing at a time; engines run beside each other. Not thread-safe.
class Clock {
 public:
  /// Books work on a stream and returns its end.
  Moment book(int stream, Cost cost) {
    Moment& free = free_[static_cast<int>(cost.engine)];
    Moment start = now(stream);
    start.join(free);
    busy_[static_cast<int>(cost.engine)] += cost.duration_ns;
    return ready_[stream] = free = start.plus(cost.duration_ns);
  }
  /// Books work whose end others will say, by the node that is returned.
  NodePtr book_exchange(int stream) {
    auto end = std::make_shared<TimeNode>();
    end->ns = now(stream).at_least();
    end->stream = stream;
    end->turn = ++exchanges_;
    ready_[stream] = Moment(end);
    return end;
  }
  /// When the work of a stream is done. What the host has waited for lies in the past of everything it submits later.
  Moment now(int stream) {
    Moment moment = ready_[stream];
    moment.join(host_);
    return moment;
  }
  void wait_until(int stream, const Moment& time) { ready_[stream].join(time); }
  void host_saw(const Moment& time) { host_.join(time); }

  /// As far as it is known.
  uint64_t latest() const {
    uint64_t ns = host_.at_least();
    for (const Moment& moment : ready_) ns = std::max(ns, moment.at_least());
    return ns;
  }
  /// All of it.
  Moment end() const {
    Moment end = host_;
    for (const Moment& moment : ready_) end.join(moment);
    return end;
  }
  uint64_t busy(Engine engine) const { return busy_[static_cast<int>(engine)]; }

 private:
  std::array<Moment, kAllStreams> ready_{};
  std::array<Moment, 3> free_{};
  std::array<uint64_t, 3> busy_{};
  uint64_t exchanges_ = 0;
  Moment host_;
};

}  // namespace spyre::card
