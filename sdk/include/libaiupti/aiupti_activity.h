// SPDX-License-Identifier: Apache-2.0
// Records of what the runtime and the card did. Times are nanoseconds since 1970 of the host's clock; what the card
// does takes the time of the card's own clock, from when it was asked for or the engine became free.
#pragma once
#include <cstddef>
#include <cstdint>

#include "libaiupti/aiupti_runtime_cbid.h"

enum AIUpti_ResultTypes {
  AIUPTI_SUCCESS = 0,
  AIUPTI_ERROR_INVALID_PARAMETER = 1,
  AIUPTI_ERROR_MAX_LIMIT_REACHED = 2,  // there is no further record
  AIUPTI_ERROR_NOT_INITIALIZED = 3,
};

enum AIUpti_ActivityKind : uint8_t {
  AIUPTI_ACTIVITY_KIND_INVALID = 0,
  AIUPTI_ACTIVITY_KIND_MEMCPY = 1,
  AIUPTI_ACTIVITY_KIND_MEMCPY2 = 2,
  AIUPTI_ACTIVITY_KIND_MEMSET = 3,
  AIUPTI_ACTIVITY_KIND_MEMORY = 4,
  AIUPTI_ACTIVITY_KIND_CMPT = 5,
  AIUPTI_ACTIVITY_KIND_RUNTIME = 6,
  AIUPTI_ACTIVITY_KIND_DRIVER = 7,
  AIUPTI_ACTIVITY_KIND_SYNCHRONIZATION = 8,
};

enum AIUpti_ActivityMemcpyKind : uint8_t {
  AIUPTI_ACTIVITY_MEMCPY_KIND_HTOD = 1,
  AIUPTI_ACTIVITY_MEMCPY_KIND_DTOH = 2,
  AIUPTI_ACTIVITY_MEMCPY_KIND_PTOP = 3,
};

enum AIUpti_ActivityMemoryOperationType : uint8_t {
  AIUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION = 1,
  AIUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE = 2,
};

struct AIUpti_Activity {
  AIUpti_ActivityKind kind;
};

struct AIUpti_ActivityAPI : AIUpti_Activity {
  AIUpti_runtime_api_trace_cbid cbid;
  uint64_t start, end;
  uint32_t process_id;
  uint32_t correlation_id;
  uint64_t data;  // the thread that made the call
};

struct AIUpti_ActivityCompute : AIUpti_Activity {
  uint64_t start, end, queued, submitted;
  uint32_t device_id, stream_id, context_id, correlation_id;
  char name[128];
};

struct AIUpti_ActivityMemcpy : AIUpti_Activity {
  AIUpti_ActivityMemcpyKind copy_kind;
  uint64_t start, end, bytes;
  uint32_t device_id, stream_id, context_id, correlation_id;
};

struct AIUpti_ActivityMemset : AIUpti_Activity {
  uint64_t start, end, bytes;
  uint32_t device_id, stream_id, context_id, correlation_id;
};

struct AIUpti_ActivityMemory : AIUpti_Activity {
  AIUpti_ActivityMemoryOperationType memory_operation_type;
  uint64_t start, end, bytes, address;
  uint32_t device_id, stream_id, process_id, correlation_id;
};

/// `request` gives a buffer (aligned to 8), its size, and the most records to put into it (0: any number). `complete`
/// takes it back, with the number of bytes that hold records. Both are called inside a flush, buffer after buffer.
AIUpti_ResultTypes aiuptiActivityRegisterCallbacks(void (*request)(uint8_t** buffer, size_t* size,
                                                                   size_t* most_records),
                                                   void (*complete)(uint8_t* buffer, size_t size, size_t valid));
AIUpti_ResultTypes aiuptiActivityEnable(AIUpti_ActivityKind kind);
AIUpti_ResultTypes aiuptiActivityDisable(AIUpti_ActivityKind kind);
/// Hands out every record that has not been, in the order in which they were made.
AIUpti_ResultTypes aiuptiFlushAllActivities();
/// The record behind *record, or the first one if that is null. At the end *record becomes null.
AIUpti_ResultTypes aiuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, AIUpti_Activity** record);
/// Records lost since the last call of this function.
AIUpti_ResultTypes aiuptiActivityGetNumDroppedRecords(size_t* dropped);
