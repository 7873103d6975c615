// SPDX-License-Identifier: Apache-2.0
// TCP connections between ranks. Whatever fails throws spyre::card::Error.
#pragma once
#include <chrono>
#include <optional>
#include <string>
#include <utility>

namespace spyre_comms::internal {

using Deadline = std::chrono::steady_clock::time_point;

/// An open socket, closed at its end.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();

  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int port() const;          // of this side
  std::string peer() const;  // the address of the other side

 private:
  int fd_ = -1;
};

/// Takes connections from anywhere. Port 0: a free one. Throws InvalidArgument, with `knob`, if the port is taken.
Socket listen_at(int port, const std::string& knob);
/// Nothing if none comes until then.
std::optional<Socket> accept_until(const Socket& listener, Deadline deadline);
/// Nothing if nobody takes it until then.
std::optional<Socket> connect_until(const std::string& host, int port, Deadline deadline);

/// One line each way. Nothing if the other side goes away, or says nothing, until then.
bool send_line(const Socket& socket, const std::string& text);
std::optional<std::string> receive_line(const Socket& socket, Deadline deadline);

}  // namespace spyre_comms::internal
