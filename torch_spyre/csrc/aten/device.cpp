// SPDX-License-Identifier: Apache-2.0
#include "device.h"

#include <c10/util/Exception.h>
#include <pthread.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <atomic>
#include <mutex>

#include "enumerate.h"
#include "errors.h"
#include "profiler.h"

namespace spyre {
namespace {

constexpr int kPoolStreams = 32;

std::array<std::atomic<card::Card*>, kMaxDevices> cards{};
std::mutex open_mutex;
std::atomic<bool> bad_fork{false};
thread_local c10::DeviceIndex current_index = -1;  // nothing chosen yet: LOCAL_RANK says
thread_local std::array<int8_t, kMaxDevices> current_streams{};
std::array<std::atomic<uint32_t>, kMaxDevices> next_low{}, next_high{}, next_link{};

/// DMA rates of the device description. Needs the GIL, so it must not be called with a lock held.
card::DmaTiming described_timing() {
  if (!Py_IsInitialized()) return {};
  pybind11::gil_scoped_acquire gil;
  const auto description = pybind11::module_::import("torch_spyre.perf.device").attr("load")();
  const auto value = [&](const char* key) { return description[key].cast<double>(); };
  return {value("pcie.latency") * 1e3, value("pcie.bandwidth_in"), value("pcie.bandwidth_out")};  // us, GB/s
}

/// SPYRE_TIMING_ONLY. Needs the GIL.
bool starts_timing_only() {
  if (!Py_IsInitialized()) return false;
  pybind11::gil_scoped_acquire gil;
  return pybind11::module_::import("torch_spyre.predict.timing").attr("is_default")().cast<bool>();
}

void after_fork_in_child() {
  if (any_open()) bad_fork = true;
}

}  // namespace

c10::DeviceIndex device_count() { return static_cast<c10::DeviceIndex>(visible_cards().size()); }

c10::DeviceIndex device_count_or_zero() noexcept {
  try {
    return device_count();
  } catch (...) {
    return 0;
  }
}

c10::DeviceIndex current_device() {
  return current_index == -1 ? static_cast<c10::DeviceIndex>(default_device()) : current_index;
}

std::string no_such_device(int64_t index) {
  return c10::str("Device index ", index, " out of range [0, ", static_cast<int>(device_count()),
                  "); AIU_WORLD_SIZE says how many cards there are, and SPYRE_DEVICES which of them are seen; set them "
                  "before the process starts");
}

void set_current_device(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < device_count(), no_such_device(index));
  current_index = index;
}

c10::DeviceIndex resolve_device(c10::DeviceIndex index) {
  if (index == -1) return current_device();
  TORCH_CHECK(index >= 0 && index < device_count(), no_such_device(index));
  return index;
}

c10::Device spyre_device(c10::DeviceIndex index) { return c10::Device(c10::DeviceType::PrivateUse1, index); }

bool is_open(c10::DeviceIndex index) { return cards[index].load(std::memory_order_acquire) != nullptr; }

bool any_open() {
  for (const auto& c : cards) {
    if (c.load(std::memory_order_relaxed)) return true;
  }
  return false;
}

bool in_bad_fork() { return bad_fork; }

card::Card& card_of(c10::DeviceIndex index) {
  if (bad_fork.load(std::memory_order_relaxed)) {
    raise("DeviceLost",
          "spyre cannot be used in a forked process whose parent already used it; start the process with the "
          "'spawn' method (multiprocessing.set_start_method('spawn'))");
  }
  if (auto* card = cards[index].load(std::memory_order_acquire)) return *card;
  if (index >= device_count()) {
    raise(
        "InvalidArgument",
        c10::str("Device index out of bounds. logical_device_id=", static_cast<int>(index),
                 ", number of visible devices=", static_cast<int>(device_count()),
                 "; LOCAL_RANK names the device of a process that did not choose one, AIU_WORLD_SIZE how many exist"));
  }
  const auto timing = described_timing();
  const bool timing_only = starts_timing_only();
  std::lock_guard lock(open_mutex);
  if (!cards[index]) {
    // The card is never closed: tensors may outlive every static of this library.
    static std::once_flag fork_hook;
    std::call_once(fork_hook, [] { pthread_atfork(nullptr, nullptr, after_fork_in_child); });
    cards[index].store(on_card([&] { return card::Card::open(visible_cards()[index], timing); }).release(),
                       std::memory_order_release);
    cards[index].load()->set_timing_only(timing_only);
    profiler::card_opened(index, *cards[index]);
  }
  return *cards[index];
}

void synchronize_device(c10::DeviceIndex index) {
  if (is_open(index)) on_card([&] { card_of(index).synchronize(); });
}

void synchronize_stream(c10::Stream stream) {
  const auto index = stream.device_index();
  if (is_open(index)) on_card([&] { card_of(index).synchronize(static_cast<int>(stream.id())); });
}

bool stream_idle(c10::Stream stream) {
  const auto index = stream.device_index();
  return !is_open(index) || on_card([&] { return card_of(index).query(static_cast<int>(stream.id())); });
}

void reset_device(c10::DeviceIndex index, bool drop_queued) {
  if (is_open(index)) on_card([&] { card_of(index).reset(drop_queued); });
}

int current_stream_id(c10::DeviceIndex index) { return current_streams[index]; }

c10::Stream current_stream(c10::DeviceIndex index) {
  return c10::Stream(c10::Stream::UNSAFE, spyre_device(index), current_streams[index]);
}

c10::Stream default_stream(c10::DeviceIndex index) { return c10::Stream(c10::Stream::UNSAFE, spyre_device(index), 0); }

c10::Stream stream_from_pool(c10::DeviceIndex index, int priority) {
  const bool high = priority != 0;
  const uint32_t turn = (high ? next_high : next_low)[index]++ % kPoolStreams;
  const c10::StreamId id = 1 + turn + (high ? kPoolStreams : 0);
  return c10::Stream(c10::Stream::UNSAFE, spyre_device(index), id);
}

c10::Stream link_stream(c10::DeviceIndex index) {
  const c10::StreamId id = card::kStreams + next_link[index]++ % card::kLinkStreams;
  return c10::Stream(c10::Stream::UNSAFE, spyre_device(index), id);
}

c10::Stream exchange_stream(c10::Stream stream) {
  const auto index = resolve_device(stream.device_index());
  TORCH_CHECK(stream.id() >= 0 && stream.id() < card::kAllStreams, "stream ", stream.id(),
              " does not exist; a card has 0..", card::kStreams - 1);
  const auto previous = current_stream(index);
  current_streams[index] = static_cast<int8_t>(stream.id());
  return previous;
}

}  // namespace spyre
