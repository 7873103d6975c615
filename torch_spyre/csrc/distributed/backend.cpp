// SPDX-License-Identifier: Apache-2.0
// The c10d backend: turns calls on tensors into calls of a LinkGroup on card memory, and queues them.
#include "backend.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <tuple>

#include "aten/device.h"
#include "aten/errors.h"
#include "aten/profiler.h"
#include "aten/recording.h"
#include "aten/storage.h"
#include "work.h"

namespace spyre {
namespace {

using card::Call;
using card::Collective;
using card::Elements;
using Pieces = std::vector<std::vector<Elements>>;
using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

card::Combine combine_of(const c10d::ReduceOp& op) {
  using R = c10d::ReduceOp;
  switch (op.op_) {
    case R::SUM:
      return card::Combine::sum;
    case R::AVG:
      return card::Combine::average;
    case R::PRODUCT:
      return card::Combine::product;
    case R::MIN:
      return card::Combine::min;
    case R::MAX:
      return card::Combine::max;
    case R::BAND:
      return card::Combine::bit_and;
    case R::BOR:
      return card::Combine::bit_or;
    case R::BXOR:
      return card::Combine::bit_xor;
    default:
      raise("UnsupportedOp", "spyreccl has no PREMUL_SUM; multiply the tensor, then reduce it with SUM");
  }
}

const at::Tensor& checked(const at::Tensor& t) {
  if (!t.is_privateuseone())
    raise("InvalidArgument",
          c10::str("spyreccl moves tensors of device spyre, but got one on ", t.device(),
                   "; copy it to the card, or make the group with backend 'cpu:gloo,spyre:spyreccl'"));
  if (t.layout() != c10::kStrided)
    raise("UnsupportedOp",
          c10::str("spyreccl moves dense tensors, but got one with layout ", t.layout(), "; call to_dense() first"));
  return t;
}

Elements elements_of(const at::Tensor& t) {
  const auto& r = record_of(checked(t));
  if (auto* recording = Recording::active()) recording->hold(t);
  Elements e;
  e.tensor.address = r.address;
  e.tensor.format = static_cast<int>(r.layout->device_dtype);
  e.tensor.device_size = r.layout->device_size;
  e.tensor.stride_map = r.layout->stride_map;
  e.tensor.host_offset = t.storage_offset();
  e.tensor.host_stride = t.strides().vec();
  e.size = t.sizes().vec();
  return e;
}

std::vector<Elements> piece(const at::Tensor& t) { return {elements_of(t)}; }

Pieces one_each(const Tensors& tensors) {
  Pieces pieces;
  for (const at::Tensor& t : tensors) pieces.push_back(piece(t));
  return pieces;
}

/// Part i of n equal ones of a tensor that holds one after another.
at::Tensor part_of(const at::Tensor& whole, const at::Tensor& like, int64_t i) {
  const bool rows = like.numel() > 0 && whole.dim() == like.dim() && whole.dim() > 0 &&
                    whole.size(0) % like.size(0) == 0 && whole.sizes().slice(1) == like.sizes().slice(1);
  if (rows) return whole.narrow(0, i * like.size(0), like.size(0));
  return whole.reshape({-1}).narrow(0, i * like.numel(), like.numel());
}

Tensors parts_of(const at::Tensor& whole, const at::Tensor& like, int n, const char* call) {
  if (whole.numel() != like.numel() * n)
    raise("InvalidArgument", c10::str(call, ": a tensor of ", whole.numel(), " elements does not hold one part of ",
                                      like.numel(), " for each of ", n, " ranks"));
  if (!whole.is_contiguous())
    raise("InvalidArgument",
          c10::str(call, " needs a contiguous tensor for the parts of all ranks; call contiguous()"));
  Tensors parts;
  for (int i = 0; i < n; ++i) parts.push_back(part_of(whole, like, i));
  return parts;
}

card::Meaning meaning_of(c10::ScalarType dtype) {
  if (dtype == at::kBool) return card::Meaning::booleans;
  return dtype == at::kByte ? card::Meaning::bytes : card::Meaning::numbers;
}

void check_same_dtype(const Tensors& tensors, const char* call) {
  for (const at::Tensor& t : tensors) {
    checked(t);
    if (t.scalar_type() != tensors[0].scalar_type() || t.device() != tensors[0].device())
      raise("InvalidArgument", c10::str(call, " got tensors of ", tensors[0].scalar_type(), " on ", tensors[0].device(),
                                        " and ", t.scalar_type(), " on ", t.device(), "; they must agree"));
  }
}

/// What people see of a call in errors and profiles.
std::string text_of(const Tensors& tensors) {
  if (tensors.empty()) return "";
  std::string text = c10::str(tensors[0].scalar_type(), " ", tensors[0].sizes());
  if (tensors.size() > 1) text += c10::str(" and ", tensors.size() - 1, " more");
  return text;
}

/// A class of its own, so that Python can copy it.
struct SpyreOptions final : c10d::Backend::Options {
  using Options::Options;
};

/// A call in full, but for the addresses, which it adds to the list.
std::string recorded_text(const Call& call, int stream, std::vector<uint64_t>& addresses) {
  std::string text = c10::str(card::name_of(call.kind), " ", card::name_of(call.combine), " ", call.root, " ", call.tag,
                              " ", call.dtype, " on ", stream);
  for (const auto* pieces : {&call.inputs, &call.outputs}) {
    for (const auto& piece : *pieces) {
      text += ";";
      for (const Elements& e : piece) {
        addresses.push_back(e.tensor.address);
        text += c10::str(" ", e.tensor.format, e.tensor.device_size, e.tensor.stride_map, e.tensor.host_offset, "+",
                         e.tensor.host_stride, e.size);
      }
    }
  }
  return text;
}

struct Started {
  std::shared_ptr<card::GroupExchange> exchange;
  card::Marker marker;
};

/// Queues the exchange behind what the current stream has to do.
Started start(card::LinkGroup& group, const Call& call, c10::DeviceIndex device, int stream) {
  const std::string name = card::name_of(call.kind);
  const profiler::Call profiled(&name);
  auto& card = card_of(device);
  return on_card([&] {
    const card::Marker now = card.record(current_stream_id(device));
    auto exchange = group.exchange(call);
    const auto marker = card.exchange(stream, exchange, exchange->uses(), std::span(&now, 1), exchange->info());
    return Started{std::move(exchange), marker};
  });
}

/// For a recording that is active: how to make the exchange again.
std::shared_ptr<Recorded> record(const std::shared_ptr<card::LinkGroup>& group, const Call& call,
                                 c10::DeviceIndex device, int stream) {
  auto* recording = Recording::active();
  if (!recording) return nullptr;
  std::vector<uint64_t> addresses;
  auto text = recorded_text(call, stream, addresses);
  auto recorded = std::make_shared<Recorded>(Recorded{recording->id(), recording->begun(), {}});
  recording->did(device, std::move(text), addresses, [group, call, device, stream, recorded] {
    recorded->marker = start(*group, call, device, stream).marker;
  });
  return recorded;
}

class SpyreBackend final : public c10d::Backend {
 public:
  SpyreBackend(std::shared_ptr<card::LinkGroup> group, c10::intrusive_ptr<Options> options)
      : c10d::Backend(group->options().rank, group->options().size),
        group_(std::move(group)),
        options_(std::move(options)) {}
  ~SpyreBackend() override = default;

  const std::string getBackendName() const override { return "spyreccl"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  bool supportsCoalescing() const override { return true; }
  bool supportsSplitting() const override { return true; }
  /// The ranks `ranks` of this group as a group of their own; null on the others.
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& o) override {
    const auto at = std::find(ranks.begin(), ranks.end(), rank_);
    if (at == ranks.end()) return nullptr;
    std::vector<int> world_ranks;
    for (const int r : ranks) world_ranks.push_back(group_->options().world_ranks.at(static_cast<size_t>(r)));
    const pybind11::gil_scoped_acquire gil;
    const auto create = pybind11::module_::import("torch_spyre.distributed.groups").attr("create");
    const double timeout_s = std::chrono::duration<double>(o->timeout).count();
    return create(store, at - ranks.begin(), ranks.size(), timeout_s, o->group_name, world_ranks)
        .cast<c10::intrusive_ptr<Backend>>();
  }
  void setTimeout(std::chrono::milliseconds timeout) override {
    options_->timeout = timeout;
    group_->set_timeout(timeout);
  }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return group_->traffic().collectives; }
  c10d::ErrorType getError() override { return c10d::ErrorType::SUCCESS; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& o) override {
    return all_reduce(tensors, o, c10d::OpType::ALLREDUCE);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& o) override {
    return all_reduce(tensors, o, c10d::OpType::ALLREDUCE_COALESCED);
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& o) override {
    auto call = call_of(Collective::reduce, tensors, o.timeout, o.rootRank);
    call.combine = combine_of(o.reduceOp);
    call.inputs = one_each(tensors);
    if (o.rootRank == rank_) call.outputs = one_each(tensors);
    return run(call, tensors, tensors, c10d::OpType::REDUCE);
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& o) override {
    auto call = call_of(Collective::broadcast, tensors, o.timeout, o.rootRank);
    (o.rootRank == rank_ ? call.inputs : call.outputs) = {all_of(tensors)};
    return run(call, tensors, tensors, c10d::OpType::BROADCAST);
  }

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& o) override {
    check_lists(outputs, inputs.size(), "all_gather");
    auto call = call_of(Collective::all_gather, inputs, o.timeout);
    call.inputs = {all_of(inputs)};
    call.outputs = by_rank(outputs);
    return run(call, inputs, flattened(outputs), c10d::OpType::ALLGATHER);
  }
  /// Unlike allgather's lists, those of this call are outputs[rank][tensor].
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& o) override {
    bool fits = outputs.size() == static_cast<size_t>(size_);
    for (const Tensors& list : outputs) fits = fits && list.size() == inputs.size();
    if (!fits)
      raise("InvalidArgument", c10::str("all_gather_coalesced takes a list for each of ", size_, " ranks, each with ",
                                        inputs.size(), " tensors, as many as it is given"));
    auto call = call_of(Collective::all_gather, inputs, o.timeout);
    call.inputs = {all_of(inputs)};
    for (const Tensors& list : outputs) call.outputs.push_back(all_of(list));
    return run(call, inputs, flattened(outputs), c10d::OpType::ALLGATHER_COALESCED);
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& o) override {
    Tensors outputs{output}, inputs{input};
    return gather_into(outputs, inputs, o.timeout, c10d::OpType::_ALLGATHER_BASE);
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& o) override {
    return gather_into(outputs, inputs, o.timeout, c10d::OpType::ALLGATHER_COALESCED);
  }

  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& o) override {
    auto call = call_of(Collective::gather, inputs, o.timeout, o.rootRank);
    call.inputs = {all_of(inputs)};
    if (o.rootRank == rank_) {
      check_lists(outputs, inputs.size(), "gather");
      call.outputs = by_rank(outputs);
    }
    return run(call, inputs, flattened(outputs), c10d::OpType::GATHER);
  }

  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& o) override {
    auto call = call_of(Collective::scatter, outputs, o.timeout, o.rootRank);
    if (o.rootRank == rank_) {
      check_lists(inputs, outputs.size(), "scatter");
      call.inputs = by_rank(inputs);
    }
    call.outputs = {all_of(outputs)};
    return run(call, outputs, outputs, c10d::OpType::SCATTER);
  }

  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& o) override {
    check_lists(inputs, outputs.size(), "reduce_scatter");
    auto call = call_of(Collective::reduce_scatter, outputs, o.timeout);
    call.combine = combine_of(o.reduceOp);
    call.inputs = by_rank(inputs);
    call.outputs = {all_of(outputs)};
    return run(call, outputs, outputs, c10d::OpType::REDUCE_SCATTER);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& o) override {
    Tensors outputs{output}, inputs{input};
    return scatter_from(outputs, inputs, o, c10d::OpType::_REDUCE_SCATTER_BASE);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& o) override {
    return scatter_from(outputs, inputs, o, c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED);
  }

  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& o) override {
    if (inputs.size() != static_cast<size_t>(size_) || outputs.size() != inputs.size())
      raise("InvalidArgument", c10::str("all_to_all takes one input and one output for each of ", size_, " ranks, got ",
                                        inputs.size(), " and ", outputs.size()));
    check_same_dtype(outputs, "all_to_all");
    auto call = call_of(Collective::all_to_all, inputs, o.timeout);
    call.inputs = one_each(inputs);
    call.outputs = one_each(outputs);
    return run(call, inputs, outputs, c10d::OpType::ALLTOALL);
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& o) override {
    auto call = call_of(Collective::all_to_all, {input}, o.timeout);
    const auto to = rows_of(output, output_splits, "output"), from = rows_of(input, input_splits, "input");
    call.inputs = one_each(from);
    call.outputs = one_each(to);
    return run(call, {input}, {output}, c10d::OpType::ALLTOALL_BASE);
  }

  WorkPtr send(Tensors& tensors, int peer, int tag) override {
    return message(Collective::send, tensors, peer, tag, c10d::OpType::SEND);
  }
  WorkPtr recv(Tensors& tensors, int peer, int tag) override {
    return message(Collective::receive, tensors, peer, tag, c10d::OpType::RECV);
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return message(Collective::receive, tensors, -1, tag, c10d::OpType::RECVANYSOURCE);
  }

  /// Returns work that stops the host: who passes a barrier knows that all have come.
  WorkPtr barrier(const c10d::BarrierOptions& o) override {
    auto call = call_of(Collective::barrier, {}, o.timeout);
    const auto device = o.device && o.device->is_privateuseone() ? resolve_device(o.device->index()) : current_device();
    return submit(call, device, collective_stream(device), {}, c10d::OpType::BARRIER, true);
  }

  void startCoalescing() override {
    std::lock_guard lock(mutex_);
    coalescing_ = true;
    coalesced_.clear();
    coalesced_outputs_.clear();
  }
  WorkPtr endCoalescing() override {
    std::lock_guard lock(mutex_);
    coalescing_ = false;
    return c10::make_intrusive<SpyreWork>(rank_, c10d::OpType::COALESCED, std::move(coalesced_),
                                          std::move(coalesced_outputs_), false, nullptr);
  }

  void abort() override { leave("its process called abort()"); }
  void shutdown() override {
    try {
      for (const auto& [device, stream] : streams()) card_of(device).synchronize(card_of(device).record(stream));
    } catch (const card::Error&) {
      // What failed has been, or will be, told to who waits for it.
    }
    leave("its process called destroy_process_group()");
  }

  const card::LinkGroup& group() const { return *group_; }

 private:
  Call call_of(Collective kind, const Tensors& tensors, std::chrono::milliseconds timeout, int64_t root = 0) const {
    Call call;
    call.kind = kind;
    call.root = static_cast<int>(root);
    if (timeout.count() > 0) call.timeout = timeout;
    call.text = text_of(tensors);
    if (tensors.empty()) return call;
    check_same_dtype(tensors, card::name_of(kind));
    call.dtype = static_cast<int>(tensors[0].scalar_type());
    call.format = static_cast<int>(record_of(tensors[0]).layout->device_dtype);
    call.meaning = meaning_of(tensors[0].scalar_type());
    call.timing_only = card_of(tensors[0].device().index()).timing_only();
    return call;
  }

  static std::vector<Elements> all_of(const Tensors& tensors) {
    std::vector<Elements> elements;
    for (const at::Tensor& t : tensors) elements.push_back(elements_of(t));
    return elements;
  }

  static Tensors flattened(const std::vector<Tensors>& lists) {
    Tensors all;
    for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
    return all;
  }

  void check_lists(const std::vector<Tensors>& lists, size_t n, const char* call) const {
    if (lists.size() != n || n != 1 || lists[0].size() != static_cast<size_t>(size_))
      raise("InvalidArgument", c10::str(call, " takes one tensor and a list with one for each of ", size_,
                                        " ranks, got ", n, " and ", lists.empty() ? 0 : lists[0].size()));
    check_same_dtype(lists[0], call);
  }
  /// lists[0][rank]
  Pieces by_rank(const std::vector<Tensors>& lists) const { return one_each(lists[0]); }
  /// lists[tensor][rank], all tensors of a rank in one piece.
  Pieces one_per_rank(const std::vector<Tensors>& lists) const {
    Pieces pieces(static_cast<size_t>(size_));
    for (const Tensors& list : lists)
      for (size_t r = 0; r < pieces.size(); ++r) pieces[r].push_back(elements_of(list.at(r)));
    return pieces;
  }

  Tensors rows_of(const at::Tensor& t, const std::vector<int64_t>& splits, const char* which) const {
    checked(t);
    const int64_t rows = t.dim() ? t.size(0) : 1;
    if (splits.empty() && rows % size_)
      raise("InvalidArgument", c10::str("all_to_all: the ", which, " has ", rows, " rows, which ", size_,
                                        " ranks do not share evenly; give split sizes"));
    if (!splits.empty() && (splits.size() != static_cast<size_t>(size_) ||
                            std::accumulate(splits.begin(), splits.end(), int64_t{0}) != rows))
      raise("InvalidArgument", c10::str("all_to_all: split sizes ", c10::IntArrayRef(splits), " of the ", which,
                                        " must be one for each of ", size_, " ranks and sum up to ", rows));
    Tensors parts;
    int64_t at = 0;
    for (int r = 0; r < size_; ++r) {
      const int64_t n = splits.empty() ? rows / size_ : splits[static_cast<size_t>(r)];
      parts.push_back(t.narrow(0, at, n));
      at += n;
    }
    return parts;
  }

  WorkPtr all_reduce(Tensors& tensors, const c10d::AllreduceOptions& o, c10d::OpType type) {
    auto call = call_of(Collective::all_reduce, tensors, o.timeout);
    call.combine = combine_of(o.reduceOp);
    call.inputs = {all_of(tensors)};
    call.outputs = call.inputs;
    return run(call, tensors, tensors, type);
  }

  WorkPtr gather_into(const Tensors& outputs, const Tensors& inputs, std::chrono::milliseconds timeout,
                      c10d::OpType type) {
    auto call = call_of(Collective::all_gather, inputs, timeout);
    check_same_dtype(outputs, "all_gather_into_tensor");
    std::vector<Tensors> lists;
    for (size_t i = 0; i < inputs.size(); ++i)
      lists.push_back(parts_of(outputs.at(i), inputs[i], size_, "all_gather_into_tensor"));
    call.inputs = {all_of(inputs)};
    call.outputs = one_per_rank(lists);
    return run(call, inputs, outputs, type);
  }

  WorkPtr scatter_from(const Tensors& outputs, const Tensors& inputs, const c10d::ReduceScatterOptions& o,
                       c10d::OpType type) {
    auto call = call_of(Collective::reduce_scatter, outputs, o.timeout);
    check_same_dtype(inputs, "reduce_scatter_tensor");
    call.combine = combine_of(o.reduceOp);
    std::vector<Tensors> lists;
    for (size_t i = 0; i < inputs.size(); ++i)
      lists.push_back(parts_of(inputs[i], outputs.at(i), size_, "reduce_scatter_tensor"));
    call.inputs = one_per_rank(lists);
    call.outputs = {all_of(outputs)};
    return run(call, outputs, outputs, type);
  }

  WorkPtr message(Collective kind, Tensors& tensors, int peer, int tag, c10d::OpType type) {
    if (tensors.size() != 1)
      raise("InvalidArgument", c10::str(card::name_of(kind), " takes one tensor, got ", tensors.size()));
    if (peer == rank_)
      raise("InvalidArgument", c10::str(card::name_of(kind), ": rank ", rank_, " is this rank; copy the tensor"));
    auto call = call_of(kind, tensors, std::chrono::milliseconds(0), peer);
    call.tag = tag;
    const bool sends = kind == Collective::send;
    if (!sends) at::assert_no_internal_overlap(tensors[0]);
    (sends ? call.inputs : call.outputs) = one_each(tensors);
    const auto device = tensors[0].device().index();
    return submit(call, device, message_stream(device, peer, sends), tensors, type, peer < 0);
  }

  WorkPtr run(const Call& call, const Tensors& tensors, const Tensors& outputs, c10d::OpType type) {
    const auto device = tensors.at(0).device().index();
    for (const at::Tensor& t : outputs)
      if (!call.outputs.empty()) at::assert_no_internal_overlap(t);
    return submit(call, device, collective_stream(device), outputs, type, false);
  }

  WorkPtr submit(const Call& call, c10::DeviceIndex device, int stream, const Tensors& outputs, c10d::OpType type,
                 bool blocks_host) {
    auto [exchange, marker] = start(*group_, call, device, stream);
    const Point point{device, marker, record(group_, call, device, stream)};
    std::lock_guard lock(mutex_);
    if (coalescing_) {
      coalesced_.push_back(point);
      coalesced_outputs_.insert(coalesced_outputs_.end(), outputs.begin(), outputs.end());
    }
    return c10::make_intrusive<SpyreWork>(rank_, type, std::vector<Point>{point}, outputs, blocks_host,
                                          std::move(exchange));
  }

  int collective_stream(c10::DeviceIndex device) { return stream_for({device, -1, false}); }
  int message_stream(c10::DeviceIndex device, int peer, bool sends) { return stream_for({device, peer + 1, sends}); }

  /// Collectives of a group follow each other; messages wait for nothing but those to, or from, the same peer.
  using Way = std::tuple<c10::DeviceIndex, int, bool>;
  int stream_for(const Way& way) {
    std::lock_guard lock(mutex_);
    auto& stream = streams_.try_emplace(way, -1).first->second;
    if (stream < 0) stream = static_cast<int>(link_stream(std::get<0>(way)).id());
    return stream;
  }
  std::vector<std::pair<c10::DeviceIndex, int>> streams() {
    std::lock_guard lock(mutex_);
    std::vector<std::pair<c10::DeviceIndex, int>> all;
    for (const auto& [way, stream] : streams_) all.emplace_back(std::get<0>(way), stream);
    return all;
  }

  void leave(const std::string& reason) {
    group_->abort(reason);
    for (const auto& [device, stream] : streams()) {
      try {
        card_of(device).synchronize(card_of(device).record(stream));
      } catch (const card::Error&) {
        // Ended by the line above.
      }
      card_of(device).forgive_exchanges();
    }
    group_->close();
  }

  std::shared_ptr<card::LinkGroup> group_;
  c10::intrusive_ptr<Options> options_;
  std::mutex mutex_;
  std::map<Way, int> streams_;
  bool coalescing_ = false;
  std::vector<Point> coalesced_;
  Tensors coalesced_outputs_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_backend(std::shared_ptr<card::LinkGroup> group,
                                               std::chrono::milliseconds timeout) {
  auto options = c10::make_intrusive<SpyreOptions>("spyreccl", timeout);
  options->group_name = group->options().name;
  return c10::make_intrusive<SpyreBackend>(std::move(group), std::move(options));
}

void bind_backend(pybind11::module_& m) {
  namespace py = pybind11;
  py::class_<SpyreOptions, c10d::Backend::Options, c10::intrusive_ptr<SpyreOptions>>(m, "SpyreOptions")
      .def("__deepcopy__", [](const SpyreOptions& o, const py::dict&) { return c10::make_intrusive<SpyreOptions>(o); });
  py::class_<SpyreBackend, c10d::Backend, c10::intrusive_ptr<SpyreBackend>>(m, "SpyreBackend")
      .def_property_readonly("options",
                             [](SpyreBackend& backend) {
                               py::module_::import("torch_spyre.distributed.groups").attr("prepare_split")();
                               return backend.getBackendOptions();
                             })
      .def(
          "perform_nocolor_split", [](const SpyreBackend&, const py::object&) {}, py::arg("device"),
          "What ranks outside a new group do where a group is made from one that exists: nothing.");
}

}  // namespace spyre
