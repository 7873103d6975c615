// SPDX-License-Identifier: Apache-2.0
#include "work.h"

#include <ATen/core/ivalue_inl.h>
#include <ATen/core/jit_type.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <thread>

#include "aten/device.h"
#include "aten/errors.h"
#include "aten/recording.h"

namespace spyre {
namespace {

/// One stream of the card that is behind all points.
c10::Stream stream_behind(const std::vector<Point>& points) {
  const auto device = points[0].device;
  if (points.size() == 1) return c10::Stream(c10::Stream::UNSAFE, spyre_device(device), points[0].marker.stream);
  const auto stream = link_stream(device);
  for (const Point& p : points) on_card([&] { card_of(device).wait(static_cast<int>(stream.id()), p.marker); });
  return stream;
}

/// Writes down that the current stream waits for a point.
void record_wait(const Point& p) {
  auto* recording = Recording::active();
  if (!recording) return;
  const auto recorded = p.recorded;
  if (!recorded || recorded->recording != recording->id())
    return recording->spoil("waits for a collective that began before");
  recording->finished(recorded->number);
  recording->did(p.device, c10::str("wait for ", recorded->number), {}, [device = p.device, recorded] {
    on_card([&] { card_of(device).wait(current_stream_id(device), recorded->marker); });
  });
}

/// A future of tensors that is complete as soon as the exchange is queued: who takes its value is put behind it.
c10::intrusive_ptr<c10::ivalue::Future> future_of(const std::vector<Point>& points,
                                                  const std::vector<at::Tensor>& outputs) {
  const auto type = c10::ListType::create(c10::TensorType::get());
  if (points.empty()) {
    auto future = c10::make_intrusive<c10::ivalue::Future>(type);
    future->markCompleted(c10::IValue(outputs));
    return future;
  }
  auto future =
      c10::make_intrusive<c10::ivalue::Future>(type, std::vector<c10::Device>{spyre_device(points[0].device)});
  const auto before = exchange_stream(stream_behind(points));
  future->markCompleted(c10::IValue(outputs));
  exchange_stream(before);
  return future;
}

}  // namespace

SpyreWork::SpyreWork(int rank, c10d::OpType type, std::vector<Point> points, std::vector<at::Tensor> outputs,
                     bool blocks_host, std::shared_ptr<const card::GroupExchange> exchange)
    : c10d::Work(rank, type),
      points_(std::move(points)),
      outputs_(std::move(outputs)),
      blocks_host_(blocks_host),
      exchange_(std::move(exchange)) {}

bool SpyreWork::isCompleted() {
  for (const Point& p : points_)
    if (!card_of(p.device).complete(p.marker)) return false;
  return true;
}

std::exception_ptr SpyreWork::exception() const {
  try {
    for (const Point& p : points_)
      if (card_of(p.device).complete(p.marker)) on_card([&] { card_of(p.device).synchronize(p.marker); });
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

bool SpyreWork::isSuccess() const { return exception() == nullptr; }

bool SpyreWork::wait(std::chrono::milliseconds timeout) {
  if (timeout != kNoTimeout) wait_on_host(timeout);
  if (blocks_host_) {
    Recording::spoil_active("a wait of the host for other cards");
    for (const Point& p : points_) on_card([&] { card_of(p.device).synchronize(p.marker); });
  } else {
    synchronize();
  }
  return true;
}

void SpyreWork::wait_on_host(std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (!isCompleted()) {
    if (std::chrono::steady_clock::now() >= end)
      raise("CollectiveTimeout", c10::str("wait(timeout): ", exchange_ ? exchange_->info()->kind : "coalesced calls",
                                          " did not end within ", timeout.count(), " ms; it goes on"));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void SpyreWork::synchronize() {
  for (const Point& p : points_) {
    on_card([&] { card_of(p.device).wait(current_stream_id(p.device), p.marker); });
    record_wait(p);
  }
}

int SpyreWork::sourceRank() const { return exchange_ ? exchange_->source() : -1; }

c10::intrusive_ptr<c10::ivalue::Future> SpyreWork::getFuture() {
  Recording::spoil_active("the future of a collective");
  std::lock_guard lock(mutex_);
  if (!future_) future_ = future_of(points_, outputs_);
  return future_;
}

uint64_t SpyreWork::getSequencenumber() const { return exchange_ ? exchange_->info()->sequence : 0; }

}  // namespace spyre
