// SPDX-License-Identifier: Apache-2.0
// A group: its mailbox, its links, and the operations under way. One thread at a time moves them on: the one that runs
// what comes after them, while it has nothing else to do, or one that waits for the card, for a blink; else the thread
// of the group. It sleeps on the bell of the mailbox until as many peers have rung as the operation needs: a thread
// that wakes for every peer costs more than the data that it moves.
#include <unistd.h>

#include <algorithm>
#include <list>
#include <mutex>
#include <optional>
#include <thread>

#include "mailbox.h"
#include "operation.h"
#include "team.h"

namespace spyre::card {
namespace {

using Time = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLook{50};   // between looks whether peers live, while somebody waits
constexpr std::chrono::milliseconds kDoze{250};  // the same, while nobody does
constexpr int kSpins = 16;                       // some 10 us each, as spin_pauses() has it

class Group;

/// The card's view of an operation.
class OperationExchange final : public GroupExchange, public std::enable_shared_from_this<OperationExchange> {
 public:
  OperationExchange(std::shared_ptr<Group> group, std::unique_ptr<Operation> operation,
                    std::shared_ptr<const ExchangeInfo> info, std::vector<ExchangeUse> uses)
      : operation(std::move(operation)), group_(std::move(group)), info_(std::move(info)), uses_(std::move(uses)) {}

  void begin(std::byte* memory, uint64_t arrival_ns, Done done) override;
  void cancel(const std::string& reason) override;
  bool help() override;
  bool attend(const std::function<bool()>& wanted) override;
  void recall() override;
  bool quick() const override { return operation->message_bytes() <= kEnclosedBytes; }
  int source() const override { return source_; }
  std::shared_ptr<const ExchangeInfo> info() const override { return info_; }
  std::span<const ExchangeUse> uses() const override { return uses_; }

  void finish(const Error* error) {
    source_ = operation->source();
    const uint64_t end = operation->end_ns();
    auto done = std::move(done_);
    operation.reset();
    done(error, end);
  }

  std::unique_ptr<Operation> operation;
  Time::time_point begun, deadline;
  std::optional<std::string> cancelled;

 private:
  friend class Group;
  std::shared_ptr<Group> group_;
  std::shared_ptr<const ExchangeInfo> info_;
  std::vector<ExchangeUse> uses_;
  Done done_;
  std::atomic<int> source_{-1};
};
using ExchangePtr = std::shared_ptr<OperationExchange>;

struct Ended {
  ExchangePtr exchange;
  std::optional<Error> error;
};

/// What exchanges and the group's thread share; they may outlive the LinkGroup.
class Group final : public std::enable_shared_from_this<Group> {
 public:
  explicit Group(GroupOptions options)
      : options_(std::move(options)),
        mailbox_(std::make_shared<Mailbox>(options_.size)),
        links_(static_cast<size_t>(options_.size)),
        buffers_(std::make_shared<BufferPool>()),
        inbox_(make_inbox(peers())) {}

  /// Nothing more happens in the group: what is under way ends with an error.
  void stop() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      if (!failure_) failure_ = Error("PeerLost", "the group '" + options_.name + "' is destroyed on this rank");
    }
    recall();
    if (thread_.joinable()) thread_.join();
    mailbox_->say(Mailbox::left, "");
  }

  void close() {
    stop();
    std::unique_lock lock(mutex_);
    closed_ = true;
    for (; attended_; lock.lock()) {  // by a thread that has been recalled
      lock.unlock();
      std::this_thread::yield();
    }
    for (auto& link : links_) link.reset();
    mailbox_->close();
  }

  LinkGroup::Address address() const {
    return {static_cast<int>(getpid()), mailbox_->segment().fd(), mailbox_->segment().bytes()};
  }
  void connect(int peer, const LinkGroup::Address& address) {
    links_.at(static_cast<size_t>(peer)) = shared_link(mailbox_, options_.rank, peer, address, options_.size);
  }
  void connect(int peer, std::unique_ptr<Link> link) { links_.at(static_cast<size_t>(peer)) = std::move(link); }

  std::function<void()> bell() const {
    return [mailbox = mailbox_] { mailbox->ring_bell(); };
  }

  std::shared_ptr<GroupExchange> exchange(const Call& call) {
    std::vector<ExchangeUse> uses;
    add_uses(call.inputs, false, uses);
    add_uses(call.outputs, true, uses);
    std::unique_ptr<Operation> operation = call.kind == Collective::send      ? make_send(call, peers())
                                           : call.kind == Collective::receive ? make_receive(call, peers(), inbox_)
                                                                              : make_collective(call, peers());
    std::lock_guard lock(mutex_);
    if (closed_) throw Error("PeerLost", "the group '" + options_.name + "' is destroyed on this rank");
    const bool message = call.kind == Collective::send || call.kind == Collective::receive;
    operation->sequence = message ? ++messages_ : ++collectives_;
    auto info = describe(call, *operation);
    return std::make_shared<OperationExchange>(shared_from_this(), std::move(operation), std::move(info),
                                               std::move(uses));
  }

  void set_timeout(std::chrono::milliseconds timeout) {
    std::lock_guard lock(mutex_);
    options_.timeout = timeout;
  }

  void abort(const std::string& reason) {
    {
      std::lock_guard lock(mutex_);
      if (!failure_) failure_ = Error("PeerLost", reason);
    }
    mailbox_->say(Mailbox::gave_up, reason);
    recall();
  }

  Traffic traffic() const {
    std::lock_guard lock(mutex_);
    Traffic t = traffic_;
    t.collectives = collectives_;
    t.messages = messages_;
    return t;
  }
  const GroupOptions& options() const { return options_; }
  const char* link_name(int peer) const {
    std::lock_guard lock(mutex_);
    const auto& link = links_.at(static_cast<size_t>(peer));
    return link ? link->name() : closed_ ? "closed" : "itself";
  }

  void begin(const ExchangePtr& exchange, std::byte* memory, uint64_t arrival_ns) {
    std::vector<Ended> ended;
    {
      std::unique_lock lock(mutex_);
      exchange->begun = Time::now();
      const auto timeout = exchange->operation->call().timeout;
      exchange->deadline = exchange->begun + (timeout.count() > 0 ? timeout : options_.timeout);
      active_.push_back(exchange);
      try {
        if (!failure_) exchange->operation->begin(memory, arrival_ns);
      } catch (const Error& error) {
        ended.push_back({exchange, error});
        active_.remove(exchange);
      }
      const uint32_t seen = mailbox_->head().bell.load(std::memory_order_seq_cst);
      advance_all(ended);
      if (!active_.empty() && !thread_.joinable()) thread_ = std::thread([this] { serve(); });
      await_rings(seen);
    }
    finish(ended);
  }

  /// Moves things on, or waits until something can move: for a blink, or with `wanted` for a while unless it becomes
  /// true. Meanwhile peers need not wake the thread of the group. True if something ended.
  bool attend(const std::function<bool()>* wanted) {
    std::vector<Ended> ended;
    std::unique_lock lock(mutex_);
    if (closed_ || attended_) return false;
    attended_ = true;
    auto& head = mailbox_->head();
    head.polling.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t recalls = recalls_.load(std::memory_order_seq_cst);
    const auto until = Time::now() + kLook;
    uint32_t seen = 0;
    for (bool more = true; more;) {
      seen = head.bell.load(std::memory_order_seq_cst);
      const bool moved = advance_all(ended);
      if (!ended.empty() || active_.empty() || (wanted && (*wanted)())) break;
      if (moved) continue;
      await_rings(seen);
      lock.unlock();
      more = spin() || (wanted && sleep(recalls, until, Mailbox::attendant));
      lock.lock();
    }
    attended_ = false;
    head.polling.fetch_sub(1, std::memory_order_seq_cst);
    await_rings(seen);
    lock.unlock();
    const bool some = !ended.empty();
    finish(ended);
    return some;
  }

  /// Threads of this rank that sleep here look around.
  void recall() {
    recalls_.fetch_add(1, std::memory_order_seq_cst);
    mailbox_->wake_own();
  }

  void cancel(const ExchangePtr& exchange, const std::string& reason) {
    {
      std::lock_guard lock(mutex_);
      exchange->cancelled = reason;
      if (!failure_) failure_ = Error("PeerLost", "this rank gave up an exchange: " + reason);
    }
    mailbox_->say(Mailbox::gave_up, reason);
    recall();
  }

 private:
  Peers peers() { return {options_, links_, buffers_}; }

  static void add_uses(const std::vector<std::vector<Elements>>& pieces, bool writes, std::vector<ExchangeUse>& uses) {
    for (const auto& piece : pieces) {
      for (const Elements& e : piece) {
        uint64_t bytes = static_cast<uint64_t>(format_bytes(static_cast<Format>(e.tensor.format)));
        for (int64_t n : e.tensor.device_size) bytes *= static_cast<uint64_t>(n);
        if (bytes == 0) continue;
        const ExchangeUse use{e.tensor.address, bytes, writes};
        const bool known = std::any_of(uses.begin(), uses.end(), [&](const ExchangeUse& u) {
          return u.address == use.address && u.writes == use.writes;
        });
        if (!known) uses.push_back(use);
      }
    }
  }

  std::shared_ptr<const ExchangeInfo> describe(const Call& call, const Operation& operation) const {
    auto info = std::make_shared<ExchangeInfo>();
    const CollectiveCost& cost = options_.costs[static_cast<int>(call.kind)];
    info->kind = name_of(call.kind);
    info->group = options_.name;
    info->algorithm = cost.algorithm;
    info->bytes = operation.message_bytes();
    info->wire_bytes = static_cast<uint64_t>(cost.wire_bytes_per_byte * static_cast<double>(info->bytes));
    info->sequence = operation.sequence;
    info->peers = options_.world_ranks;
    info->rank = options_.rank;
    return info;
  }

  /// Moves everything on; what ended goes to `ended`. True if something moved. With the lock.
  bool advance_all(std::vector<Ended>& ended) {
    bool moved = false;
    for (auto it = active_.begin(); it != active_.end();) {
      std::optional<Error> error;
      bool done = false;
      const ExchangePtr& exchange = *it;
      try {
        if (exchange->cancelled)
          throw Error("PeerLost", exchange->operation->describe() + " was given up: " + *exchange->cancelled);
        if (failure_) throw *failure_;
        done = exchange->operation->advance(moved);
      } catch (const Error& e) {
        error = e;
        done = true;
        give_up(e);
      }
      if (!done) {
        ++it;
        continue;
      }
      moved = true;
      traffic_.sent_bytes += exchange->operation->sent_bytes;
      traffic_.received_bytes += exchange->operation->received_bytes;
      ended.push_back({exchange, std::move(error)});
      it = active_.erase(it);
    }
    return moved;
  }

  /// After an error ranks do not agree on what comes next: nothing more goes over the links.
  void give_up(const Error& error) {
    if (failure_) return;
    const std::string text = std::string(error.what()).substr(error.kind().size() + 2);
    failure_ = Error(error.kind(), text);
    mailbox_->say(Mailbox::gave_up, text);
  }

  static void finish(std::vector<Ended>& ended) {
    for (Ended& e : ended) e.exchange->finish(e.error ? &*e.error : nullptr);
    ended.clear();
  }

  /// Errors of peers and of time, for those who wait. With the lock.
  void look_around(std::vector<Ended>& ended) {
    const auto now = Time::now();
    for (const ExchangePtr& exchange : std::list(active_)) {
      const std::string reason = lost_peer(*exchange->operation);
      if (reason.empty() && now < exchange->deadline) continue;
      // What the peer has sent before may be all that is needed.
      if (advance_all(ended) || failure_) return;
      const Error error = reason.empty() ? too_late(*exchange, now) : Error("PeerLost", reason);
      give_up(error);
      ended.push_back({exchange, error});
      active_.remove(exchange);
    }
  }

  std::string lost_peer(const Operation& operation) const {
    for (int peer : operation.awaited()) {
      const std::string reason = links_[static_cast<size_t>(peer)]->lost();
      if (reason.empty()) continue;
      return "rank " + std::to_string(peer) + " " + reason + "; rank " + std::to_string(options_.rank) +
             " waited for it in " + operation.describe() + " (group '" + options_.name +
             "'); destroy the group to go on without it";
    }
    return "";
  }

  Error too_late(const OperationExchange& exchange, Time::time_point now) const {
    std::string ranks;
    for (int peer : exchange.operation->awaited()) ranks += (ranks.empty() ? "" : ", ") + std::to_string(peer);
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - exchange.begun).count();
    return Error("CollectiveTimeout", exchange.operation->describe() + " of group '" + options_.name + "' waited " +
                                          std::to_string(waited) + " ms for rank " + ranks +
                                          "; raise the timeout of the group, or see what keeps the rank");
  }

  /// Rings of the bell before anything ends, at least. With the lock.
  uint32_t rings_awaited() const {
    uint32_t rings = ~0u >> 2;
    for (const ExchangePtr& exchange : active_) rings = std::min(rings, exchange->operation->rings_awaited());
    return rings;
  }

  /// From now on peers wake who sleeps here when something may end: things have been moved on since the bell was at
  /// `seen`. It is the thread of the group unless another attends. With the lock.
  void await_rings(uint32_t seen) {
    auto& head = mailbox_->head();
    head.wake_at.store(seen + rings_awaited(), std::memory_order_seq_cst);
    if (attended_ || active_.empty())
      head.sleepers.fetch_and(~uint32_t{Mailbox::keeper}, std::memory_order_seq_cst);
    else
      head.sleepers.fetch_or(Mailbox::keeper, std::memory_order_seq_cst);
    const uint32_t sleepers = head.sleepers.load(std::memory_order_seq_cst);
    if (sleepers && rung()) shared_futex_wake(head.bell, sleepers);
  }
  bool rung() const {
    const auto& head = mailbox_->head();
    return Mailbox::reached(head.bell.load(std::memory_order_seq_cst), head.wake_at.load(std::memory_order_seq_cst));
  }

  /// What the thread of the group does.
  void serve() {
    std::unique_lock lock(mutex_);
    auto looked = Time::now();
    for (;;) {
      if (stop_ && active_.empty()) return;
      const uint32_t recalls = recalls_.load(std::memory_order_seq_cst);
      const uint32_t seen = mailbox_->head().bell.load(std::memory_order_seq_cst);
      std::vector<Ended> ended;
      const bool moved = !attended_ && advance_all(ended);
      if (Time::now() - looked > kLook) {
        look_around(ended);
        looked = Time::now();
      }
      if (!attended_) await_rings(seen);
      const bool busy = !active_.empty(), attended = attended_;
      lock.unlock();
      const bool idle = !moved && ended.empty();
      finish(ended);
      if (idle && !(busy && !attended && spin())) sleep(recalls, Time::now() + (busy ? kLook : kDoze), Mailbox::keeper);
      lock.lock();
    }
  }

  /// Until the bell has rung for who waits here; false if it takes longer than a blink. A blink is longer than it takes
  /// a thread to wake: a rank that has slept once would else find its peer asleep each time.
  bool spin() const {
    if (!options_.may_spin) return false;
    auto& polling = mailbox_->head().polling;
    polling.fetch_add(1, std::memory_order_seq_cst);
    bool yes = false;
    for (int i = 0; i < kSpins && !yes; ++i) yes = spin_until([this] { return rung(); }, spin_pauses() / 4, 1);
    polling.fetch_sub(1, std::memory_order_seq_cst);
    return yes || rung();
  }

  /// The same without a limit but `until`; false at that time, or if somebody recalled the thread.
  bool sleep(uint32_t recalls, Time::time_point until, Mailbox::Sleeper who) {
    auto& head = mailbox_->head();
    const bool attends = who == Mailbox::attendant;
    if (attends) {
      head.sleepers.fetch_or(who, std::memory_order_seq_cst);
      head.polling.fetch_sub(1, std::memory_order_seq_cst);
    }
    bool yes = false, over = false;
    while (!yes && !over) {
      const uint32_t seen = head.bell.load(std::memory_order_seq_cst);
      over = recalls_.load(std::memory_order_seq_cst) != recalls || Time::now() >= until;
      yes = (head.sleepers.load(std::memory_order_seq_cst) & who) && rung();
      if (!yes && !over) shared_futex_wait(head.bell, seen, until, who);
    }
    if (attends) {
      head.polling.fetch_add(1, std::memory_order_seq_cst);
      head.sleepers.fetch_and(~uint32_t{who}, std::memory_order_seq_cst);
    }
    return yes;
  }

  GroupOptions options_;
  std::shared_ptr<Mailbox> mailbox_;
  std::vector<std::unique_ptr<Link>> links_;
  std::shared_ptr<BufferPool> buffers_;
  std::shared_ptr<Inbox> inbox_;
  mutable std::mutex mutex_;
  std::list<ExchangePtr> active_;
  std::optional<Error> failure_;
  uint64_t collectives_ = 0, messages_ = 0;
  Traffic traffic_;
  bool stop_ = false, closed_ = false;
  bool attended_ = false;  // by a thread that is not the group's
  std::atomic<uint32_t> recalls_{0};
  std::thread thread_;
};

void OperationExchange::begin(std::byte* memory, uint64_t arrival_ns, Done done) {
  done_ = std::move(done);
  auto group = group_;
  group->begin(shared_from_this(), memory, arrival_ns);
}

bool OperationExchange::help() {
  auto group = group_;
  return group->attend(nullptr);
}

bool OperationExchange::attend(const std::function<bool()>& wanted) {
  auto group = group_;
  return group->attend(&wanted);
}

void OperationExchange::recall() {
  auto group = group_;
  group->recall();
}

void OperationExchange::cancel(const std::string& reason) {
  auto group = group_;
  group->cancel(shared_from_this(), reason);
}

class GroupHandle final : public LinkGroup {
 public:
  explicit GroupHandle(GroupOptions options) : group_(std::make_shared<Group>(std::move(options))) {}
  ~GroupHandle() override { group_->stop(); }

  Address address() const override { return group_->address(); }
  void connect(int peer, const Address& address) override { group_->connect(peer, address); }
  void connect(int peer, std::unique_ptr<Link> link) override { group_->connect(peer, std::move(link)); }
  std::function<void()> bell() const override { return group_->bell(); }
  std::shared_ptr<GroupExchange> exchange(const Call& call) override { return group_->exchange(call); }
  void set_timeout(std::chrono::milliseconds timeout) override { group_->set_timeout(timeout); }
  void abort(const std::string& reason) override { group_->abort(reason); }
  void close() override { group_->close(); }
  Traffic traffic() const override { return group_->traffic(); }
  const GroupOptions& options() const override { return group_->options(); }
  const char* link_name(int peer) const override { return group_->link_name(peer); }

 private:
  std::shared_ptr<Group> group_;
};

}  // namespace

std::shared_ptr<LinkGroup> LinkGroup::make(GroupOptions options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size)
    throw Error("InvalidArgument",
                "a group of " + std::to_string(options.size) + " ranks has no rank " + std::to_string(options.rank));
  if (options.costs.size() != kCollectives) options.costs.resize(kCollectives);
  return std::make_shared<GroupHandle>(std::move(options));
}

}  // namespace spyre::card
