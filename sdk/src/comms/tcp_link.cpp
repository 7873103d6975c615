// SPDX-License-Identifier: Apache-2.0
// A thread for each peer moves bytes between two connections, one for each lane, and a buffer each way. Flows fill and
// empty the buffers.
#include "comms/tcp_link.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <mutex>
#include <sstream>
#include <thread>

namespace spyre_comms::internal {
namespace {

using spyre::card::Error;
using spyre::card::Flow;
using spyre::card::kLanes;
using spyre::card::Lane;
using spyre::card::Link;

constexpr size_t kBuffered = 1 << 20;

/// Bytes in the order in which they came.
class Fifo {
 public:
  size_t size() const { return bytes_.size() - begin_; }
  size_t room() const { return kBuffered - std::min(size(), kBuffered); }
  const std::byte* data() const { return bytes_.data() + begin_; }
  void put(const std::byte* from, size_t n) { bytes_.insert(bytes_.end(), from, from + n); }
  void drop(size_t n) {
    begin_ += n;
    if (begin_ < bytes_.size() / 2) return;
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(begin_));
    begin_ = 0;
  }

 private:
  std::vector<std::byte> bytes_;
  size_t begin_ = 0;
};

struct LaneState {
  Socket socket;
  Fifo out, in;
  uint64_t accepted = 0, sent = 0;  // bytes of flows; of these, what the kernel has
  bool ended = false;               // nothing more comes
};

/// What the flows and the thread share.
struct Connection {
  std::mutex mutex;
  std::array<LaneState, kLanes> lanes;
  std::string gone;  // why
  Socket wake;       // an eventfd
  bool stop = false;
  int peer = 0;

  void nudge() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = write(wake.fd(), &one, sizeof one);
  }
  [[noreturn]] void fail() const {
    throw Error("PeerLost", "the connection to rank " + std::to_string(peer) + " is gone: " + gone);
  }
};
using ConnectionPtr = std::shared_ptr<Connection>;

class SendFlow final : public Flow {
 public:
  SendFlow(ConnectionPtr connection, Lane lane, std::span<const std::byte> bytes)
      : connection_(std::move(connection)), lane_(connection_->lanes[static_cast<size_t>(lane)]), bytes_(bytes) {}

  /// Done when the kernel has all of it: then it arrives even if this process ends.
  bool advance(bool& moved) override {
    std::lock_guard lock(connection_->mutex);
    if (!bytes_.empty()) {
      if (!connection_->gone.empty()) connection_->fail();
      const size_t n = std::min(bytes_.size(), lane_.out.room());
      if (n) {
        lane_.out.put(bytes_.data(), n);
        lane_.accepted += n;
        end_ = lane_.accepted;
        bytes_ = bytes_.subspan(n);
        connection_->nudge();
        moved = true;
      }
    }
    if (lane_.sent < end_ && !connection_->gone.empty()) connection_->fail();
    return bytes_.empty() && lane_.sent >= end_;
  }

 private:
  ConnectionPtr connection_;
  LaneState& lane_;
  std::span<const std::byte> bytes_;
  uint64_t end_ = 0;
};

class ReceiveFlow final : public Flow {
 public:
  ReceiveFlow(ConnectionPtr connection, Lane lane, std::span<std::byte> bytes)
      : connection_(std::move(connection)), lane_(connection_->lanes[static_cast<size_t>(lane)]), bytes_(bytes) {}

  bool advance(bool& moved) override {
    if (bytes_.empty()) return true;
    std::lock_guard lock(connection_->mutex);
    const size_t n = std::min(bytes_.size(), lane_.in.size());
    if (n) {
      const bool was_full = lane_.in.room() == 0;
      std::memcpy(bytes_.data(), lane_.in.data(), n);
      lane_.in.drop(n);
      bytes_ = bytes_.subspan(n);
      if (was_full) connection_->nudge();
      moved = true;
    }
    if (!bytes_.empty() && !connection_->gone.empty()) connection_->fail();
    return bytes_.empty();
  }

 private:
  ConnectionPtr connection_;
  LaneState& lane_;
  std::span<std::byte> bytes_;
};

class TcpLink final : public Link {
 public:
  TcpLink(int peer, Lanes sockets, std::function<void()> bell)
      : connection_(std::make_shared<Connection>()), bell_(std::move(bell)) {
    connection_->peer = peer;
    connection_->wake = Socket(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    for (size_t lane = 0; lane < kLanes; ++lane) connection_->lanes[lane].socket = std::move(sockets[lane]);
    thread_ = std::thread([this] { serve(); });
  }
  ~TcpLink() override {
    {
      std::lock_guard lock(connection_->mutex);
      connection_->stop = true;
      if (connection_->gone.empty()) connection_->gone = "the group is destroyed on this rank";
    }
    connection_->nudge();
    thread_.join();
    for (LaneState& lane : connection_->lanes) lane.socket = Socket();  // the peer hears of it
  }

  std::unique_ptr<Flow> send(Lane lane, std::span<const std::byte> bytes) override {
    return std::make_unique<SendFlow>(connection_, lane, bytes);
  }
  std::unique_ptr<Flow> receive(Lane lane, std::span<std::byte> bytes) override {
    return std::make_unique<ReceiveFlow>(connection_, lane, bytes);
  }
  std::string lost() override {
    std::lock_guard lock(connection_->mutex);
    return connection_->gone;
  }
  const char* name() const override { return "tcp"; }

 private:
  void serve() {
    std::array<pollfd, kLanes + 1> waits;
    while (true) {
      {
        std::lock_guard lock(connection_->mutex);
        if (connection_->stop) return;
        for (size_t i = 0; i < kLanes; ++i) waits[i] = wait_of(connection_->lanes[i]);
      }
      waits[kLanes] = {connection_->wake.fd(), POLLIN, 0};
      if (poll(waits.data(), waits.size(), -1) < 0 && errno != EINTR) return;
      uint64_t count;
      if (waits[kLanes].revents && read(connection_->wake.fd(), &count, sizeof count) < 0) continue;
      bool moved = false;
      {
        std::lock_guard lock(connection_->mutex);
        for (LaneState& lane : connection_->lanes) moved |= send_some(lane) | receive_some(lane);
      }
      if (moved) bell_();
    }
  }

  /// A connection that has ended is not asked any more: it would always be ready.
  static pollfd wait_of(const LaneState& lane) {
    const int wants = (lane.in.room() ? POLLIN : 0) | (lane.out.size() ? POLLOUT : 0);
    return {lane.ended || !wants ? -1 : lane.socket.fd(), static_cast<short>(wants), 0};
  }

  bool send_some(LaneState& lane) {
    if (lane.ended || !lane.out.size()) return false;
    const ssize_t n = ::send(lane.socket.fd(), lane.out.data(), lane.out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) return !again() && end(lane, std::strerror(errno));
    lane.out.drop(static_cast<size_t>(n));
    lane.sent += static_cast<uint64_t>(n);
    return n > 0;
  }

  bool receive_some(LaneState& lane) {
    if (lane.ended || !lane.in.room()) return false;
    std::array<std::byte, 64 << 10> chunk;
    const ssize_t n = recv(lane.socket.fd(), chunk.data(), std::min(chunk.size(), lane.in.room()), MSG_DONTWAIT);
    if (n == 0) return end(lane, "its process has ended or has left the group");
    if (n < 0) return !again() && end(lane, std::strerror(errno));
    lane.in.put(chunk.data(), static_cast<size_t>(n));
    return true;
  }

  static bool again() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

  bool end(LaneState& lane, const std::string& why) {
    lane.ended = true;
    if (connection_->gone.empty()) connection_->gone = why;
    return true;
  }

  ConnectionPtr connection_;
  std::function<void()> bell_;
  std::thread thread_;
};

std::string greeting(const World& world, size_t lane) {
  return "link " + world.name + " " + std::to_string(world.rank) + " " + std::to_string(lane);
}

Lanes call(const World& world, int peer, const Place& place, Deadline deadline) {
  Lanes lanes;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    std::optional<Socket> socket = connect_until(place.address, place.port, deadline);
    if (!socket || !send_line(*socket, greeting(world, lane)))
      throw Error("PeerLost", "rank " + std::to_string(peer) + " cannot be reached at " + place.address + ":" +
                                  std::to_string(place.port));
    lanes.push_back(std::move(*socket));
  }
  return lanes;
}

}  // namespace

std::map<int, Lanes> connect_all(const World& world, const std::vector<Place>& places, const Socket& listener) {
  const Deadline deadline = std::chrono::steady_clock::now() + world.timeout;
  std::map<int, Lanes> made;
  size_t missing = 0;
  for (int peer = 0; peer < world.size; ++peer) {
    const Place& place = places[static_cast<size_t>(peer)];
    if (peer == world.rank || place.host == places[static_cast<size_t>(world.rank)].host) continue;
    if (peer < world.rank) {
      made[peer] = call(world, peer, place, deadline);
    } else {
      made[peer].resize(kLanes);
      missing += kLanes;
    }
  }
  while (missing > 0) {
    std::optional<Socket> caller = accept_until(listener, deadline);
    if (!caller)
      throw Error("CollectiveTimeout", "not all ranks called rank " + std::to_string(world.rank) + " within " +
                                           std::to_string(world.timeout.count() / 1000) + " s (SPYRE_COMMS_TIMEOUT_S)");
    const auto line =
        receive_line(*caller, std::min(deadline, std::chrono::steady_clock::now() + std::chrono::seconds(10)));
    std::istringstream text(line.value_or(""));
    std::string word, name;
    int peer = -1;
    size_t lane = kLanes;
    if (!(text >> word >> name >> peer >> lane) || word != "link" || name != world.name || lane >= kLanes) continue;
    const auto found = made.find(peer);
    if (found == made.end() || found->second[lane]) continue;
    found->second[lane] = std::move(*caller);
    --missing;
  }
  return made;
}

std::unique_ptr<Link> tcp_link(int peer, Lanes lanes, std::function<void()> bell) {
  return std::make_unique<TcpLink>(peer, std::move(lanes), std::move(bell));
}

}  // namespace spyre_comms::internal
