// SPDX-License-Identifier: Apache-2.0
#include "queue.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "team.h"

namespace spyre::card {
namespace {

constexpr Point kNever{0, ~0ull};
constexpr uint64_t kNear = 2;  // commands before the end of a wait: short ones as a rule, such as a copy to the host
constexpr uint64_t kDepth = 1024;                // commands that a stream holds
constexpr std::chrono::milliseconds kSlice{50};  // of a wait, after which its thread looks whether to go on

std::atomic<void (*)()> wait_check{nullptr};

/// A slice of a wait that begins now.
class SliceEnd {
 public:
  bool reached() const { return Clock::now() >= end_; }
  /// At the end of the slice: lets the thread leave the wait by an exception, and begins the next slice.
  void check() {
    if (!reached()) return;
    if (auto* leave = wait_check.load(std::memory_order_acquire)) leave();
    end_ = Clock::now() + kSlice;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point end_ = Clock::now() + kSlice;
};

/// Work whose caller waits for it and receives its exception. The caller's wait may end before: then the work, which
/// refers to variables of the caller, must not begin.
struct Awaited {
  explicit Awaited(const std::function<void()>& work) : work(work) {}
  bool take() { return !taken.exchange(true, std::memory_order_acq_rel); }
  void run() {
    try {
      work();
    } catch (const Error& failure) {
      error = std::current_exception();
      if (failure.kind() == "DeviceLost") throw;
    } catch (...) {
      error = std::current_exception();
    }
  }

  const std::function<void()>& work;
  std::atomic<bool> taken{false};  // by whoever runs it, or by the caller, who takes it back
  std::exception_ptr error;
};

class AwaitedCommand final : public Command {
 public:
  explicit AwaitedCommand(std::shared_ptr<Awaited> awaited) : awaited_(std::move(awaited)) {}
  void run() override {
    if (awaited_->take()) awaited_->run();
  }

 private:
  std::shared_ptr<Awaited> awaited_;
};

/// A sticky error as a call sees it: as it is the first time, then as an earlier one. Both say what helps.
Error as_seen(const Error& error, const std::string& who, bool first) {
  const std::string text = std::string(error.what()).substr(error.kind().size() + 2);
  if (!first)
    return Error(error.kind(),
                 "earlier work failed, and " + who + " refuses all calls until torch.spyre.reset(): " + text);
  if (text.find("torch.spyre.reset()") != std::string::npos) return error;
  return Error(error.kind(), text + "; " + who + " refuses further calls until torch.spyre.reset()");
}

Booked as_booked(const Moment& end, Cost cost) {
  return {end.at_least() - cost.duration_ns, end.at_least(), nullptr, end.node()};
}

/// A time that is known already, for who asks later.
std::shared_ptr<const LaterTime> said(uint64_t ns) {
  auto time = std::make_shared<LaterTime>();
  time->ns = ns;
  time->known = true;
  return time;
}

/// The part of an exchange that the queue treats like any command: what to do if it never runs.
class DroppedExchange final : public Command {
 public:
  explicit DroppedExchange(std::function<void()> dropped) : dropped_(std::move(dropped)) {}
  void run() override {}
  void dropped() override { dropped_(); }

 private:
  std::function<void()> dropped_;
};

bool of_an_exchange(const Error& error) {
  return error.kind() == "PeerLost" || error.kind() == "CollectiveMismatch" || error.kind() == "CollectiveTimeout";
}

std::optional<Error> execute(auto& command) {
  try {
    command.run();
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    return Error("DeviceLost", std::string("the card failed: ") + error.what());
  }
  return std::nullopt;
}

}  // namespace

Queue::Queue(Progress& progress) : progress_(progress), streams_(kAllStreams) {
  for (int s = 0; s < kAllStreams; ++s) streams_[s].id = s;
  active_.reserve(kAllStreams);
}

Queue::~Queue() {
  Wake sleeper;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    worker_asleep_ = false;
    sleeper = {.worker = true, .attended = attended_};
  }
  wake_up(sleeper);
  if (worker_.joinable()) worker_.join();
}

void Queue::check(const Stream& stream, Call call) const {
  const bool asks = call == Call::asks;
  if (lost_) throw as_seen(*lost_, "the card", !std::exchange(lost_told_, true) && asks);
  if (stream.error)
    throw as_seen(*stream.error, stream.id ? "stream " + std::to_string(stream.id) : "the default stream",
                  !std::exchange(stream.told, true) && asks);
}

void Queue::throw_sticky(int stream, Call call) const {
  if (!failed_.load(std::memory_order_acquire)) return;
  std::lock_guard lock(mutex_);
  check(streams_[stream], call);
}

void Queue::throw_lost() const {
  if (!failed_.load(std::memory_order_acquire)) return;
  std::lock_guard lock(mutex_);
  if (lost_) check(streams_[0], Call::brings_work);
}

bool Queue::failed(Point point) const {
  const Stream& s = streams_[point.stream];
  return s.error && s.failed_at <= point.sequence;
}

uint64_t Queue::push(Stream& stream, std::unique_lock<std::mutex>& lock, Entry entry) {
  if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
  if (stream.entries.empty()) active_.push_back(&stream);
  stream.entries.push_back(std::move(entry));
  queued_.fetch_add(1, std::memory_order_release);
  news_.fetch_add(1, std::memory_order_release);
  uint64_t sequence = progress_.submitted[stream.id].fetch_add(1, std::memory_order_release) + 1;
  const Wake sleeper = worker_to_wake();
  lock.unlock();
  wake_up(sleeper);
  return sequence;
}

Booked Queue::submit(int stream, std::unique_ptr<Command> command, Cost cost, std::vector<Point> after) {
  make_room(stream);
  std::unique_lock lock(mutex_);
  Stream& s = streams_[stream];
  check(s, Call::brings_work);
  const Booked booked = as_booked(clock_.book(stream, cost), cost);
  push(s, lock, {std::move(command), std::move(after), false});
  return booked;
}

Booked Queue::exchange(int stream, std::shared_ptr<Exchange> exchange, std::byte* memory, std::function<void()> dropped,
                       std::vector<Point> after, std::span<const Marker> markers, Marker& end) {
  make_room(stream);
  std::unique_lock lock(mutex_);
  Stream& s = streams_[stream];
  check(s, Call::brings_work);
  for (const Marker& marker : markers) {
    clock_.wait_until(stream, Moment(marker));
    after.push_back({marker.stream, marker.sequence});
  }
  Moment arrival = clock_.now(stream).plus(0);
  NodePtr node = clock_.book_exchange(stream);
  std::shared_ptr<const LaterTime> start = arrival.node();
  if (!start) start = said(arrival.at_least());
  Booked booked{arrival.at_least(), arrival.at_least(), std::move(start), node};
  Entry entry{std::make_unique<DroppedExchange>(std::move(dropped)), std::move(after), true};
  entry.exchange = std::move(exchange);
  entry.memory = memory;
  entry.arrival = std::move(arrival);
  entry.end = node;
  const bool now = entry.exchange->quick() && s.entries.empty() && !running_ && !failed_ && ready(entry);
  end = {stream, 0, booked.end_ns, node};
  if (!now) {
    end.sequence = push(s, lock, std::move(entry));
    return booked;
  }
  active_.push_back(&s);
  s.entries.push_back(std::move(entry));
  queued_.fetch_add(1, std::memory_order_release);
  end.sequence = progress_.submitted[stream].fetch_add(1, std::memory_order_release) + 1;
  begin_exchange(s, lock);
  return booked;
}

Booked Queue::run_now(int stream, const std::function<void()>& work, Cost cost, std::vector<Point> after) {
  std::unique_lock lock(mutex_);
  Stream& s = streams_[stream];
  check(s, Call::asks);
  const Moment end = clock_.book(stream, cost);
  const Booked booked = as_booked(end, cost);
  clock_.host_saw(end);
  auto awaited = std::make_shared<Awaited>(work);
  bool after_done = std::all_of(after.begin(), after.end(), [&](Point p) { return progress_.done(p); });
  if (s.entries.empty() && !running_ && after_done) {
    running_ = true;
    lock.unlock();
    auto lost = execute(*awaited);
    lock.lock();
    if (lost) fail(s, *lost);
    stop_running(lock);
  } else {
    const Point point{stream, push(s, lock, {std::make_unique<AwaitedCommand>(awaited), std::move(after), false})};
    try {
      wait_for(point);
    } catch (...) {
      if (!awaited->take()) wait_for(point, Patience::endless);
      throw;
    }
    if (!awaited->error) throw_sticky(stream);
    if (awaited->take())
      throw Error("DeviceFault", "another thread dropped this transfer before it began (reset(drop_queued=True))");
  }
  if (awaited->error) std::rethrow_exception(awaited->error);
  return booked;
}

Marker Queue::record(int stream) {
  std::lock_guard lock(mutex_);
  check(streams_[stream], Call::brings_work);
  Moment now = clock_.now(stream).plus(0);
  return {stream, progress_.tail(stream).sequence, now.at_least(), now.node()};
}

void Queue::wait(int stream, const Marker& marker) {
  make_room(stream);
  std::unique_lock lock(mutex_);
  Stream& s = streams_[stream];
  check(s, Call::brings_work);
  clock_.wait_until(stream, Moment(marker));
  Point point{marker.stream, marker.sequence};
  if (marker.stream == stream || (progress_.done(point) && !failed(point))) return;
  push(s, lock, {nullptr, {point}, true});
}

void Queue::wait_until(int stream, uint64_t time_ns) {
  std::lock_guard lock(mutex_);
  clock_.wait_until(stream, time_ns);
}

void Queue::synchronize(const Marker& marker) {
  Point point{marker.stream, marker.sequence};
  wait_for(point);
  std::lock_guard lock(mutex_);
  clock_.host_saw(Moment(marker));
  if (lost_ || failed(point)) check(streams_[point.stream], Call::asks);
}

void Queue::synchronize(int stream) {
  Marker tail{stream, 0, 0};
  {
    std::lock_guard lock(mutex_);
    Moment now = clock_.now(stream).plus(0);
    tail = {stream, progress_.tail(stream).sequence, now.at_least(), now.node()};
  }
  synchronize(tail);
}

void Queue::synchronize() {
  for (int s = 0; s < kAllStreams; ++s) wait_for(progress_.tail(s));
  std::lock_guard lock(mutex_);
  clock_.host_saw(clock_.end());
  for (const Stream& s : streams_) check(s, Call::asks);
}

bool Queue::idle() const { return queued_.load(std::memory_order_acquire) == 0; }

bool Queue::full(int stream) const {
  return progress_.tail(stream).sequence - progress_.completed[stream].load(std::memory_order_acquire) >= kDepth;
}

void Queue::make_room(int stream) {
  if (full(stream)) wait_for({stream, progress_.tail(stream).sequence - kDepth / 2});
}

void Queue::reset(bool drop) {
  if (drop) drop_queued();
  for (int s = 0; s < kAllStreams; ++s) wait_for(progress_.tail(s));
  std::lock_guard lock(mutex_);
  for (Stream& s : streams_) s.error.reset();
  lost_.reset();
  failed_ = false;
}

/// Takes everything that has not begun out of the streams. A command that is running may then count as done; nothing
/// else runs before it ends.
void Queue::drop_queued() {
  std::vector<Entry> entries;  // their memory goes when the lock is free
  std::unique_lock lock(mutex_);
  for (Stream* stream : active_) {
    const bool begun = stream->entries.front().begun;
    uint64_t dropped = 0;
    for (; stream->entries.size() > (begun ? 1 : 0); ++dropped) {
      Entry& entry = stream->entries.back();
      if (entry.command) entry.command->dropped();
      if (entry.end) entry.end->say(entry.end->ns);
      entries.push_back(std::move(entry));
      stream->entries.pop_back();
    }
    if (begun) entries.push_back({nullptr, {}, false, stream->entries.front().exchange});
    queued_.fetch_sub(dropped, std::memory_order_release);
    progress_.completed[stream->id].fetch_add(dropped, std::memory_order_release);
  }
  std::erase_if(active_, [](const Stream* stream) { return stream->entries.empty(); });
  lock.unlock();
  for (const Entry& entry : entries)
    if (entry.exchange) entry.exchange->cancel("reset(drop_queued=True) dropped it");
  done_.notify_all();
}

void Queue::when_idle(const std::function<void()>& action) {
  for (SliceEnd slice_end;;) {
    {
      std::lock_guard lock(mutex_);
      if (active_.empty() && !running_) return action();
    }
    slice_end.check();
    if (!run_until(kNever, Runner::waiter)) wait_behind_runner(kNever);
  }
}

void Queue::if_idle(const std::function<void()>& action) {
  std::lock_guard lock(mutex_);
  if (active_.empty() && !running_) action();
}

Clock Queue::clock() const {
  std::lock_guard lock(mutex_);
  return clock_;
}

/// Runs or awaits commands until the point is reached.
void Queue::wait_for(Point point, Patience patience) {
  SliceEnd slice_end;
  while (!progress_.done(point)) {
    if (patience == Patience::may_give_up) slice_end.check();
    if (!run_until(point, Runner::waiter)) wait_behind_runner(point);
  }
}

/// Host threads that run launches want all CPUs: one that waits for much work sleeps, and wakes shortly before the end.
void Queue::wait_behind_runner(Point point) {
  if (help_exchange(point)) return;
  if (near(point)) spin_until([&] { return progress_.done(point) || !running_; }, spin_pauses());
  if (progress_.done(point)) return;
  std::unique_lock lock(mutex_);
  const bool was_near = near(point);
  auto awake = [&] {
    return progress_.done(point) || (!was_near && near(point)) || (!running_ && best(Runner::waiter)) ||
           (point == kNever && active_.empty() && !running_);
  };
  waiting_.push_back(point);
  done_.wait_for(lock, kSlice, awake);
  waiting_.erase(std::find(waiting_.begin(), waiting_.end(), point));
}

/// For a thread that waits. True if it did something.
bool Queue::help_exchange(Point point) {
  std::shared_ptr<Exchange> exchange;
  {
    std::lock_guard lock(mutex_);
    exchange = under_way();
    helping_ += exchange != nullptr;
  }
  if (!exchange) return false;
  const bool helped = exchange->help();
  {
    std::lock_guard lock(mutex_);
    --helping_;
  }
  if (helped && !progress_.done(point) && run_until(point, Runner::waiter)) return true;
  std::unique_lock lock(mutex_);
  const Wake sleeper = worker_to_wake();
  lock.unlock();
  wake_up(sleeper);
  return helped;
}

/// For the worker, with nothing else to do. True if something ended.
bool Queue::attend_exchange() {
  std::shared_ptr<Exchange> exchange;
  {
    std::lock_guard lock(mutex_);
    exchange = running_ || stop_ || best(Runner::worker) ? nullptr : under_way();
    if (!exchange) return false;
    attended_ = exchange;
    worker_asleep_ = true;
  }
  const bool ended = exchange->attend([this] { return !worker_asleep_; });
  std::lock_guard lock(mutex_);
  worker_asleep_ = false;
  attended_.reset();
  return ended;
}

/// With the lock.
std::shared_ptr<Exchange> Queue::under_way() const {
  for (const Stream* s : active_)
    if (s->entries.front().begun) return s->entries.front().exchange;
  return nullptr;
}

bool Queue::near(Point point) const {
  return point.sequence - progress_.completed[point.stream].load(std::memory_order_acquire) <= kNear;
}

/// Whether a thread waits for the end, or the near end, that the last command of the stream has reached.
bool Queue::awaited(const Stream& stream) const {
  const uint64_t completed = progress_.completed[stream.id].load(std::memory_order_relaxed);
  return std::any_of(waiting_.begin(), waiting_.end(), [&](Point p) {
    return p.stream == stream.id && (p.sequence == completed || p.sequence == completed + kNear);
  });
}

bool Queue::ready(const Entry& entry) const {
  return std::all_of(entry.after.begin(), entry.after.end(), [&](Point p) { return progress_.done(p); });
}

bool Queue::may_run(const Entry& entry, Runner runner) const {
  if (entry.begun || !ready(entry)) return false;
  return runner != Runner::finisher || (entry.exchange ? entry.exchange->quick() : !entry.command);
}

/// High priority first, then the stream that has waited longest for its turn. An entry waits only for entries that were
/// submitted before it, so among all that are queued one is always ready or an exchange under way: there is no
/// deadlock. The worker is awake whenever there is work and nobody runs it, so a thread that waits may leave it to the
/// worker.
Queue::Stream* Queue::best(Runner runner) const {
  auto rank = [](const Stream& s) { return std::pair(s.id < kFirstHighPriorityStream, s.turn); };
  Stream* best = nullptr;
  for (Stream* s : active_)
    if (may_run(s->entries.front(), runner) && (!best || rank(*s) < rank(*best))) best = s;
  if (!best || runner != Runner::waiter) return best;
  const Command* command = best->entries.front().command.get();
  return command && command->lengthy() ? nullptr : best;
}

Queue::Stream* Queue::next(Runner runner) {
  Stream* stream = best(runner);
  if (stream) stream->turn = ++turns_;
  return stream;
}

Queue::Entry Queue::pop(Stream& stream) {
  Entry entry = std::move(stream.entries.front());
  stream.entries.pop_front();
  if (stream.entries.empty()) std::erase(active_, &stream);
  return entry;
}

/// Executes commands until the point is reached or none is ready; a waiter, until its slice of time is over. False if
/// there is nothing to do, or if it is for another thread.
bool Queue::run_until(Point point, Runner runner) {
  std::unique_lock lock(mutex_);
  Stream* stream = running_ ? nullptr : next(runner);
  if (!stream) return false;
  running_ = true;
  const SliceEnd slice_end;
  auto over = [&] { return progress_.done(point) || (runner == Runner::waiter && slice_end.reached()); };
  for (bool wake = false; stream; stream = over() ? nullptr : next(runner)) {
    if (stream->entries.front().exchange) {
      begin_exchange(*stream, lock);
      continue;
    }
    Entry entry = pop(*stream);
    if (entry.inherits) inherit(*stream, entry);
    const bool refused = lost_ || stream->error;
    lock.unlock();
    if (wake) done_.notify_all();
    auto error = refused || !entry.command ? std::nullopt : execute(*entry.command);
    if (error) {  // is known before what the command would have written is marked
      lock.lock();
      fail(*stream, *error);
      lock.unlock();
    }
    if (entry.command && (refused || error)) entry.command->dropped();
    entry.command.reset();
    lock.lock();
    queued_.fetch_sub(1, std::memory_order_release);
    progress_.completed[stream->id].fetch_add(1, std::memory_order_release);
    wake = awaited(*stream);
  }
  stop_running(lock);
  return true;
}

void Queue::inherit(Stream& stream, const Entry& entry) {
  for (Point p : entry.after)
    if (failed(p) && !stream.error) fail(stream, *streams_[p.stream].error);
}

/// The entry stays at the head of its stream until the exchange ends. Called by the runner, with the lock, which is
/// free in between.
void Queue::begin_exchange(Stream& stream, std::unique_lock<std::mutex>& lock) {
  Entry& entry = stream.entries.front();
  inherit(stream, entry);
  entry.begun = true;
  auto exchange = entry.exchange;
  const uint64_t arrival = entry.arrival.at_least();
  const std::optional<Error> refusal = lost_ ? lost_ : stream.error;
  std::byte* memory = entry.memory;
  lock.unlock();
  if (refusal) {
    exchange->cancel(refusal->what());
    end_exchange(stream, &*refusal, arrival);
  } else {
    exchange->begin(memory, arrival,
                    [this, &stream](const Error* error, uint64_t end) { end_exchange(stream, error, end); });
  }
  lock.lock();
}

void Queue::end_exchange(Stream& stream, const Error* error, uint64_t end_ns) {
  Entry entry;  // its memory goes when the lock is free
  std::unique_lock lock(mutex_);
  entry = pop(stream);
  entry.end->say(std::max(end_ns, entry.end->ns.load()));
  if (error && !stream.error) fail(stream, *error);
  if (error) entry.command->dropped();
  queued_.fetch_sub(1, std::memory_order_release);
  progress_.completed[stream.id].fetch_add(1, std::memory_order_release);
  news_.fetch_add(1, std::memory_order_release);
  lock.unlock();
  if (run_until(kNever, Runner::finisher)) return;
  lock.lock();
  const Wake sleepers = all_to_wake();
  lock.unlock();
  wake_up(sleepers);
}

void Queue::forgive_exchanges() {
  std::lock_guard lock(mutex_);
  for (Stream& s : streams_)
    if (s.error && of_an_exchange(*s.error)) s.error.reset();
}

/// The command that is running is number completed + 1 of its stream.
void Queue::fail(Stream& stream, const Error& error) {
  failed_ = true;
  if (error.kind() == "DeviceLost") {
    lost_ = error;
    lost_told_ = false;
    return;
  }
  stream.error = error;
  stream.told = false;
  stream.failed_at = progress_.completed[stream.id].load() + 1;
}

void Queue::stop_running(std::unique_lock<std::mutex>& lock) {
  running_ = false;
  const Wake sleepers = all_to_wake();
  lock.unlock();
  wake_up(sleepers);
}

/// Whoever runs looks for more, and so does a thread that helps an exchange if it may run what is ready. With the lock.
Queue::Wake Queue::worker_to_wake() {
  if (running_ || !worker_asleep_ || !best(Runner::worker) || (helping_ && best(Runner::waiter))) return {};
  worker_asleep_ = false;
  return {.worker = true, .attended = attended_};
}

Queue::Wake Queue::all_to_wake() {
  Wake sleepers = worker_to_wake();
  sleepers.waiters = std::any_of(waiting_.begin(), waiting_.end(),
                                 [&](Point p) { return p == kNever || near(p) || progress_.done(p); }) ||
                     (!waiting_.empty() && !running_ && best(Runner::waiter));
  return sleepers;
}

void Queue::wake_up(const Wake& sleepers) {
  if (sleepers.attended) sleepers.attended->recall();
  if (sleepers.worker) worker_wake_.notify_one();
  if (sleepers.waiters) done_.notify_all();
}

void Queue::work() {
  for (;;) {
    const uint64_t seen = news_.load(std::memory_order_acquire);
    if (run_until(kNever, Runner::worker) || attend_exchange()) continue;
    auto ready = [&] { return news_.load(std::memory_order_acquire) != seen && !running_; };
    if (spin_until(ready, spin_pauses())) continue;
    std::unique_lock lock(mutex_);
    if (!running_ && best(Runner::worker)) continue;
    if (stop_ && active_.empty()) return;
    worker_asleep_ = true;
    worker_wake_.wait(lock, [&] { return stop_ || !worker_asleep_; });
    worker_asleep_ = false;
  }
}

void set_wait_check(void (*check)()) { wait_check.store(check, std::memory_order_release); }

}  // namespace spyre::card
