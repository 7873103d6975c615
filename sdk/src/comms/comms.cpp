// SPDX-License-Identifier: Apache-2.0
// Collectives as exchanges of the card (spyre/links.h): they run on streams of their own, behind what was launched
// before.
#include "spyre_comms.hpp"

#include <mutex>
#include <numeric>
#include <thread>

#include "comms/costs.h"
#include "comms/rendezvous.h"
#include "comms/tcp_link.h"
#include "flex/runtime.h"

namespace spyre_comms {
namespace {

using flex::internal::Runtime;
using spyre::card::Call;
using spyre::card::Collective;
using spyre::card::Elements;
using spyre::card::Error;
using spyre::card::LinkGroup;
using spyre::card::Marker;

constexpr int kCollectiveStream = spyre::card::kStreams;
// Messages wait only for those to, or from, the same peer.
constexpr int kWays = (spyre::card::kLinkStreams - 1) / 2;
constexpr int kFirstSend = kCollectiveStream + 1, kFirstReceive = kFirstSend + kWays;

/// A group and what is queued on it.
struct World {
  internal::World where;
  std::shared_ptr<LinkGroup> group;
  flex::RuntimeStream* stream;
};

class Schedule final : public WorkSchedule {
 public:
  Schedule(std::shared_ptr<World> world, Call call, int stream)
      : world_(std::move(world)), call_(std::move(call)), stream_(stream) {}

  void start() override {
    if (started_) throw Error("InvalidArgument", "start: the collective has been started");
    spyre::card::Card& card = Runtime::get().card();
    const Marker now = card.record(world_->stream->cardStream());
    const auto exchange = world_->group->exchange(call_);
    end_ = card.exchange(stream_, exchange, exchange->uses(), std::span(&now, 1), exchange->info());
    started_ = true;
  }
  void wait() override {
    check();
    Runtime::get().card().synchronize(end_);
  }
  bool query() override {
    check();
    if (!Runtime::get().card().complete(end_)) return false;
    Runtime::get().card().synchronize(end_);  // throws what went wrong
    return true;
  }

 private:
  void check() const {
    if (!started_) throw Error("InvalidArgument", "the collective has not been started; call start() first");
  }

  std::shared_ptr<World> world_;
  Call call_;
  int stream_;
  bool started_ = false;
  Marker end_;
};

Elements elements(const Tensor& tensor, DataFormats format, int64_t bytes_each) {
  if (!tensor.address())
    throw Error("InvalidArgument", "a collective on a tensor without a device address (SetSpyreDeviceAddressBorrowed)");
  Elements made;
  const int64_t count = static_cast<int64_t>(tensor.address()->total_size()) / bytes_each;
  made.tensor.address = flex::internal::dmva(*tensor.address());
  made.tensor.format = static_cast<int>(format);
  made.tensor.device_size = made.size = {count};
  made.tensor.stride_map = made.tensor.host_stride = {1};
  return made;
}

class WorldContext final : public Context {
 public:
  explicit WorldContext(std::shared_ptr<World> world) : world_(std::move(world)) {}

  process_id_t getRank() const override { return world_->where.rank; }
  process_id_t getSize() const override { return world_->where.size; }

  std::shared_ptr<WorkSchedule> broadcast(Tensor& tensor, process_id_t root) override {
    Call call = moving(Collective::broadcast, tensor, root);
    (root == getRank() ? call.inputs : call.outputs) = {{bytes(tensor)}};
    return collective(std::move(call));
  }

  std::shared_ptr<WorkSchedule> allreduce(Tensor& tensor, SpyreReductionOpType op) override {
    Call call = summing(Collective::all_reduce, tensor, op, 0);
    call.outputs = call.inputs;
    return collective(std::move(call));
  }

  std::shared_ptr<WorkSchedule> reduce(Tensor& tensor, SpyreReductionOpType op, process_id_t root) override {
    Call call = summing(Collective::reduce, tensor, op, root);
    if (root == getRank()) call.outputs = call.inputs;
    return collective(std::move(call));
  }

  std::shared_ptr<WorkSchedule> allgather(std::vector<Tensor>& outputs, Tensor& input) override {
    Call call = moving(Collective::all_gather, input, 0);
    call.inputs = {{bytes(input)}};
    take_all(call, outputs, "allgather");
    return collective(std::move(call));
  }

  std::shared_ptr<WorkSchedule> gather(std::vector<Tensor>& outputs, Tensor& input, process_id_t root) override {
    Call call = moving(Collective::gather, input, root);
    call.inputs = {{bytes(input)}};
    if (root == getRank()) take_all(call, outputs, "gather");
    return collective(std::move(call));
  }

  std::shared_ptr<WorkSchedule> barrier() override {
    Call call;
    call.kind = Collective::barrier;
    return collective(std::move(call));
  }

  std::shared_ptr<WorkSchedule> send(Tensor& tensor, process_id_t rank, int tag) override {
    Call call = message(Collective::send, tensor, rank, tag);
    call.inputs = {{bytes(tensor)}};
    return queued(std::move(call), kFirstSend + rank % kWays);
  }

  std::shared_ptr<WorkSchedule> recv(Tensor& tensor, process_id_t rank, int tag) override {
    Call call = message(Collective::receive, tensor, rank, tag);
    call.outputs = {{bytes(tensor)}};
    return queued(std::move(call), kFirstReceive + rank % kWays);
  }

 private:
  static Elements bytes(const Tensor& tensor) { return elements(tensor, DataFormats::SENINT8, 1); }

  void check_rank(process_id_t rank, const char* what) const {
    if (rank < 0 || rank >= getSize())
      throw Error("InvalidArgument",
                  std::string(what) + ": rank " + std::to_string(rank) + " of " + std::to_string(getSize()));
  }

  Call moving(Collective kind, const Tensor& tensor, process_id_t root) const {
    check_rank(root, spyre::card::name_of(kind));
    Call call;
    call.kind = kind;
    call.root = root;
    call.format = static_cast<int>(DataFormats::SENINT8);
    call.dtype = static_cast<int>(tensor.info().type());
    call.meaning = spyre::card::Meaning::bytes;
    call.text = tensor.address() ? std::to_string(tensor.address()->total_size()) + " bytes" : "";
    return call;
  }

  Call summing(Collective kind, const Tensor& tensor, SpyreReductionOpType op, process_id_t root) const {
    const TensorDataTypeEnum type = tensor.info().type();
    if (op != SpyreReductionOpType::SUM)
      throw Error("UnsupportedOp", std::string(spyre::card::name_of(kind)) + ": only SUM is there");
    if (type != TensorDataTypeEnum::float16 && type != TensorDataTypeEnum::sen_fp16)
      throw Error("UnsupportedOp", std::string(spyre::card::name_of(kind)) + ": sums of float16 only");
    Call call = moving(kind, tensor, root);
    call.format = static_cast<int>(DataFormats::SEN169_FP16);
    call.meaning = spyre::card::Meaning::numbers;
    call.inputs = {{elements(tensor, DataFormats::SEN169_FP16, 2)}};
    return call;
  }

  Call message(Collective kind, const Tensor& tensor, process_id_t rank, int tag) const {
    Call call = moving(kind, tensor, rank);
    if (rank == getRank())
      throw Error("InvalidArgument", std::string(spyre::card::name_of(kind)) + ": rank " + std::to_string(rank) +
                                         " is this rank; copy the tensor");
    call.tag = tag;
    return call;
  }

  void take_all(Call& call, const std::vector<Tensor>& outputs, const char* what) const {
    if (outputs.size() != static_cast<size_t>(getSize()))
      throw Error("InvalidArgument", std::string(what) + ": " + std::to_string(outputs.size()) + " outputs for " +
                                         std::to_string(getSize()) + " ranks");
    for (const Tensor& output : outputs) call.outputs.push_back({bytes(output)});
  }

  std::shared_ptr<WorkSchedule> collective(Call call) const { return queued(std::move(call), kCollectiveStream); }
  std::shared_ptr<WorkSchedule> queued(Call call, int stream) const {
    return std::make_shared<Schedule>(world_, std::move(call), stream);
  }

  std::shared_ptr<World> world_;
};

std::mutex mutex;
// Not destroyed at exit: the card, which may still move something, is not either.
std::shared_ptr<World>& current() {
  static auto* world = new std::shared_ptr<World>;
  return *world;
}

/// Shared memory with ranks that see each other's, TCP with the others.
void connect(World& world) {
  const internal::World& where = world.where;
  internal::Socket listener;
  if (where.several_hosts() || where.tcp_within) listener = internal::listen_at(0, "the system");
  const internal::Place own = internal::place_here(where, world.group->address(), listener ? listener.port() : 0);
  const std::vector<internal::Place> places = internal::meet(where, own);
  auto calls = internal::connect_all(where, places, listener);
  for (int peer = 0; peer < where.size; ++peer) {
    if (peer == where.rank) continue;
    const auto call = calls.find(peer);
    if (call == calls.end())
      world.group->connect(peer, places[static_cast<size_t>(peer)].mailbox);
    else
      world.group->connect(peer, internal::tcp_link(peer, std::move(call->second), world.group->bell()));
  }
}

std::shared_ptr<World> set_up(flex::RuntimeStream* stream) {
  auto world = std::make_shared<World>();
  world->where = internal::read_world();
  world->stream = stream;
  spyre::card::GroupOptions options;
  options.rank = world->where.rank;
  options.size = world->where.size;
  options.name = world->where.name;
  options.world_ranks.resize(static_cast<size_t>(options.size));
  std::iota(options.world_ranks.begin(), options.world_ranks.end(), 0);
  options.timeout = world->where.timeout;
  options.costs = internal::costs(options.size);
  options.may_spin = static_cast<int>(std::thread::hardware_concurrency()) >= world->where.local_size;
  world->group = LinkGroup::make(options);
  if (options.size > 1) connect(*world);
  return world;
}

}  // namespace

void initialize_library(std::shared_ptr<flex::RuntimeContext> context, flex::RuntimeStream* stream) {
  if (!context || !stream) throw Error("InvalidArgument", "initialize_library: no context or no stream");
  std::lock_guard lock(mutex);
  if (current()) return;
  std::shared_ptr<World> world = set_up(stream);
  // Nobody may go before all have opened its mailbox.
  WorldContext all(world);
  const auto together = all.barrier();
  together->start();
  together->wait();
  if (world->where.size > 1) internal::leave(world->where);
  current() = world;
}

void finalize_library() {
  std::lock_guard lock(mutex);
  std::shared_ptr<World> world = std::move(current());
  current().reset();
  if (!world) return;
  spyre::card::Card& card = Runtime::get().card();
  for (int stream = kCollectiveStream; stream < spyre::card::kAllStreams; ++stream) try {
      card.synchronize(card.record(stream));
    } catch (const Error&) {
      // What failed has been, or will be, told to who waits for it.
    }
  world->group->abort("its process called finalize_library()");
  card.forgive_exchanges();
}

std::shared_ptr<Context> get_world_context() {
  std::lock_guard lock(mutex);
  if (!current()) return nullptr;
  return std::make_shared<WorldContext>(current());
}

}  // namespace spyre_comms
