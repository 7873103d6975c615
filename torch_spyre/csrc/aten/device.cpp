// SPDX-License-Identifier: Apache-2.0
#include "device.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <set>
#include <sstream>
#include <string>

#include "errors.h"

namespace spyre {
namespace {

constexpr int kMaxDevices = 64;
constexpr int kPoolStreams = 32;

std::array<std::atomic<card::Card*>, kMaxDevices> cards{};
std::mutex open_mutex;
std::atomic<bool> bad_fork{false};
thread_local c10::DeviceIndex current_index = 0;
thread_local std::array<int8_t, kMaxDevices> current_stream_id{};
std::array<std::atomic<uint32_t>, kMaxDevices> next_low{}, next_high{};

void after_fork_in_child() {
  if (any_open()) bad_fork = true;
}

int read_world_size() {
  const char* text = std::getenv("AIU_WORLD_SIZE");
  if (!text) return 1;
  return std::clamp(std::atoi(text), 0, kMaxDevices);
}

/// SPYRE_DEVICES: comma list of cards to show; duplicates and cards that do not exist are dropped.
int count_listed(const char* text, int total) {
  std::set<int> listed;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) {
    char* end = nullptr;
    const long index = std::strtol(item.c_str(), &end, 10);
    if (end != item.c_str() && index >= 0 && index < total) listed.insert(static_cast<int>(index));
  }
  return static_cast<int>(listed.size());
}

int read_device_count() {
  const int total = read_world_size();
  const char* listed = std::getenv("SPYRE_DEVICES");
  return listed && *listed ? count_listed(listed, total) : total;
}

}  // namespace

c10::DeviceIndex device_count() {
  static const auto count = static_cast<c10::DeviceIndex>(read_device_count());
  return count;
}

c10::DeviceIndex current_device() { return current_index; }

void set_current_device(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < device_count(), "Device index ", static_cast<int>(index), " out of range [0, ",
              static_cast<int>(device_count()), ")");
  current_index = index;
}

c10::DeviceIndex resolve_device(c10::DeviceIndex index) {
  if (index == -1) return current_index;
  TORCH_CHECK(index >= 0 && index < device_count(), "Device index ", static_cast<int>(index), " out of range [0, ",
              static_cast<int>(device_count()), ")");
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
  std::lock_guard lock(open_mutex);
  if (!cards[index]) {
    // The card is never closed: tensors may outlive every static of this library.
    static std::once_flag fork_hook;
    std::call_once(fork_hook, [] { pthread_atfork(nullptr, nullptr, after_fork_in_child); });
    cards[index].store(on_card([&] { return card::Card::open(index); }).release(), std::memory_order_release);
  }
  return *cards[index];
}

void synchronize_device(c10::DeviceIndex index) {
  if (is_open(index)) on_card([&] { card_of(index).synchronize(); });
}

bool device_idle(c10::DeviceIndex index) { return !is_open(index) || card_of(index).idle(); }

c10::Stream current_stream(c10::DeviceIndex index) {
  return c10::Stream(c10::Stream::UNSAFE, spyre_device(index), current_stream_id[index]);
}

c10::Stream default_stream(c10::DeviceIndex index) { return c10::Stream(c10::Stream::UNSAFE, spyre_device(index), 0); }

c10::Stream stream_from_pool(c10::DeviceIndex index, int priority) {
  const bool high = priority != 0;
  const uint32_t turn = (high ? next_high : next_low)[index]++ % kPoolStreams;
  const c10::StreamId id = 1 + turn + (high ? kPoolStreams : 0);
  return c10::Stream(c10::Stream::UNSAFE, spyre_device(index), id);
}

c10::Stream exchange_stream(c10::Stream stream) {
  const auto index = stream.device_index();
  const auto previous = current_stream(index);
  current_stream_id[index] = static_cast<int8_t>(stream.id());
  return previous;
}

}  // namespace spyre
