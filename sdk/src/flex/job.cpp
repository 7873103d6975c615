// SPDX-License-Identifier: Apache-2.0
#include "flex/job.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace flex::internal {
namespace {

using spyre::card::Error;
using spyre::card::Program;

constexpr uint32_t kMostBuffers = 1 << 16;

[[noreturn]] void bad(uint64_t offset, const std::string& what) {
  throw Error("InvalidProgram", "compute: at offset " + std::to_string(offset) + " of the program memory " + what);
}

JobHeader header_at(std::span<const std::byte> memory, uint64_t offset) {
  JobHeader header;
  if (offset > memory.size() || memory.size() - offset < sizeof header) bad(offset, "there is no room for a job");
  std::memcpy(&header, memory.data() + offset, sizeof header);
  if (std::memcmp(header.magic, kJobMagic, sizeof kJobMagic) != 0)
    bad(offset, "there is no job of this SDK's compiler; compile the kernel with its dxp_standalone");
  if (header.version != kJobVersion)
    bad(offset, "there is a job of version " + std::to_string(header.version) + ", this library runs version " +
                    std::to_string(kJobVersion) + "; compile the kernel again");
  return header;
}

/// Kernels that are prepared again, or by several plans, are proved once.
std::shared_ptr<const Program> load(std::span<const std::byte> binary) {
  static std::mutex mutex;
  static auto* loaded = new std::unordered_multimap<size_t, std::weak_ptr<const Program>>;
  const std::string_view text(reinterpret_cast<const char*>(binary.data()), binary.size());
  const size_t key = std::hash<std::string_view>()(text);
  {
    std::lock_guard lock(mutex);
    for (auto [it, end] = loaded->equal_range(key); it != end;) {
      std::shared_ptr<const Program> found = it->second.lock();
      if (found && std::ranges::equal(found->binary(), binary)) return found;
      it = found ? std::next(it) : loaded->erase(it);
    }
  }
  std::shared_ptr<const Program> program = Program::load(binary);
  std::lock_guard lock(mutex);
  loaded->emplace(key, program);
  return program;
}

}  // namespace

std::shared_ptr<const Job> read_job(std::span<const std::byte> memory, uint64_t offset) {
  const JobHeader header = header_at(memory, offset);
  const uint64_t room = memory.size() - offset;
  const uint64_t tables = sizeof header + uint64_t{header.buffers} * 4;
  if (header.buffers > kMostBuffers || header.program_offset < tables || header.program_offset > room ||
      header.program_bytes > room - header.program_offset)
    bad(offset, "there is a job that does not fit into it");
  if (header.correction_offset > offset || (offset - header.correction_offset) / 8 < header.arguments)
    bad(offset, "there is a job whose " + std::to_string(header.arguments) + " addresses do not lie before it");
  auto job = std::make_shared<Job>();
  job->positions.resize(header.buffers);
  std::memcpy(job->positions.data(), memory.data() + offset + sizeof header, job->positions.size() * 4);
  for (uint32_t position : job->positions)
    if (position >= header.arguments) bad(offset, "there is a job that wants argument " + std::to_string(position));
  job->program = load(memory.subspan(offset + header.program_offset, header.program_bytes));
  if (job->program->n_args() != static_cast<int>(header.buffers) || job->program->n_scalars() != 0)
    bad(offset, "there is a job whose program takes " + std::to_string(job->program->n_args()) + " buffers and " +
                    std::to_string(job->program->n_scalars()) + " scalars, its table has " +
                    std::to_string(header.buffers) + " and none");
  job->begin = offset;
  job->end = offset + header.program_offset + header.program_bytes;
  job->correction_offset = header.correction_offset;
  job->arguments = header.arguments;
  return job;
}

}  // namespace flex::internal
