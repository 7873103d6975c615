// SPDX-License-Identifier: Apache-2.0
// The card's streams: one FIFO each, and a scheduler that runs one command at a time. A worker thread, started at the
// first submission, drains them; a thread that waits takes the worker's place when the worker is not running, which
// saves a thread switch for short work. Whoever runs goes on while there is work, and wakes others only for what they
// wait for.
#pragma once
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "clock.h"
#include "spyre/card.h"

namespace spyre::card {

/// The first `sequence` commands of a stream.
struct Point {
  int stream;
  uint64_t sequence;
  bool operator==(const Point&) const = default;
};

/// When a command runs on the device clock, as far as it is known.
struct Booked {
  uint64_t start_ns, end_ns;
  std::shared_ptr<const LaterTime> later_start, later_end;
};

/// How far each stream is, readable without a lock.
struct Progress {
  std::array<std::atomic<uint64_t>, kAllStreams> submitted{}, completed{};

  bool done(Point p) const { return completed[p.stream].load(std::memory_order_acquire) >= p.sequence; }
  Point tail(int stream) const { return {stream, submitted[stream].load(std::memory_order_acquire)}; }
};

class Command {
 public:
  virtual ~Command() = default;
  virtual void run() = 0;
  /// It failed, or will never run: what it would have written is not there.
  virtual void dropped() {}
  /// It may take longer than a person likes to wait for the answer to Ctrl-C.
  virtual bool lengthy() const { return false; }
};

class Queue {
 public:
  explicit Queue(Progress& progress);
  ~Queue();

  /// Queues work behind all of its stream and behind the points `after`; waits first if the stream is full. Throws the
  /// sticky error if there is one; an Error thrown by the command becomes the stream's sticky error, and commands
  /// queued behind it are dropped.
  Booked submit(int stream, std::unique_ptr<Command> command, Cost cost, std::vector<Point> after = {});
  /// The same for work whose caller waits for it, on the calling thread if possible. Its error goes to the caller and
  /// does not stick, unless the card is lost. A wait that is given up takes the work back if it has not begun.
  Booked run_now(int stream, const std::function<void()>& work, Cost cost, std::vector<Point> after = {});

  /// Queues an exchange behind all of its stream and behind `after`, whose errors it inherits. `dropped` is called if
  /// it fails or never begins.
  Booked exchange(int stream, std::shared_ptr<Exchange> exchange, std::byte* memory, std::function<void()> dropped,
                  std::vector<Point> after, std::span<const Marker> markers, Marker& end);
  void forgive_exchanges();

  Marker record(int stream);
  void wait(int stream, const Marker& marker);
  void wait_until(int stream, uint64_t time_ns);
  void synchronize(const Marker& marker);
  void synchronize(int stream);
  void synchronize();
  /// A call that brings work is not what failed; one that asks how the work went may be the first to hear of it.
  enum class Call : uint8_t { brings_work, asks };
  /// Throws the sticky error of the stream, or of the card. A call that brings work asks before it announces what the
  /// work will write.
  void throw_sticky(int stream, Call call = Call::asks) const;
  void throw_lost() const;
  /// Nothing is queued or running.
  bool idle() const;
  /// Whether the next submission to the stream would wait, and that wait.
  bool full(int stream) const;
  void make_room(int stream);
  /// Waits for queued work, or drops what has not begun, and forgets all errors.
  void reset(bool drop);

  /// Calls `action` at a moment when nothing is queued, and keeps others from queueing meanwhile.
  void when_idle(const std::function<void()>& action);
  /// The same, if this is such a moment.
  void if_idle(const std::function<void()>& action);

  Clock clock() const;

 private:
  struct Entry {
    std::unique_ptr<Command> command;  // none: it only waits
    std::vector<Point> after;
    bool inherits;  // takes over the error of what it waits for
    std::shared_ptr<Exchange> exchange = nullptr;
    std::byte* memory = nullptr;
    Moment arrival = {};
    NodePtr end = nullptr;
    bool begun = false;
  };
  struct Stream {
    int id;
    std::deque<Entry> entries;
    uint64_t turn = 0;  // when it last ran a command
    std::optional<Error> error;
    uint64_t failed_at = 0;
    mutable bool told = false;  // somebody got the error
  };
  /// A thread that waits runs short commands only, and not for long at a time: it must be able to give up. One that has
  /// ended an exchange runs what takes no time.
  enum class Runner : uint8_t { worker, waiter, finisher };
  /// Threads to be woken when the lock is free.
  struct Wake {
    bool worker = false, waiters = false;
    std::shared_ptr<Exchange> attended;  // by the worker
  };
  enum class Patience : uint8_t { may_give_up, endless };

  void check(const Stream& stream, Call call) const;
  bool failed(Point point) const;
  uint64_t push(Stream& stream, std::unique_lock<std::mutex>& lock, Entry entry);
  void wait_for(Point point, Patience patience = Patience::may_give_up);
  void drop_queued();
  void wait_behind_runner(Point point);
  std::shared_ptr<Exchange> under_way() const;
  bool help_exchange(Point point);
  bool attend_exchange();
  Wake worker_to_wake();
  Wake all_to_wake();
  void wake_up(const Wake& sleepers);
  bool near(Point point) const;
  bool awaited(const Stream& stream) const;
  bool run_until(Point point, Runner runner);
  Stream* best(Runner runner) const;
  Stream* next(Runner runner);
  bool ready(const Entry& entry) const;
  bool may_run(const Entry& entry, Runner runner) const;
  Entry pop(Stream& stream);
  void inherit(Stream& stream, const Entry& entry);
  void begin_exchange(Stream& stream, std::unique_lock<std::mutex>& lock);
  void end_exchange(Stream& stream, const Error* error, uint64_t end_ns);
  void fail(Stream& stream, const Error& error);
  void stop_running(std::unique_lock<std::mutex>& lock);
  void work();

  Progress& progress_;
  mutable std::mutex mutex_;
  std::condition_variable worker_wake_, done_;
  std::vector<Stream> streams_;
  std::vector<Stream*> active_;  // those with entries
  Clock clock_;
  uint64_t turns_ = 0;
  std::atomic<uint64_t> queued_{0};         // entries not yet done
  std::atomic<uint64_t> news_{0};           // counts what may make an entry ready: submissions, ends of exchanges
  std::atomic<bool> running_{false};        // somebody executes a command; changes under mutex_
  std::atomic<bool> worker_asleep_{false};  // until it is woken; changes under mutex_
  bool stop_ = false;
  std::shared_ptr<Exchange> attended_;  // by the worker, which then counts as asleep
  int helping_ = 0;                     // threads that help an exchange and then run what is ready
  std::vector<Point> waiting_;          // of threads that sleep behind the one that runs
  std::atomic<bool> failed_{false};     // some error is sticky
  std::optional<Error> lost_;
  mutable bool lost_told_ = false;
  std::thread worker_;
};

}  // namespace spyre::card
