// SPDX-License-Identifier: Apache-2.0
// A job in program memory, as this SDK's compiler writes it:
//
//     correction region    one 64-bit address for each argument of a launch, which the host writes before each launch
//     JobHeader            where ComputeOnDevice points
//     positions            for each buffer of the program, the argument it is bound to (32 bits each)
//     program              docs/program-format.md
//
// torch_spyre/sdk/job.py is the writer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "spyre/card.h"

namespace flex::internal {

struct JobHeader {
  char magic[8];
  uint32_t version;
  uint32_t arguments;          // of a launch
  uint64_t correction_offset;  // from the start of the job's memory
  uint64_t program_offset;     // from this header
  uint64_t program_bytes;
  uint32_t buffers;  // of the program
  uint32_t reserved;
};
static_assert(sizeof(JobHeader) == 48);

inline constexpr char kJobMagic[8] = {'S', 'P', 'Y', 'R', 'E', 'J', 'O', 'B'};
inline constexpr uint32_t kJobVersion = 1;

struct Job {
  std::shared_ptr<const spyre::card::Program> program;
  uint64_t begin = 0, end = 0;  // bytes of the job's memory that it was made from
  uint64_t correction_offset = 0;
  uint32_t arguments = 0;
  std::vector<uint32_t> positions;
};

/// Reads and proves the job at an offset of its memory. Throws spyre::card::Error.
std::shared_ptr<const Job> read_job(std::span<const std::byte> memory, uint64_t offset);

}  // namespace flex::internal
