// SPDX-License-Identifier: Apache-2.0
// Start, memory, streams, errors, and what happens at the end of a process.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <set>
#include <sstream>
#include <thread>

#include "check.h"
#include "flex/runtime.h"

CASE(count) { std::printf("%d\n", flex::getNumDevices()); }

CASE(count_opens_nothing) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([] {
      for (int n = 0; n < 1000; ++n) CHECK(flex::getNumDevices() == 8);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(!flex::getFlexRuntimeContext());
  THROWS("has not been started", flex::internal::Runtime::get().card());
  auto context = start();
  CHECK(flex::getNumDevices() == 8);
}

CASE(start_once) {
  std::shared_ptr<flex::RuntimeContext> none;
  CHECK(!flex::initializeRuntime(&none, 8).ok && !none);
  CHECK(!flex::initializeRuntime(&none, -1).ok && !none);
  auto context = start();
  CHECK(flex::getFlexRuntimeContext().get() == context.get());
  CHECK(start().get() == context.get());
  const auto other = flex::initializeRuntime(&none, 1);
  CHECK(!other.ok && !none);
  std::ostringstream text;
  text << other;
  CHECK(text.str().find("one card") != std::string::npos);
}

// Until its standard input ends.
CASE(wait_for_the_end) {
  auto context = start();
  flex::CompositeAddress memory = context->getAllocator()->allocate(1 << 20, tensor_memory());
  std::getchar();
}

CASE(constants) {
  static_assert(flex::SEGMENT_SIZE_BITS == 34 && flex::SEGMENT_SIZE == uint64_t{16} << 30 && flex::PROG_SEGMENT == 7);
  static_assert(flex::PROG_OFFSET_BASE == 120259084288);
  CHECK(flex::dmvaToSegmentId(flex::PROG_OFFSET_BASE + 5) << 34 == flex::PROG_OFFSET_BASE);
  CHECK(EnumsConversion::dataFormatsToString(DataFormats::SEN169_FP16) == "SEN169_FP16");
  CHECK(EnumsConversion::dataFormatsToString(DataFormats::SEN18F_FP24) == "SEN18F_FP24");
  CHECK(dataFormatToStickSize[DataFormats::SEN169_FP16] == 64 && dataFormatToStickSize[DataFormats::IEEE_FP32] == 32);
  CHECK(dataFormatToStickSize[DataFormats::SENINT8] == 128 && dataFormatToStickSize[DataFormats::INVALID] == 0);
  auto raised = [](int x) -> int {
    if (x) return x;
    DT_ERROR("no such format " << 7);
  };
  THROWS("no such format 7", raised(0));
}

// Memory

CASE(addresses) {
  auto context = start();
  auto allocator = context->getAllocator();
  flex::CompositeAddress one = allocator->allocate(1, tensor_memory());
  CHECK(one.chunks().size() == 1 && one.total_size() == 128 && one.chunks()[0].size == 128);
  flex::CompositeAddress two = allocator->allocate(129, tensor_memory());
  CHECK(two.total_size() == 256);
  const flex::Chunk& chunk = two.chunks()[0];
  const uint64_t dmva = allocator->compositeAddressToDmva(two);
  CHECK(dmva == (chunk.addr.region_id << 34) + chunk.addr.offset && dmva != allocator->compositeAddressToDmva(one));
  // A view of the second stick.
  auto view = std::make_shared<flex::CompositeAddress>(
      flex::Chunk(flex::LogicalAddress(chunk.addr.region_id, chunk.addr.offset + 128), 128, chunk.domain_id));
  CHECK(allocator->compositeAddressToDmva(*view) == dmva + 128 && view->total_size() == 128);
  std::array<char, 256> host{}, back{};
  std::memset(host.data() + 128, 7, 128);
  transfer(context->getDefaultStream(), host.data() + 128, 128, true, *view);
  transfer(context->getDefaultStream(), host.data(), 128, true, two);
  transfer(context->getDefaultStream(), back.data(), 256, false, two);
  CHECK(host == back);
  view.reset();  // owns nothing
  transfer(context->getDefaultStream(), back.data(), 256, false, two);
  THROWS("OutOfBounds", transfer(context->getDefaultStream(), back.data(), 257, false, two));
  std::ostringstream text;
  text << two;
  CHECK(!text.str().empty());
  flex::CompositeAddress moved = std::move(two);
  CHECK(two.total_size() == 256 && moved.total_size() == 256 && two.chunks().empty());
  THROWS("moved", allocator->compositeAddressToDmva(two));
  THROWS("InvalidArgument", allocator->allocate(0, tensor_memory()));
}

CASE(freed_memory_comes_back) {
  auto context = start();
  auto& card = flex::internal::Runtime::get().card();
  const uint64_t before = card.allocated_bytes();
  {
    auto a = context->getAllocator()->allocate(1 << 20, tensor_memory());
  }
  CHECK(card.allocated_bytes() == before);
  auto a = std::make_unique<flex::CompositeAddress>(context->getAllocator()->allocate(1 << 20, tensor_memory()));
  std::thread([&] { a.reset(); }).join();
  CHECK(card.allocated_bytes() == before);
}

static std::vector<flex::CompositeAddress> held;
static std::atomic<int> pressed{0};

CASE(memory_pressure) {
  auto context = start();
  auto allocator = context->getAllocator();
  const uint64_t segment = flex::SEGMENT_SIZE;
  THROWS("OutOfMemory", allocator->allocate(segment + 1, tensor_memory()));
  // Seven segments; the first has no room for all of it, since address 0 is not handed out.
  for (int i = 0; i < 6; ++i) held.push_back(allocator->allocate(segment, tensor_memory()));
  THROWS("OutOfMemory", allocator->allocate(segment, tensor_memory()));  // no callback yet
  allocator->registerMemoryPressureCallback([](std::unique_lock<std::mutex>& lock) {
    CHECK(lock.owns_lock());
    lock.unlock();
    ++pressed;
    if (!held.empty()) held.pop_back();
    lock.lock();
  });
  flex::CompositeAddress kept = allocator->allocate(segment, tensor_memory());
  CHECK(pressed == 1 && held.size() == 5);
  held.clear();
  pressed = 0;
  for (int i = 0; i < 5; ++i) held.push_back(allocator->allocate(segment, tensor_memory()));
  allocator->registerMemoryPressureCallback([](std::unique_lock<std::mutex>&) { ++pressed; });
  THROWS("OutOfMemory", allocator->allocate(segment, tensor_memory()));
  CHECK(pressed == 1);  // once, then the error
  // Memory given back with the lock closed, and a callback that leaves it open.
  allocator->registerMemoryPressureCallback([](std::unique_lock<std::mutex>& lock) {
    held.pop_back();
    lock.unlock();
  });
  flex::CompositeAddress again = allocator->allocate(segment, tensor_memory());
  held.clear();
}

// Streams

CASE(seventy_three_streams) {
  auto context = start();
  std::set<flex::RuntimeStream*> streams{context->getDefaultStream()};
  std::vector<flex::RuntimeStream*> made;
  for (int i = 0; i < 40; ++i) made.push_back(context->createStream(flex::RuntimeStreamPriority::NORMAL));
  for (int i = 0; i < 32; ++i) made.push_back(context->createStream(flex::RuntimeStreamPriority::HIGH));
  streams.insert(made.begin(), made.end());
  CHECK(streams.size() == 73 && context->getDefaultStream() == context->getDefaultStream());
  flex::CompositeAddress memory = context->getAllocator()->allocate(128, tensor_memory());
  for (flex::RuntimeStream* stream : streams) {
    int32_t value[32];
    stream->fillAsync(&memory, 3, DataFormats::IEEE_INT32, true);
    stream->synchronize();
    CHECK(stream->query() && !stream->needsShutdown());
    transfer(stream, value, 128, false, memory);
    CHECK(value[0] == 3 && value[31] == 3);
  }
  context.reset();  // as free_runtime does
  CHECK(made.back()->query());
}

template <class Code>
static void check_fill(flex::RuntimeContext& context, double value, DataFormats format, Code code, size_t bytes = 384) {
  flex::CompositeAddress memory = context.getAllocator()->allocate(bytes, tensor_memory());
  std::vector<Code> got(memory.total_size() / sizeof(Code));
  context.getDefaultStream()->fillAsync(&memory, value, format, true);
  transfer(context.getDefaultStream(), got.data(), memory.total_size(), false, memory);
  for (Code each : got) CHECK(each == code);
}

CASE(fill) {
  auto context = start();
  check_fill<uint16_t>(*context, 1.0, DataFormats::SEN169_FP16, 0x3E00);
  check_fill<uint16_t>(*context, 0.0, DataFormats::SEN169_FP16, 0);
  check_fill<float>(*context, -2.5, DataFormats::IEEE_FP32, -2.5f);
  check_fill<float>(*context, 0.1, DataFormats::IEEE_FP32, 0.1f, 10 << 20);
  check_fill<int32_t>(*context, -9, DataFormats::IEEE_INT32, -9);
  check_fill<int32_t>(*context, 2147483647, DataFormats::IEEE_INT32, 2147483647);
  check_fill<int8_t>(*context, -128, DataFormats::SENINT8, -128);
  check_fill<int64_t>(*context, 1e10, DataFormats::IEEE_INT64, 10000000000);
  check_fill<uint8_t>(*context, -2, DataFormats::SENINT4, 0xEE);
  check_fill<uint8_t>(*context, 3, DataFormats::SENUINT2, 0xFF);
  flex::CompositeAddress memory = context->getAllocator()->allocate(128, tensor_memory());
  THROWS("InvalidArgument", context->getDefaultStream()->fillAsync(&memory, 1, DataFormats::SEN18F_FP24, true));
}

CASE(transfer_callbacks) {
  auto context = start();
  flex::CompositeAddress memory = context->getAllocator()->allocate(128, tensor_memory());
  char host[128] = {};
  for (const bool to_device : {true, false}) {
    // The callback alone holds the address.
    auto owner = std::make_shared<flex::CompositeAddress>(flex::Chunk(memory.chunks()[0]));
    std::weak_ptr<flex::CompositeAddress> watched = owner;
    int calls = 0;
    flex::DmaParams* params = flex::createDmaParams(host, 128, to_device, owner.get());
    params->pipeline_barrier = true;
    params->callback = [owner = std::move(owner), &calls](void*) { ++calls; };
    to_device ? context->getDefaultStream()->launchOperationH2D(params)
              : context->getDefaultStream()->launchOperationD2H(params);
    flex::destroyDmaParams(params);
    CHECK(calls == 1 && watched.expired());
  }
}

CASE(host_callbacks) {
  auto context = start();
  const auto caller = std::this_thread::get_id();
  int value = 0;
  for (const bool barrier : {false, true}) {
    auto* params = flex::createHostCallbackParams(
        [&](void* argument) {
          CHECK(std::this_thread::get_id() == caller);
          ++*static_cast<int*>(argument);
        },
        &value, barrier);
    context->getDefaultStream()->launchOperationHostCallback(params);
    flex::destroyHostCallbackParams(params);
  }
  CHECK(value == 2);
  auto* bad =
      flex::createHostCallbackParams([](void*) { throw std::runtime_error("from the callback"); }, nullptr, false);
  THROWS("from the callback", context->getDefaultStream()->launchOperationHostCallback(bad));
  flex::destroyHostCallbackParams(bad);
  CHECK(!context->hasStreamError());
}

// Errors

CASE(sticky_errors) {
  auto context = start();
  auto& card = flex::internal::Runtime::get().card();
  flex::RuntimeStream* good = context->getDefaultStream();
  flex::RuntimeStream* bad = context->createStream(flex::RuntimeStreamPriority::NORMAL);
  flex::CompositeAddress memory = context->getAllocator()->allocate(128, tensor_memory());
  CHECK(!bad->needsShutdown() && !context->hasStreamError());
  card.inject_fault(spyre::card::Fault::dma, 1);
  bad->fillAsync(&memory, 1, DataFormats::IEEE_FP32, true);
  THROWS("DeviceFault", bad->synchronize());
  THROWS("DeviceFault", bad->query());
  THROWS("DeviceFault", bad->fillAsync(&memory, 1, DataFormats::IEEE_FP32, true));
  CHECK(bad->needsShutdown() && context->hasStreamError());
  CHECK(!good->needsShutdown() && good->query());
  flex::CompositeAddress other = context->getAllocator()->allocate(128, tensor_memory());
  good->fillAsync(&other, 1, DataFormats::IEEE_FP32, true);
  good->synchronize();
}

CASE(lost_card) {
  auto context = start();
  flex::RuntimeStream* other = context->createStream(flex::RuntimeStreamPriority::HIGH);
  flex::CompositeAddress memory = context->getAllocator()->allocate(128, tensor_memory());
  flex::internal::Runtime::get().card().inject_fault(spyre::card::Fault::device_lost, 1);
  context->getDefaultStream()->fillAsync(&memory, 1, DataFormats::IEEE_FP32, true);
  THROWS("DeviceLost", context->getDefaultStream()->synchronize());
  CHECK(other->needsShutdown() && context->hasStreamError());
  THROWS("DeviceLost", other->synchronize());
}

CASE(wrong_arguments) {
  auto context = start();
  flex::RuntimeStream* stream = context->getDefaultStream();
  flex::CompositeAddress memory = context->getAllocator()->allocate(256, program_memory());
  flex::CompositeAddress tensor = context->getAllocator()->allocate(256, tensor_memory());
  flex::CompositeAddress foreign(flex::Chunk(flex::LogicalAddress(6, 1 << 30), 128, 0));
  char host[256] = {};
  THROWS("lies in no allocation", transfer(stream, host, 128, true, foreign));
  auto compute = [&](const flex::CompositeAddress& at, uint64_t offset) {
    auto* params = flex::createComputeParams(&at, {}, "none", offset);
    const std::unique_ptr<flex::ComputeParams, decltype(&flex::destroyComputeParams)> held_(
        params, &flex::destroyComputeParams);
    stream->launchOperationCompute(params);
  };
  THROWS("nothing was written", compute(memory, 0));
  transfer(stream, host, 256, true, memory);
  THROWS("no job of this SDK", compute(memory, 0));
  THROWS("no room", compute(memory, 255));
  THROWS("not allocated for programs", compute(tensor, 0));
  flex::DmaParams* params = flex::createDmaParams(host, 128, true, nullptr);
  THROWS("no address", stream->launchOperationH2D(params));
  flex::destroyDmaParams(params);
  CHECK(!context->hasStreamError());
}

// The end of a process

// Destroyed after main, in an order that nobody chose; the context goes first.
static std::vector<flex::CompositeAddress> late;
static std::shared_ptr<flex::RuntimeContext> late_context;

CASE(addresses_outlive_the_runtime) {
  late_context = start();
  late.push_back(late_context->getAllocator()->allocate(4096, tensor_memory()));
  late_context->getDefaultStream()->fillAsync(&late[0], 1, DataFormats::IEEE_FP32, true);  // queued work, too
  flex::CompositeAddress local = late_context->getAllocator()->allocate(4096, program_memory());
  late_context.reset();
}

static int in_child(void (*action)()) {
  const pid_t child = fork();
  if (child == 0) {
    action();
    std::_Exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

CASE(fork_before_the_start) {
  CHECK(flex::getNumDevices() == 8);
  CHECK(in_child([] {
          CHECK(flex::getNumDevices() == 8);
          auto context = start();
          flex::CompositeAddress memory = context->getAllocator()->allocate(128, tensor_memory());
          context->getDefaultStream()->fillAsync(&memory, 1, DataFormats::IEEE_FP32, true);
          context->getDefaultStream()->synchronize();
        }) == 0);
  start();
}

CASE(fork_after_the_start) {
  late_context = start();
  late.push_back(late_context->getAllocator()->allocate(4096, tensor_memory()));
  late_context->getDefaultStream()->fillAsync(&late[0], 1, DataFormats::IEEE_FP32, true);
  CHECK(in_child([] {
          CHECK(flex::getNumDevices() == 8);
          std::shared_ptr<flex::RuntimeContext> none;
          CHECK(!flex::initializeRuntime(&none, 0).ok && !none);
          THROWS("forked", late_context->getDefaultStream()->synchronize());
          THROWS("forked", late_context->getAllocator()->allocate(128, tensor_memory()));
          late.clear();  // frees nothing of the parent
        }) == 0);
  late_context->getDefaultStream()->synchronize();
  CHECK(flex::internal::Runtime::get().card().allocated_bytes() == 4096);
}
