// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "check.h"
#include "flex/activity.h"
#include "libaiupti/aiupti_activity.h"

static std::vector<uint8_t*> requested, completed;
static std::vector<std::vector<uint8_t>> contents;
static size_t buffer_bytes = 1 << 16;

static void request(uint8_t** buffer, size_t* size, size_t* most) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, buffer_bytes));
  *size = buffer_bytes;
  *most = 0;
  requested.push_back(*buffer);
}
static void complete(uint8_t* buffer, size_t size, size_t valid) {
  CHECK(size == buffer_bytes && valid <= size);
  completed.push_back(buffer);
  contents.emplace_back(buffer, buffer + valid);
  std::free(buffer);
}

template <class Record>
static std::vector<Record> records(AIUpti_ActivityKind kind) {
  std::vector<Record> found;
  for (std::vector<uint8_t>& content : contents) {
    AIUpti_Activity* record = nullptr;
    while (aiuptiActivityGetNextRecord(content.data(), content.size(), &record) == AIUPTI_SUCCESS)
      if (record->kind == kind) found.push_back(*reinterpret_cast<Record*>(record));
    CHECK(record == nullptr);
  }
  return found;
}

// profile <folder of a job with three arguments of 64 KiB>
CASE(profile) {
  auto context = start();
  flex::RuntimeStream* stream = context->createStream(flex::RuntimeStreamPriority::NORMAL);
  JobPlan plan(arguments.at(0), *context, stream);
  CHECK(aiuptiFlushAllActivities() == AIUPTI_ERROR_NOT_INITIALIZED);
  CHECK(aiuptiActivityRegisterCallbacks(request, complete) == AIUPTI_SUCCESS);
  const AIUpti_ActivityKind kinds[] = {AIUPTI_ACTIVITY_KIND_RUNTIME, AIUPTI_ACTIVITY_KIND_CMPT,
                                       AIUPTI_ACTIVITY_KIND_MEMCPY, AIUPTI_ACTIVITY_KIND_MEMSET,
                                       AIUPTI_ACTIVITY_KIND_MEMORY};
  for (auto kind : kinds) CHECK(aiuptiActivityEnable(kind) == AIUPTI_SUCCESS);
  CHECK(aiuptiActivityEnable(static_cast<AIUpti_ActivityKind>(200)) == AIUPTI_ERROR_INVALID_PARAMETER);
  const uint64_t begin = flex::internal::host_now_ns();
  std::vector<char> host(1 << 16);
  {
    std::vector<flex::CompositeAddress> memory;
    for (int i = 0; i < 3; ++i) memory.push_back(context->getAllocator()->allocate(1 << 16, tensor_memory()));
    transfer(stream, host.data(), host.size(), true, memory[0]);
    stream->fillAsync(&memory[1], 1, DataFormats::SEN169_FP16, true);
    for (int i = 0; i < 5; ++i) plan.launch(stream, {&memory[0], &memory[1], &memory[2]});
    transfer(stream, host.data(), host.size(), false, memory[2]);
    stream->synchronize();
  }
  const uint64_t end = flex::internal::host_now_ns();
  buffer_bytes = 512;  // many buffers
  CHECK(aiuptiFlushAllActivities() == AIUPTI_SUCCESS);
  for (auto kind : kinds) CHECK(aiuptiActivityDisable(kind) == AIUPTI_SUCCESS);
  CHECK(requested.size() > 2 && requested.size() == completed.size());  // each completed before the next is requested

  const auto calls = records<AIUpti_ActivityAPI>(AIUPTI_ACTIVITY_KIND_RUNTIME);
  const auto kernels = records<AIUpti_ActivityCompute>(AIUPTI_ACTIVITY_KIND_CMPT);
  CHECK(kernels.size() == 5);
  uint64_t last = begin;
  for (const auto& kernel : kernels) {
    CHECK(std::string(kernel.name) == "add" && kernel.device_id == 0);
    CHECK(kernel.stream_id == static_cast<uint32_t>(stream->cardStream()));
    CHECK(kernel.start >= last && kernel.end > kernel.start && kernel.queued <= kernel.start);
    CHECK(kernel.end - kernel.start == kernels[0].end - kernels[0].start);  // the card's clock knows no noise
    last = kernel.end;
    const auto call = std::find_if(calls.begin(), calls.end(),
                                   [&](const auto& c) { return c.correlation_id == kernel.correlation_id; });
    CHECK(call != calls.end() && call->cbid == AIUPTI_RUNTIME_TRACE_CBID_LAUNCH_CB_CMPT);
    CHECK(call->start >= begin && call->end <= end && call->start <= call->end && call->process_id);
  }
  const auto copies = records<AIUpti_ActivityMemcpy>(AIUPTI_ACTIVITY_KIND_MEMCPY);
  auto count = [&](AIUpti_ActivityMemcpyKind kind, uint64_t bytes) {
    return std::count_if(copies.begin(), copies.end(),
                         [&](const auto& c) { return c.copy_kind == kind && c.bytes == bytes; });
  };
  CHECK(count(AIUPTI_ACTIVITY_MEMCPY_KIND_HTOD, 1 << 16) == 1 && count(AIUPTI_ACTIVITY_MEMCPY_KIND_DTOH, 1 << 16) == 1);
  CHECK(count(AIUPTI_ACTIVITY_MEMCPY_KIND_HTOD, 128) == 5);  // addresses, for each launch
  const auto fills = records<AIUpti_ActivityMemset>(AIUPTI_ACTIVITY_KIND_MEMSET);
  CHECK(fills.size() == 1 && fills[0].bytes == 1 << 16);
  const auto memory = records<AIUpti_ActivityMemory>(AIUPTI_ACTIVITY_KIND_MEMORY);
  CHECK(memory.size() == 6);
  for (const auto& m : memory) CHECK(m.bytes == 1 << 16 && m.start >= begin && m.end <= end);
  size_t dropped = 7;
  CHECK(aiuptiActivityGetNumDroppedRecords(&dropped) == AIUPTI_SUCCESS && dropped == 0);

  // Switched off, nothing is kept.
  contents.clear();
  stream->synchronize();
  CHECK(aiuptiFlushAllActivities() == AIUPTI_SUCCESS && contents.empty());
  // Buffers that hold no record.
  aiuptiActivityEnable(AIUPTI_ACTIVITY_KIND_RUNTIME);
  stream->synchronize();
  buffer_bytes = 8;
  CHECK(aiuptiFlushAllActivities() == AIUPTI_SUCCESS);
  CHECK(aiuptiActivityGetNumDroppedRecords(&dropped) == AIUPTI_SUCCESS && dropped == 1);
}
