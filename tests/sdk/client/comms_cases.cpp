// SPDX-License-Identifier: Apache-2.0
// Collectives: every rank is a process that runs the same case.
#include <csignal>

#include "check.h"
#include "comms/costs.h"
#include "flex/runtime.h"
#include "spyre_comms.hpp"

using spyre_comms::SpyreReductionOpType;
using spyre_comms::Tensor;
using spyre_comms::TensorDataTypeEnum;

namespace {

constexpr size_t kBytes = 1 << 18;

struct Buffer {
  Buffer(flex::RuntimeContext& context, double value, TensorDataTypeEnum type = TensorDataTypeEnum::float16)
      : stream(context.getDefaultStream()),
        memory(context.getAllocator()->allocate(kBytes, tensor_memory())),
        tensor(spyre_comms::TensorInfo(type, spyre_comms::TensorShape({3, 5})), this) {
    stream->fillAsync(&memory, value, DataFormats::SEN169_FP16, true);
    tensor.SetSpyreDeviceAddressBorrowed(&memory);
  }
  void check(double value) {
    flex::CompositeAddress& m = memory;
    std::vector<uint16_t> got(kBytes / 2), want(1);
    transfer(stream, got.data(), kBytes, false, m);
    stream->fillAsync(&m, value, DataFormats::SEN169_FP16, true);
    transfer(stream, want.data(), 2, false, m);
    for (uint16_t code : got) CHECK(code == want[0]);
  }
  flex::RuntimeStream* stream;
  flex::CompositeAddress memory;
  Tensor tensor;
};

void run(std::shared_ptr<spyre_comms::WorkSchedule> work) {
  THROWS("not been started", work->wait());
  work->start();
  work->wait();
  CHECK(work->query());
}

}  // namespace

CASE(collectives) {
  auto context = start();
  CHECK(!spyre_comms::get_world_context());
  spyre_comms::initialize_library(context, context->getDefaultStream());
  auto world = spyre_comms::get_world_context();
  const int rank = world->getRank(), size = world->getSize();
  CHECK(size == std::stoi(arguments.at(0)));

  Buffer sum(*context, rank + 1);
  run(world->allreduce(sum.tensor, SpyreReductionOpType::SUM));
  sum.check(size * (size + 1) / 2);
  Buffer reduced(*context, rank + 1);
  run(world->reduce(reduced.tensor, SpyreReductionOpType::SUM, size - 1));
  reduced.check(rank == size - 1 ? size * (size + 1) / 2 : rank + 1);
  Buffer sent(*context, rank == 0 ? 7 : 0, TensorDataTypeEnum::int64);
  run(world->broadcast(sent.tensor, 0));
  sent.check(7);

  Buffer own(*context, 10 + rank);
  std::vector<Buffer> all;
  for (int i = 0; i < size; ++i) all.emplace_back(*context, 0);
  std::vector<Tensor> outputs;
  for (Buffer& buffer : all) {
    buffer.tensor.SetSpyreDeviceAddressBorrowed(&buffer.memory);
    outputs.push_back(buffer.tensor);
  }
  run(world->allgather(outputs, own.tensor));
  for (int i = 0; i < size; ++i) all[static_cast<size_t>(i)].check(10 + i);
  for (Buffer& buffer : all) buffer.stream->fillAsync(&buffer.memory, 0, DataFormats::SEN169_FP16, true);
  std::vector<Tensor> none;
  run(world->gather(rank == 0 ? outputs : none, own.tensor, 0));
  for (int i = 0; i < size; ++i) all[static_cast<size_t>(i)].check(rank == 0 ? 10 + i : 0);
  run(world->barrier());

  // Everybody sends before anybody receives.
  if (size > 1) {
    Buffer outgoing(*context, 100 + rank), incoming(*context, 0);
    auto send = world->send(outgoing.tensor, (rank + 1) % size, 5);
    auto receive = world->recv(incoming.tensor, (rank + size - 1) % size, 5);
    send->start();
    receive->start();
    send->wait();
    receive->wait();
    incoming.check(100 + (rank + size - 1) % size);
  }
  THROWS("only SUM", world->allreduce(sum.tensor, SpyreReductionOpType::UNSUPPORTED));
  THROWS("InvalidArgument", world->broadcast(sum.tensor, size));
  THROWS("this rank", world->send(sum.tensor, rank, 0));
  THROWS("InvalidArgument", world->allgather(none, own.tensor));
  Tensor nowhere;
  THROWS("without a device address", world->broadcast(nowhere, 0));
  Buffer wide(*context, 1, TensorDataTypeEnum::float32);
  THROWS("float16 only", world->allreduce(wide.tensor, SpyreReductionOpType::SUM));

  spyre_comms::finalize_library();
  CHECK(!spyre_comms::get_world_context());
  // Set up again in the same process.
  spyre_comms::initialize_library(context, context->getDefaultStream());
  Buffer again(*context, 1);
  run(spyre_comms::get_world_context()->allreduce(again.tensor, SpyreReductionOpType::SUM));
  again.check(size);
  spyre_comms::finalize_library();
  CHECK(!context->hasStreamError());
}

// The card's clock moves by what the description says of a collective, on all ranks.
CASE(collective_time) {
  auto context = start();
  spyre_comms::initialize_library(context, context->getDefaultStream());
  auto world = spyre_comms::get_world_context();
  spyre::card::Card& card = flex::internal::Runtime::get().card();
  const auto costs = spyre_comms::internal::costs(world->getSize());
  const auto& cost = costs[static_cast<size_t>(spyre::card::Collective::all_reduce)];
  CHECK(cost.start_ns > 0 && cost.ns_per_byte > 0);
  Buffer sum(*context, 1);
  run(world->barrier());
  const uint64_t before = card.clock_ns();
  run(world->allreduce(sum.tensor, SpyreReductionOpType::SUM));
  const double took = static_cast<double>(card.clock_ns() - before), price = cost.start_ns + cost.ns_per_byte * kBytes;
  std::printf("%.0f %.0f\n", took, price);
  CHECK(took >= price - 2);
  run(world->barrier());
  spyre_comms::finalize_library();
}

// A peer that is killed is named; the rest can finalise.
CASE(killed_rank) {
  auto context = start();
  spyre_comms::initialize_library(context, context->getDefaultStream());
  auto world = spyre_comms::get_world_context();
  Buffer sum(*context, 1);
  run(world->allreduce(sum.tensor, SpyreReductionOpType::SUM));
  if (world->getRank() == 1) std::raise(SIGKILL);
  const auto more = [&] {
    auto work = world->allreduce(sum.tensor, SpyreReductionOpType::SUM);
    work->start();
    work->wait();
  };
  THROWS("rank 1", more());
  spyre_comms::finalize_library();
  Buffer own(*context, 3);
  own.check(3);
}

CASE(nobody_comes) {
  auto context = start();
  THROWS("did not come", spyre_comms::initialize_library(context, context->getDefaultStream()));
  CHECK(!spyre_comms::get_world_context());
}

CASE(wrong_world) {
  auto context = start();
  THROWS("InvalidArgument", spyre_comms::initialize_library(context, context->getDefaultStream()));
}
