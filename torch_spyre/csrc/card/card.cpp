// SPDX-License-Identifier: Apache-2.0
// One card: memory, cores and queue behind the public interface.
#include "spyre/card.h"

#include <atomic>
#include <cstring>
#include <mutex>

#include "dma.h"
#include "exec.h"
#include "memory.h"
#include "program.h"
#include "queue.h"

namespace spyre::card {
namespace {

class CardImpl final : public Card {
 public:
  uint64_t allocate(uint64_t bytes) override { return memory_.allocate(bytes); }

  void free(uint64_t address) override { release(memory_.free(address)); }
  uint64_t allocated_bytes() const override { return memory_.allocated_bytes(); }
  uint64_t total_bytes() const override { return Memory::total_bytes(); }

  void dma_in(const HostTensor& src, const DeviceTensor& dst, bool blocking) override {
    DmaPlan plan = checked_plan(src, dst, true);
    if (plan.empty) return;
    commit(dst.address, plan.storage_bytes);
    transfer(plan, true, blocking);
  }

  void dma_out(const DeviceTensor& src, const HostTensor& dst, bool blocking) override {
    DmaPlan plan = checked_plan(dst, src, false);
    if (!plan.empty) transfer(plan, false, blocking);
  }

  void write(uint64_t address, std::span<const std::byte> bytes) override {
    memory_.check(address, bytes.size(), "write");
    commit(address, bytes.size());
    queue_.run_now([&] { std::memcpy(memory_.at(address), bytes.data(), bytes.size()); });
  }

  void read(uint64_t address, std::span<std::byte> bytes) override {
    memory_.check(address, bytes.size(), "read");
    queue_.run_now([&] { std::memcpy(bytes.data(), memory_.at(address), bytes.size()); });
  }

  void launch(std::shared_ptr<const Program> program, std::span<const Buffer> args,
              std::span<const Scalar> scalars) override;
  void synchronize() override { queue_.synchronize(); }
  bool idle() const override { return queue_.idle(); }
  void clear_error() override { queue_.clear_error(); }

  Counters counters() const override {
    std::lock_guard lock(counters_mutex_);
    return counters_;
  }

 private:
  class LaunchCommand;
  class DmaCommand;
  class ReleaseCommand;

  DmaPlan checked_plan(const HostTensor& host, const DeviceTensor& device, bool to_device) {
    DmaPlan plan = plan_dma(host, device, to_device);
    if (!plan.empty) memory_.check(plan.storage_address, plan.storage_bytes, to_device ? "dma_in" : "dma_out");
    return plan;
  }

  void transfer(const DmaPlan& plan, bool to_device, bool blocking);
  void run_transfer(const DmaPlan& plan, bool to_device) {
    run_dma(plan, to_device, memory_.at(0));
    std::lock_guard lock(counters_mutex_);
    (to_device ? counters_.dma_in_bytes : counters_.dma_out_bytes) += plan.bytes;
  }

  /// Accounts for a coming write; gives back freed pages if the host budget is reached.
  void commit(uint64_t address, uint64_t bytes) {
    if (memory_.commit(address, bytes)) return;
    release(memory_.reclaim());
    if (!memory_.commit(address, bytes)) memory_.throw_budget(bytes);
  }
  void release(std::vector<Range> ranges);

  void add(const Counters& c) {
    std::lock_guard lock(counters_mutex_);
    ++counters_.launches;
    counters_.instructions += c.instructions;
    counters_.memory_read_bytes += c.memory_read_bytes;
    counters_.memory_write_bytes += c.memory_write_bytes;
    counters_.lx_read_bytes += c.lx_read_bytes;
    counters_.lx_write_bytes += c.lx_write_bytes;
    counters_.ring_bytes += c.ring_bytes;
  }

  Memory memory_;
  Executor executor_;
  mutable std::mutex counters_mutex_;
  Counters counters_;
  Queue queue_;  // last: its worker uses everything above and must stop first
};

class CardImpl::LaunchCommand final : public Command {
 public:
  LaunchCommand(CardImpl& card, std::shared_ptr<const ProgramImpl> program, std::shared_ptr<const Proof> proof)
      : card_(card), program_(std::move(program)), proof_(std::move(proof)) {
    launch.image = &program_->image();
    launch.proof = proof_.get();
  }
  void run() override {
    card_.executor_.run(launch);
    card_.add(proof_->counters);
  }
  Launch launch;

 private:
  CardImpl& card_;
  std::shared_ptr<const ProgramImpl> program_;
  std::shared_ptr<const Proof> proof_;
};

class CardImpl::DmaCommand final : public Command {
 public:
  DmaCommand(CardImpl& card, const DmaPlan& plan, bool to_device) : card_(card), plan_(plan), to_device_(to_device) {}
  void run() override { card_.run_transfer(plan_, to_device_); }

 private:
  CardImpl& card_;
  DmaPlan plan_;
  bool to_device_;
};

class CardImpl::ReleaseCommand final : public Command {
 public:
  ReleaseCommand(const Memory& memory, std::vector<Range> ranges) : memory_(memory), ranges_(std::move(ranges)) {}
  void run() override {
    for (Range r : ranges_) memory_.release(r);
  }
  bool always() const override { return true; }

 private:
  const Memory& memory_;
  std::vector<Range> ranges_;
};

/// Queued work may still use the pages, so they go back in queue order.
void CardImpl::release(std::vector<Range> ranges) {
  if (!ranges.empty()) queue_.submit(std::make_unique<ReleaseCommand>(memory_, std::move(ranges)));
}

void CardImpl::transfer(const DmaPlan& plan, bool to_device, bool blocking) {
  if (blocking)
    queue_.run_now([&] { run_transfer(plan, to_device); });
  else
    queue_.submit(std::make_unique<DmaCommand>(*this, plan, to_device));
}

void check_argument(const Image& image, size_t a, const Buffer& buffer) {
  if (buffer.bytes < image.args[a].bytes)
    throw Error("InvalidArgument", "launch: argument " + std::to_string(a) + " has " + std::to_string(buffer.bytes) +
                                       " bytes, the program touches " + std::to_string(image.args[a].bytes));
  if (buffer.address % kStickBytes)
    throw Error("InvalidArgument", "launch: argument " + std::to_string(a) + " at address " +
                                       std::to_string(buffer.address) + " is not 128-byte aligned");
}

void check_scalars(const Image& image, std::span<const Scalar> scalars) {
  for (const Operand& o : image.operands) {
    if (o.space != Space::SCALAR || o.format != Format::IEEE_INT32) continue;
    int64_t value = scalars[o.index].i;
    if (value != static_cast<int32_t>(value))
      throw Error("Overflow", "launch: scalar " + std::to_string(o.index) + " is " + std::to_string(value) +
                                  ", which lies outside int32");
  }
}

void CardImpl::launch(std::shared_ptr<const Program> program, std::span<const Buffer> args,
                      std::span<const Scalar> scalars) {
  auto loaded = std::dynamic_pointer_cast<const ProgramImpl>(program);
  if (!loaded) throw Error("InvalidArgument", "launch: no program; load one with Program::load");
  const Image& image = loaded->image();
  if (args.size() != image.args.size() || scalars.size() != image.scalar_is_float.size())
    throw Error("InvalidArgument", "launch: " + std::to_string(args.size()) + " buffers and " +
                                       std::to_string(scalars.size()) + " scalars given, the program takes " +
                                       std::to_string(image.args.size()) + " and " +
                                       std::to_string(image.scalar_is_float.size()));
  if (image.n_int_scalars) check_scalars(image, scalars);
  auto command = std::make_unique<LaunchCommand>(*this, loaded, loaded->proof_for(scalars));
  command->launch.args.reserve(args.size());
  for (size_t a = 0; a < args.size(); ++a) {
    check_argument(image, a, args[a]);
    if (args[a].bytes) memory_.check(args[a].address, args[a].bytes, "launch");
    if (image.args[a].access & kWrite) commit(args[a].address, image.args[a].bytes);
    command->launch.args.push_back(memory_.at(args[a].address));
  }
  command->launch.scalars.assign(scalars.begin(), scalars.end());
  queue_.submit(std::move(command));
}

}  // namespace

std::unique_ptr<Card> Card::open(int index) {
  if (index < 0) throw Error("InvalidArgument", "card index " + std::to_string(index) + " is negative");
  return std::make_unique<CardImpl>();
}

}  // namespace spyre::card
