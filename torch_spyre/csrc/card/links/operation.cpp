// SPDX-License-Identifier: Apache-2.0
#include "operation.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace spyre::card {

const char* name_of(Collective kind) {
  constexpr const char* names[kCollectives] = {"all_reduce",     "reduce", "broadcast", "all_gather",
                                               "reduce_scatter", "gather", "scatter",   "all_to_all",
                                               "barrier",        "send",   "recv"};
  return names[static_cast<int>(kind)];
}

const char* name_of(Combine combine) {
  constexpr const char* names[] = {"sum", "avg", "product", "min", "max", "band", "bor", "bxor"};
  return names[static_cast<int>(combine)];
}

namespace {

bool combines(Collective kind) {
  return kind == Collective::all_reduce || kind == Collective::reduce || kind == Collective::reduce_scatter;
}
bool has_root(Collective kind) {
  return kind == Collective::reduce || kind == Collective::broadcast || kind == Collective::gather ||
         kind == Collective::scatter;
}

std::string call_text(Collective kind, Combine combine, int root, const std::string& text) {
  std::string call = name_of(kind);
  if (combines(kind)) call += std::string("(") + name_of(combine) + ")";
  if (!text.empty()) call += " of " + text;
  if (has_root(kind)) call += ", root " + std::to_string(root);
  return call;
}

}  // namespace

std::string Letter::call() const { return call_text(kind, combine, root, text); }

Pieces::Pieces(std::span<const Elements> elements, bool to_device) : to_device_(to_device) {
  for (const Elements& e : elements) {
    const int64_t n = std::accumulate(e.size.begin(), e.size.end(), int64_t{1}, std::multiplies<>());
    if (n == 0) continue;
    std::vector<int64_t> stride(e.size.size(), 1);
    for (size_t d = stride.size(); d-- > 1;) stride[d - 1] = stride[d] * e.size[d];
    const HostTensor run{nullptr, e.tensor.format, e.size, std::move(stride)};
    plans_.push_back(plan_dma(run, e.tensor, to_device));
    plans_.back().bytes = static_cast<uint64_t>(n * format_bytes(static_cast<Format>(e.tensor.format)));
    bytes_ += plans_.back().bytes;
  }
}

void Pieces::move(std::byte* memory, std::byte* bytes) const {
  for (DmaPlan plan : plans_) {
    plan.host.base = bytes + reinterpret_cast<uintptr_t>(plan.host.base);
    run_dma(plan, to_device_, memory);
    bytes += plan.bytes;
  }
}

void Pieces::read(std::byte* memory, std::byte* to) const { move(memory, to); }
void Pieces::write(std::byte* memory, const std::byte* from) const { move(memory, const_cast<std::byte*>(from)); }

Operation::Operation(const Call& call, Peers peers) : call_(call), peers_(peers) {
  for (const auto& elements : call.inputs) inputs_.emplace_back(elements, false);
  for (const auto& elements : call.outputs) outputs_.emplace_back(elements, true);
  const auto total = [](const std::vector<Pieces>& pieces) {
    return std::accumulate(pieces.begin(), pieces.end(), uint64_t{0},
                           [](uint64_t sum, const Pieces& p) { return sum + p.bytes(); });
  };
  message_bytes_ = std::max(total(inputs_), total(outputs_));
  call_.inputs.clear();
  call_.outputs.clear();
}

std::string Operation::describe() const { return call_text(call_.kind, call_.combine, call_.root, call_.text); }

uint64_t Operation::price_ns() const {
  const CollectiveCost& cost = peers_.options.costs[static_cast<int>(call_.kind)];
  return static_cast<uint64_t>(cost.start_ns + cost.ns_per_byte * static_cast<double>(message_bytes_));
}

namespace {

std::span<std::byte> bytes_of(Letter& letter) { return std::as_writable_bytes(std::span(&letter, 1)); }

class CollectiveOperation final : public Operation {
 public:
  CollectiveOperation(const Call& call, Peers peers)
      : Operation(call, peers),
        out_(static_cast<size_t>(peers.size())),
        letters_(out_.size()),
        data_(out_.size()),
        states_(out_.size()) {
    if (combines(call.kind)) check_arithmetic(arithmetic());
  }

  void begin(std::byte* memory, uint64_t arrival_ns) override {
    memory_ = memory;
    start_ns_ = arrival_ns;
    stage_inputs();
    for (int peer = 0; peer < peers_.size(); ++peer) {
      if (peer == peers_.rank()) continue;
      write_letter(peer, arrival_ns);
      State& s = states_[peer];
      s.sends.push_back(link(peer).send(Lane::collective, bytes_of(out_[peer])));
      if (out_[peer].enclosed) s.sends.push_back(link(peer).send(Lane::collective, outgoing(peer)));
      s.receives.push_back(link(peer).receive(Lane::collective, bytes_of(letters_[peer])));
    }
  }

  bool advance(bool& moved) override {
    for (;;) {
      bool pending = false;
      for (int peer = 0; peer < peers_.size(); ++peer)
        if (peer != peers_.rank()) pending |= !advance_peer(peer, moved);
      if (step_ == Step::letters) compare_letters();
      if (pending) return false;
      if (step_ == Step::letters) {
        step_ = Step::data;
        if (start_data()) continue;
      }
      if (step_ == Step::data) {
        finish_data();
        step_ = Step::results;
        if (start_results()) continue;
      }
      store();
      end_ns_ = start_ns_ + price_ns();
      return true;
    }
  }

  std::vector<int> awaited() const override {
    std::vector<int> peers;
    for (int peer = 0; peer < peers_.size(); ++peer)
      if (!states_[peer].sends.empty() || !states_[peer].receives.empty()) peers.push_back(peer);
    return peers;
  }

  /// Once for every letter that has not come.
  uint32_t rings_awaited() const override {
    uint32_t letters = 0;
    for (const State& s : states_) {
      if (!s.sends.empty()) return 1;
      letters += !s.receives.empty();
    }
    return step_ == Step::letters ? std::max(letters, 1u) : 1;
  }

 private:
  enum class Step { letters, data, results };
  struct State {
    std::deque<std::unique_ptr<Flow>> sends, receives;
    bool read_letter = false, compared = false;
  };

  PooledBytes take(uint64_t bytes) const { return PooledBytes(peers_.buffers, bytes); }
  Link& link(int peer) const { return *peers_.links[static_cast<size_t>(peer)]; }
  Arithmetic arithmetic() const { return {call_.combine, static_cast<Format>(call_.format), call_.meaning}; }
  bool is_root() const { return call_.root == peers_.rank(); }
  /// An all-reduce of much data: each rank combines a part, and all collect the parts.
  bool in_parts() const { return call_.kind == Collective::all_reduce && message_bytes_ > kEnclosedBytes; }

  std::span<std::byte> part(int rank) {
    const auto size = static_cast<uint64_t>(format_bytes(static_cast<Format>(call_.format)));
    const uint64_t n = staged_.size() / size, ranks = static_cast<uint64_t>(peers_.size());
    const uint64_t begin = n * static_cast<uint64_t>(rank) / ranks, end = n * static_cast<uint64_t>(rank + 1) / ranks;
    return staged_.span().subspan(begin * size, (end - begin) * size);
  }

  void stage_inputs() {
    uint64_t bytes = 0;
    for (const Pieces& p : inputs_) {
      offsets_.push_back(bytes);
      bytes += p.bytes();
    }
    staged_ = take(bytes);
    if (call_.timing_only) return;
    for (size_t i = 0; i < inputs_.size(); ++i) inputs_[i].read(memory_, staged_.data() + offsets_[i]);
  }

  std::span<std::byte> piece(int rank) {
    const size_t i = inputs_.size() == 1 ? 0 : static_cast<size_t>(rank);
    return staged_.span().subspan(offsets_[i], inputs_[i].bytes());
  }

  /// What this rank gives to `peer`, itself included.
  std::span<std::byte> outgoing(int peer) {
    switch (call_.kind) {
      case Collective::all_reduce:
        return in_parts() ? part(peer) : staged_.span();
      case Collective::all_gather:
        return staged_.span();
      case Collective::reduce:
      case Collective::gather:
        return peer == call_.root ? staged_.span() : std::span<std::byte>();
      case Collective::broadcast:
        return is_root() ? staged_.span() : std::span<std::byte>();
      case Collective::scatter:
        return is_root() ? piece(peer) : std::span<std::byte>();
      case Collective::reduce_scatter:
      case Collective::all_to_all:
        return piece(peer);
      default:
        return {};
    }
  }

  /// Bytes that the letter of a peer must name. All of them where ranks combine parts: parts of unlike sizes may agree.
  uint64_t expected(int peer) {
    switch (call_.kind) {
      case Collective::all_reduce:
        return staged_.size();
      case Collective::all_gather:
      case Collective::all_to_all:
        return output_bytes(peer);
      case Collective::reduce:
        return is_root() ? staged_.size() : 0;
      case Collective::gather:
        return is_root() ? output_bytes(peer) : 0;
      case Collective::broadcast:
      case Collective::scatter:
        return peer == call_.root ? output_bytes(0) : 0;
      case Collective::reduce_scatter:
        return piece(peers_.rank()).size();
      default:
        return 0;
    }
  }
  uint64_t output_bytes(int rank) const {
    return outputs_.empty() ? 0 : outputs_[outputs_.size() == 1 ? 0 : static_cast<size_t>(rank)].bytes();
  }

  void write_letter(int peer, uint64_t arrival_ns) {
    Letter& letter = out_[static_cast<size_t>(peer)];
    const uint64_t bytes = in_parts() ? staged_.size() : outgoing(peer).size();
    letter.sequence = sequence;
    letter.arrival_ns = arrival_ns;
    letter.bytes = bytes;
    letter.enclosed = !in_parts() && bytes <= kEnclosedBytes && !call_.timing_only ? bytes : 0;
    letter.root = call_.root;
    letter.dtype = call_.dtype;
    letter.kind = call_.kind;
    letter.combine = call_.combine;
    std::strncpy(letter.text, call_.text.c_str(), sizeof(letter.text) - 1);
  }

  /// True if nothing is left to move between this rank and the peer in this step.
  bool advance_peer(int peer, bool& moved) {
    State& s = states_[static_cast<size_t>(peer)];
    while (!s.sends.empty() && s.sends.front()->advance(moved)) s.sends.pop_front();
    while (!s.receives.empty() && s.receives.front()->advance(moved)) {
      s.receives.pop_front();
      if (std::exchange(s.read_letter, true)) continue;
      const Letter& letter = letters_[static_cast<size_t>(peer)];
      if (!letter.enclosed) continue;
      PooledBytes& data = data_[static_cast<size_t>(peer)] = take(letter.enclosed);
      s.receives.push_back(link(peer).receive(Lane::collective, data.span()));
    }
    link(peer).tell();
    return s.sends.empty() && s.receives.empty();
  }

  /// Those that have come: ranks that disagree hear of it while others are still on their way.
  void compare_letters() {
    for (int peer = 0; peer < peers_.size(); ++peer) {
      State& s = states_[static_cast<size_t>(peer)];
      if (!s.read_letter || std::exchange(s.compared, true)) continue;
      const Letter& theirs = letters_[static_cast<size_t>(peer)];
      const Letter& mine = out_[static_cast<size_t>(peer)];
      const bool same = theirs.kind == mine.kind && theirs.sequence == mine.sequence && theirs.dtype == mine.dtype &&
                        theirs.root == mine.root && (!combines(mine.kind) || theirs.combine == mine.combine);
      if (!same || theirs.bytes != expected(peer)) throw mismatch(peer, theirs);
      start_ns_ = std::max(start_ns_, theirs.arrival_ns);
    }
  }

  Error mismatch(int peer, const Letter& theirs) {
    std::string what = "rank " + std::to_string(peers_.rank()) + " calls " + describe() + ", rank " +
                       std::to_string(peer) + " calls " + theirs.call();
    if (theirs.bytes != expected(peer))
      what += "; rank " + std::to_string(peer) + " sends " + std::to_string(theirs.bytes) + " bytes where " +
              std::to_string(expected(peer)) + " are expected";
    return Error("CollectiveMismatch", what + " (collective " + std::to_string(sequence) + " of group '" +
                                           peers_.options.name +
                                           "'); all ranks must make the same calls, with the same sizes, in one order");
  }

  /// Data that did not travel with the letters; false if there is none.
  bool start_data() {
    bool any = false;
    for (int peer = 0; peer < peers_.size() && !call_.timing_only; ++peer) {
      if (peer == peers_.rank()) continue;
      State& s = states_[static_cast<size_t>(peer)];
      const auto bytes = outgoing(peer);
      if (!bytes.empty() && !out_[peer].enclosed) s.sends.push_back(link(peer).send(Lane::collective, bytes));
      const uint64_t coming = in_parts() ? part(peers_.rank()).size() : letters_[static_cast<size_t>(peer)].bytes;
      if (coming && !letters_[static_cast<size_t>(peer)].enclosed) {
        PooledBytes& data = data_[static_cast<size_t>(peer)] = take(coming);
        s.receives.push_back(link(peer).receive(Lane::collective, data.span()));
      }
      any |= !s.sends.empty() || !s.receives.empty();
    }
    return any;
  }

  void finish_data() {
    for (int peer = 0; peer < peers_.size(); ++peer) {
      if (peer == peers_.rank()) continue;
      sent_bytes += outgoing(peer).size();
      received_bytes += in_parts() ? part(peers_.rank()).size() : letters_[static_cast<size_t>(peer)].bytes;
    }
    const bool here = call_.kind != Collective::reduce || is_root();
    if (!combines(call_.kind) || !here || call_.timing_only) return;
    const auto own = outgoing(peers_.rank());
    std::vector<const std::byte*> parts;
    for (int peer = 0; peer < peers_.size(); ++peer)
      parts.push_back(peer == peers_.rank() ? own.data() : data_[static_cast<size_t>(peer)].data());
    if (!own.empty()) combine_parts(arithmetic(), own, parts);
  }

  /// The combined parts of an all-reduce, to and from everybody.
  bool start_results() {
    if (!in_parts() || call_.timing_only) return false;
    for (int peer = 0; peer < peers_.size(); ++peer) {
      if (peer == peers_.rank()) continue;
      State& s = states_[static_cast<size_t>(peer)];
      s.sends.push_back(link(peer).send(Lane::collective, part(peers_.rank())));
      s.receives.push_back(link(peer).receive(Lane::collective, part(peer)));
      sent_bytes += part(peers_.rank()).size();
      received_bytes += part(peer).size();
    }
    return true;
  }

  void store() {
    if (call_.timing_only) return;
    const std::byte* own = outgoing(peers_.rank()).data();
    switch (call_.kind) {
      case Collective::all_reduce:
        return outputs_[0].write(memory_, staged_.data());
      case Collective::reduce:
        return is_root() ? outputs_[0].write(memory_, own) : void();
      case Collective::reduce_scatter:
        return outputs_[0].write(memory_, own);
      case Collective::broadcast:
      case Collective::scatter:
        return outputs_.empty() ? void() : outputs_[0].write(memory_, is_root() ? own : data_[call_.root].data());
      case Collective::all_gather:
      case Collective::gather:
      case Collective::all_to_all:
        for (size_t i = 0; i < outputs_.size(); ++i)
          outputs_[i].write(memory_, static_cast<int>(i) == peers_.rank() ? own : data_[i].data());
        return;
      default:
        return;
    }
  }

  std::byte* memory_ = nullptr;
  uint64_t start_ns_ = 0;
  PooledBytes staged_;
  std::vector<uint64_t> offsets_;
  std::vector<Letter> out_, letters_;  // to and from each peer
  std::vector<PooledBytes> data_;      // from each peer
  std::vector<State> states_;
  Step step_ = Step::letters;
};

}  // namespace

std::unique_ptr<Operation> make_collective(const Call& call, Peers peers) {
  return std::make_unique<CollectiveOperation>(call, peers);
}

// Messages between two ranks.

class Inbox {
 public:
  struct Message {
    Letter letter;
    PooledBytes bytes;
  };

  explicit Inbox(Peers peers) : sources_(static_cast<size_t>(peers.size())), peers_(peers) {}

  /// Takes a complete message of `tag` from `source`; null if there is none yet. Reads what has come.
  std::unique_ptr<Message> take(int source, int tag, bool& moved) {
    Source& s = sources_[static_cast<size_t>(source)];
    for (;;) {
      for (auto it = s.complete.begin(); it != s.complete.end(); ++it) {
        if ((*it)->letter.tag != tag) continue;
        auto message = std::move(*it);
        s.complete.erase(it);
        return message;
      }
      if (!read(source, s, moved)) return nullptr;
    }
  }

 private:
  struct Source {
    std::unique_ptr<Message> coming;
    std::unique_ptr<Flow> flow;
    bool in_body = false;
    std::deque<std::unique_ptr<Message>> complete;
  };

  /// True when one more message is complete.
  bool read(int source, Source& s, bool& moved) {
    Link& link = *peers_.links[static_cast<size_t>(source)];
    if (!s.coming) {
      s.coming = std::make_unique<Message>();
      s.flow = link.receive(Lane::message, bytes_of(s.coming->letter));
      s.in_body = false;
    }
    if (!s.flow->advance(moved)) return false;
    if (!s.in_body && s.coming->letter.enclosed) {
      s.coming->bytes = PooledBytes(peers_.buffers, s.coming->letter.enclosed);
      s.flow = link.receive(Lane::message, s.coming->bytes.span());
      s.in_body = true;
      if (!s.flow->advance(moved)) return false;
    }
    s.complete.push_back(std::move(s.coming));
    return true;
  }

  std::vector<Source> sources_;
  Peers peers_;
};

std::shared_ptr<Inbox> make_inbox(Peers peers) { return std::make_shared<Inbox>(peers); }

namespace {

class SendOperation final : public Operation {
 public:
  SendOperation(const Call& call, Peers peers) : Operation(call, peers) {}

  void begin(std::byte* memory, uint64_t arrival_ns) override {
    staged_ = PooledBytes(peers_.buffers, inputs_[0].bytes());
    if (!call_.timing_only) inputs_[0].read(memory, staged_.data());
    letter_.sequence = sequence;
    letter_.arrival_ns = arrival_ns;
    letter_.bytes = staged_.size();
    letter_.enclosed = call_.timing_only ? 0 : staged_.size();
    letter_.tag = call_.tag;
    letter_.dtype = call_.dtype;
    letter_.kind = Collective::send;
    std::strncpy(letter_.text, call_.text.c_str(), sizeof(letter_.text) - 1);
    Link& link = *peers_.links[static_cast<size_t>(call_.root)];
    flows_.push_back(link.send(Lane::message, bytes_of(letter_)));
    if (letter_.enclosed) flows_.push_back(link.send(Lane::message, staged_.span()));
    end_ns_ = arrival_ns + price_ns();
    sent_bytes = staged_.size();
  }
  bool advance(bool& moved) override {
    while (!flows_.empty() && flows_.front()->advance(moved)) flows_.pop_front();
    peers_.links[static_cast<size_t>(call_.root)]->tell();
    return flows_.empty();
  }
  std::vector<int> awaited() const override { return {call_.root}; }

 private:
  Letter letter_;
  PooledBytes staged_;
  std::deque<std::unique_ptr<Flow>> flows_;
};

class ReceiveOperation final : public Operation {
 public:
  ReceiveOperation(const Call& call, Peers peers, std::shared_ptr<Inbox> inbox)
      : Operation(call, peers), inbox_(std::move(inbox)) {}

  void begin(std::byte* memory, uint64_t arrival_ns) override {
    memory_ = memory;
    arrival_ns_ = arrival_ns;
  }
  bool advance(bool& moved) override {
    for (int peer : awaited()) {
      auto message = inbox_->take(peer, call_.tag, moved);
      if (!message) continue;
      source_ = peer;
      accept(*message);
      return true;
    }
    return false;
  }
  std::vector<int> awaited() const override {
    if (call_.root >= 0) return {call_.root};
    std::vector<int> peers;
    for (int peer = 0; peer < peers_.size(); ++peer)
      if (peer != peers_.rank()) peers.push_back(peer);
    return peers;
  }
  int source() const override { return source_; }

 private:
  void accept(const Inbox::Message& message) {
    const Letter& letter = message.letter;
    if (letter.bytes != outputs_[0].bytes() || letter.dtype != call_.dtype)
      throw Error("CollectiveMismatch", "rank " + std::to_string(peers_.rank()) + " receives " + call_.text +
                                            " from rank " + std::to_string(source_) + ", which sends " + letter.text +
                                            " (group '" + peers_.options.name + "', tag " + std::to_string(call_.tag) +
                                            "); both must name the same dtype and number of elements");
    if (!call_.timing_only && letter.enclosed) outputs_[0].write(memory_, message.bytes.data());
    end_ns_ = std::max(arrival_ns_, letter.arrival_ns) + price_ns();
    received_bytes = letter.bytes;
  }

  std::shared_ptr<Inbox> inbox_;
  std::byte* memory_ = nullptr;
  uint64_t arrival_ns_ = 0;
  int source_ = -1;
};

}  // namespace

std::unique_ptr<Operation> make_send(const Call& call, Peers peers) {
  return std::make_unique<SendOperation>(call, peers);
}
std::unique_ptr<Operation> make_receive(const Call& call, Peers peers, std::shared_ptr<Inbox> inbox) {
  return std::make_unique<ReceiveOperation>(call, peers, std::move(inbox));
}

}  // namespace spyre::card
