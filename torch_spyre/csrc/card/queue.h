// SPDX-License-Identifier: Apache-2.0
// The card's one FIFO. A worker thread, started at the first submission, drains it; a thread that waits takes the
// worker's place when the worker is not running, which saves a thread switch for short work.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "spyre/card.h"

namespace spyre::card {

class Command {
 public:
  virtual ~Command() = default;
  virtual void run() = 0;
  /// Housekeeping that a failed card still does.
  virtual bool always() const { return false; }
};

class Queue {
 public:
  ~Queue();

  /// Queues work. Throws the sticky error if there is one; an Error thrown by the command becomes the sticky error, and
  /// commands queued behind it are dropped.
  void submit(std::unique_ptr<Command> command);
  /// Runs work in order and returns when it is done, on the calling thread if possible. Its error goes to the caller
  /// and does not stick.
  void run_now(const std::function<void()>& work);
  void synchronize();
  bool idle() const { return completed_.load() == submitted_.load(); }
  void clear_error();

 private:
  uint64_t push(std::unique_ptr<Command> command);
  void wait_for(uint64_t sequence);
  void wait_behind_runner(uint64_t sequence);
  bool run_one();
  void execute(Command& command);
  void work();
  void throw_sticky();

  mutable std::mutex mutex_;
  std::condition_variable worker_wake_, done_;
  std::deque<std::unique_ptr<Command>> commands_;
  std::atomic<uint64_t> submitted_{0}, completed_{0};
  std::atomic<bool> running_{false};  // somebody executes a command; changes under mutex_
  bool worker_asleep_ = false, stop_ = false;
  int waiters_ = 0;
  std::atomic<bool> failed_{false};
  std::optional<Error> sticky_;
  std::thread worker_;
};

}  // namespace spyre::card
