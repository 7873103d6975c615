// SPDX-License-Identifier: Apache-2.0
// Memory that processes of one user on one host share: an anonymous file, found through the process that made it and
// gone with the last one that maps it, however it ends.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace spyre::card {

class Segment {
 public:
  /// Zeroed. Others open it with this process's id and `fd()`.
  static Segment create(size_t bytes);
  static Segment open(pid_t process, int fd, size_t bytes);
  Segment() = default;
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_; }

 private:
  void map();

  int fd_ = -1;
  size_t bytes_ = 0;
  std::byte* data_ = nullptr;
};

/// Tells whether a process lives, without mistaking a later one of the same number for it.
class ProcessWatch {
 public:
  explicit ProcessWatch(pid_t process);
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;
  ~ProcessWatch();
  bool alive() const;

 private:
  int fd_;
};

/// Wakes threads of any process that wait with one of `bits`. The word lies in shared memory.
void shared_futex_wake(std::atomic<uint32_t>& word, uint32_t bits);
/// Returns when the word is not `seen` any more, when woken, or at the time.
void shared_futex_wait(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::steady_clock::time_point until,
                       uint32_t bits);

}  // namespace spyre::card
