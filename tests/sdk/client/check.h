// SPDX-License-Identifier: Apache-2.0
// Named cases, each run by a process of its own: `client <case>`.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "flex/flex.hpp"

using Arguments = std::vector<std::string>;
using Case = void (*)(const Arguments&);

inline std::map<std::string, Case>& cases() {
  static std::map<std::string, Case> all;
  return all;
}

struct NewCase {
  NewCase(const char* name, Case run) { cases()[name] = run; }
};

#define CASE(name)                                            \
  static void case_##name([[maybe_unused]] const Arguments&); \
  static const NewCase new_##name(#name, case_##name);        \
  static void case_##name([[maybe_unused]] const Arguments& arguments)

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  std::_Exit(1);
}

#define CHECK(condition) \
  if (!(condition)) fail(__FILE__, __LINE__, #condition)

/// The statement throws a std::exception whose text holds `words`.
#define THROWS(words, statement)                                                              \
  do {                                                                                        \
    bool threw = false;                                                                       \
    try {                                                                                     \
      statement;                                                                              \
    } catch (const std::exception& error) {                                                   \
      threw = true;                                                                           \
      if (std::string(error.what()).find(words) == std::string::npos)                         \
        fail(__FILE__, __LINE__, std::string("expected '") + (words) + "': " + error.what()); \
    }                                                                                         \
    if (!threw) fail(__FILE__, __LINE__, "no exception from " #statement);                    \
  } while (false)

/// The runtime as the checkout starts it: once, on the device of this process.
inline std::shared_ptr<flex::RuntimeContext> start() {
  std::shared_ptr<flex::RuntimeContext> context;
  const auto status = flex::initializeRuntime(&context, 0);
  if (!context) fail(__FILE__, __LINE__, status.text);
  return context;
}

inline flex::AllocationDirective tensor_memory() {
  return flex::AllocationDirective(flex::PlacementPolicy::Bind, {0}, std::nullopt, flex::MemoryType::Tensor);
}
inline flex::AllocationDirective program_memory() {
  return flex::AllocationDirective(flex::PlacementPolicy::Bind, {0}, std::nullopt, flex::MemoryType::Program);
}

/// A transfer as the checkout makes it: parameters are destroyed when the launch has returned.
inline void transfer(flex::RuntimeStream* stream, void* host, size_t bytes, bool to_device,
                     const flex::CompositeAddress& address, std::shared_ptr<data_conversion_info> conversion = {}) {
  flex::DmaParams* params = flex::createDmaParams(host, bytes, to_device, &address, std::move(conversion));
  try {
    to_device ? stream->launchOperationH2D(params) : stream->launchOperationD2H(params);
  } catch (...) {
    flex::destroyDmaParams(params);
    throw;
  }
  flex::destroyDmaParams(params);
}

std::string read_text(const std::string& path);
void write_text(const std::string& path, const std::string& content);

/// The part of the checkout that loads and launches a SpyreCode directory.
class JobPlan {
 public:
  JobPlan(const std::string& folder, flex::RuntimeContext& context, flex::RuntimeStream* stream);
  ~JobPlan();
  void launch(flex::RuntimeStream* stream, const std::vector<const flex::CompositeAddress*>& tensors);
  const flex::CompositeAddress& memory() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};
