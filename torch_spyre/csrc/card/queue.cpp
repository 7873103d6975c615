// SPDX-License-Identifier: Apache-2.0
#include "queue.h"

#include <utility>

#include "team.h"

namespace spyre::card {
namespace {

/// Work whose caller waits for it and receives its exception.
class Awaited final : public Command {
 public:
  Awaited(const std::function<void()>& work, std::exception_ptr& error) : work_(work), error_(error) {}
  void run() override {
    try {
      work_();
    } catch (...) {
      error_ = std::current_exception();
    }
  }

 private:
  const std::function<void()>& work_;
  std::exception_ptr& error_;
};

}  // namespace

Queue::~Queue() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  worker_wake_.notify_all();
  if (worker_.joinable()) worker_.join();
}

void Queue::throw_sticky() {
  if (!failed_.load(std::memory_order_acquire)) return;
  std::lock_guard lock(mutex_);
  if (sticky_) throw *sticky_;
}

uint64_t Queue::push(std::unique_ptr<Command> command) {
  bool wake;
  uint64_t sequence;
  {
    std::lock_guard lock(mutex_);
    if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
    commands_.push_back(std::move(command));
    sequence = submitted_.fetch_add(1) + 1;
    wake = std::exchange(worker_asleep_, false);
  }
  if (wake) worker_wake_.notify_one();
  return sequence;
}

void Queue::submit(std::unique_ptr<Command> command) {
  if (!command->always()) throw_sticky();
  push(std::move(command));
}

void Queue::run_now(const std::function<void()>& work) {
  throw_sticky();
  {
    std::unique_lock lock(mutex_);
    if (commands_.empty() && !running_) {
      running_ = true;
      lock.unlock();
      std::exception_ptr error;
      Awaited(work, error).run();
      lock.lock();
      running_ = false;
      bool wake_worker = !commands_.empty() && std::exchange(worker_asleep_, false);
      bool wake_waiters = waiters_ > 0;
      lock.unlock();
      if (wake_worker) worker_wake_.notify_one();
      if (wake_waiters) done_.notify_all();
      if (error) std::rethrow_exception(error);
      return;
    }
  }
  std::exception_ptr error;
  wait_for(push(std::make_unique<Awaited>(work, error)));
  if (error) std::rethrow_exception(error);
  throw_sticky();
}

void Queue::synchronize() {
  wait_for(submitted_.load());
  throw_sticky();
}

void Queue::clear_error() {
  wait_for(submitted_.load());
  std::lock_guard lock(mutex_);
  sticky_.reset();
  failed_ = false;
}

/// Runs or awaits commands until `sequence` of them are complete.
void Queue::wait_for(uint64_t sequence) {
  while (completed_.load(std::memory_order_acquire) < sequence)
    if (!run_one()) wait_behind_runner(sequence);
}

void Queue::wait_behind_runner(uint64_t sequence) {
  auto ready = [&] { return completed_.load(std::memory_order_acquire) >= sequence || !running_; };
  if (spin_until(ready, spin_pauses())) return;
  std::unique_lock lock(mutex_);
  ++waiters_;
  done_.wait(lock, ready);
  --waiters_;
}

/// Executes the next command unless another thread is doing so. Returns false if there is nothing to do.
bool Queue::run_one() {
  std::unique_lock lock(mutex_);
  if (running_ || commands_.empty()) return false;
  running_ = true;
  std::unique_ptr<Command> command = std::move(commands_.front());
  commands_.pop_front();
  lock.unlock();
  execute(*command);
  command.reset();
  lock.lock();
  running_ = false;
  completed_.fetch_add(1, std::memory_order_release);
  bool wake_worker = !commands_.empty() && std::exchange(worker_asleep_, false);
  bool wake_waiters = waiters_ > 0;
  lock.unlock();
  if (wake_worker) worker_wake_.notify_one();
  if (wake_waiters) done_.notify_all();
  return true;
}

void Queue::execute(Command& command) {
  if (failed_.load(std::memory_order_acquire) && !command.always()) return;
  try {
    command.run();
  } catch (const Error& error) {
    std::lock_guard lock(mutex_);
    sticky_ = error;
    failed_ = true;
  } catch (const std::exception& error) {
    std::lock_guard lock(mutex_);
    sticky_ = Error("DeviceLost", std::string("the card failed: ") + error.what());
    failed_ = true;
  }
}

void Queue::work() {
  for (;;) {
    if (run_one()) continue;
    auto ready = [&] {
      return submitted_.load(std::memory_order_acquire) != completed_.load(std::memory_order_acquire) && !running_;
    };
    if (spin_until(ready, spin_pauses())) continue;
    std::unique_lock lock(mutex_);
    if (!commands_.empty() && !running_) continue;
    if (stop_ && commands_.empty()) return;
    worker_asleep_ = true;
    worker_wake_.wait(lock, [&] { return stop_ || !worker_asleep_; });
    worker_asleep_ = false;
  }
}

}  // namespace spyre::card
