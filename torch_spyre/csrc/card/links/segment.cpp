// SPDX-License-Identifier: Apache-2.0
#include "segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <string>
#include <utility>

#include "spyre/card.h"

namespace spyre::card {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw Error("DeviceFault", what + " failed: " + std::strerror(errno));
}

}  // namespace

Segment Segment::create(size_t bytes) {
  Segment segment;
  segment.fd_ = memfd_create("spyre-links", MFD_CLOEXEC);
  if (segment.fd_ < 0) fail("memfd_create");
  segment.bytes_ = bytes;
  if (ftruncate(segment.fd_, static_cast<off_t>(bytes)) != 0) fail("ftruncate of shared memory");
  segment.map();
  return segment;
}

Segment Segment::open(pid_t process, int fd, size_t bytes) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(fd);
  Segment segment;
  segment.fd_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (segment.fd_ < 0) fail("opening the shared memory of process " + std::to_string(process));
  segment.bytes_ = bytes;
  segment.map();
  return segment;
}

void Segment::map() {
  void* data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (data == MAP_FAILED) fail("mapping shared memory");
  data_ = static_cast<std::byte*>(data);
}

Segment::Segment(Segment&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  std::swap(data_, other.data_);
  return *this;
}

Segment::~Segment() {
  if (data_) munmap(data_, bytes_);
  if (fd_ >= 0) close(fd_);
}

ProcessWatch::ProcessWatch(pid_t process) : fd_(static_cast<int>(syscall(SYS_pidfd_open, process, 0))) {}

ProcessWatch::~ProcessWatch() {
  if (fd_ >= 0) close(fd_);
}

bool ProcessWatch::alive() const {
  if (fd_ < 0) return false;
  pollfd watched{fd_, POLLIN, 0};
  return poll(&watched, 1, 0) == 0;
}

void shared_futex_wake(std::atomic<uint32_t>& word, uint32_t bits) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_BITSET, INT_MAX, nullptr, nullptr, bits);
}

void shared_futex_wait(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::steady_clock::time_point until,
                       uint32_t bits) {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(until.time_since_epoch()).count();
  const timespec limit{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_BITSET, seen, &limit, nullptr, bits);
}

}  // namespace spyre::card
