// SPDX-License-Identifier: Apache-2.0
#include "comms/sockets.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "spyre/card.h"

namespace spyre_comms::internal {
namespace {

using spyre::card::Error;
using Time = std::chrono::steady_clock;
constexpr size_t kLongestLine = 1 << 20;
constexpr std::chrono::seconds kOneAttempt{5};  // a name may stand for several addresses

int milliseconds_until(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Time::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

bool ready(int fd, short events, Deadline deadline) {
  while (true) {
    pollfd one{fd, events, 0};
    const int found = poll(&one, 1, milliseconds_until(deadline));
    if (found > 0) return true;
    if (found == 0 || errno != EINTR) return false;
  }
}

void set(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof value); }

/// Small messages go at once, and a host that is gone is noticed within half a minute.
void tune(int fd) {
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

Socket connect_to(const addrinfo& address, Deadline deadline) {
  Socket made(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made) return {};
  if (connect(made.fd(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS || !ready(made.fd(), POLLOUT, deadline)) return {};
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(made.fd(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) return {};
  }
  tune(made.fd());
  return made;
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

int Socket::port() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

std::string Socket::peer() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char text[NI_MAXHOST] = "";
  if (getpeername(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0)
    getnameinfo(reinterpret_cast<sockaddr*>(&address), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

Socket listen_at(int port, const std::string& knob) {
  // IPv6 takes both; a host without it has IPv4 alone.
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(static_cast<uint16_t>(port));
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = six.sin6_port;
  const std::pair<const sockaddr*, socklen_t> kinds[] = {{reinterpret_cast<sockaddr*>(&six), sizeof six},
                                                         {reinterpret_cast<sockaddr*>(&four), sizeof four}};
  std::string why;
  for (const auto& [address, size] : kinds) {
    Socket made(socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!made) continue;
    set(made.fd(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (address->sa_family == AF_INET6) set(made.fd(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (bind(made.fd(), address, size) == 0 && listen(made.fd(), 128) == 0) return made;
    why = std::strerror(errno);
    if (errno == EADDRINUSE) break;
  }
  throw Error("InvalidArgument",
              "cannot listen at port " + std::to_string(port) + ": " + why + "; " + knob + " names another one");
}

std::optional<Socket> accept_until(const Socket& listener, Deadline deadline) {
  while (ready(listener.fd(), POLLIN, deadline)) {
    Socket made(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!made) continue;  // it has gone away again
    tune(made.fd());
    return made;
  }
  return std::nullopt;
}

std::optional<Socket> connect_until(const std::string& host, int port, Deadline deadline) {
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  do {
    addrinfo* found = nullptr;
    if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found) == 0) {
      const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(found, &freeaddrinfo);
      for (const addrinfo* one = found; one; one = one->ai_next)
        if (Socket made = connect_to(*one, std::min(deadline, Time::now() + kOneAttempt))) return made;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  } while (Time::now() < deadline);
  return std::nullopt;
}

bool send_line(const Socket& socket, const std::string& text) {
  std::string line = text + "\n";
  const Deadline deadline = Time::now() + std::chrono::seconds(30);
  while (!line.empty()) {
    const ssize_t n = send(socket.fd(), line.data(), line.size(), MSG_NOSIGNAL);
    if (n > 0) {
      line.erase(0, static_cast<size_t>(n));
    } else if ((errno != EAGAIN && errno != EINTR) || !ready(socket.fd(), POLLOUT, deadline)) {
      return false;
    }
  }
  return true;
}

std::optional<std::string> receive_line(const Socket& socket, Deadline deadline) {
  std::string line;
  // Byte by byte: what follows the line belongs to whoever reads next.
  while (line.size() < kLongestLine) {
    char c = 0;
    const ssize_t n = recv(socket.fd(), &c, 1, 0);
    if (n == 1) {
      if (c == '\n') return line;
      line += c;
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR) || !ready(socket.fd(), POLLIN, deadline)) {
      break;
    }
  }
  return std::nullopt;
}

}  // namespace spyre_comms::internal
