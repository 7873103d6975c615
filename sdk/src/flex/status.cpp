// SPDX-License-Identifier: Apache-2.0
// Status files: what spyre-smi shows of this process. A thread writes one every SPYRE_SMI_INTERVAL seconds; that of a
// process that has ended is removed by spyre-smi.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "common/folders.h"
#include "flex/runtime.h"

namespace flex::internal {
namespace {

namespace fs = std::filesystem;

std::string start_ticks() {
  const std::string stat = spyre::sdk::read_file("/proc/self/stat");
  std::istringstream fields(stat.substr(stat.rfind(')') + 1));  // the name before may hold blanks
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  return field;
}

std::string process_name() {
  std::string name;
  for (char c : spyre::sdk::read_file("/proc/self/comm"))
    if (static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\') name += c;
  return name;
}

std::string record(const spyre::card::Card& card, int device, const std::string& ticks, uint64_t& peak) {
  const spyre::card::Counters c = card.counters();
  const uint64_t used = card.allocated_bytes();
  peak = std::max(peak, used);
  const double now = static_cast<double>(host_now_ns()) / 1e9;
  std::ostringstream text;
  text << std::fixed << "{\"pid\": " << getpid() << ", \"start_ticks\": " << ticks << ", \"name\": \"" << process_name()
       << "\", \"time\": " << now << ", \"cards\": [{\"device\": " << device
       << ", \"name\": \"Spyre (software card)\", \"memory_total_bytes\": " << card.total_bytes()
       << ", \"memory_used_bytes\": " << used << ", \"memory_peak_bytes\": " << peak << ", \"counters\": {";
  const std::pair<const char*, uint64_t> counters[] = {{"launches", c.launches},
                                                       {"busy_ns", c.compute_ns},
                                                       {"clock_ns", card.clock_ns()},
                                                       {"memory_read_bytes", c.memory_read_bytes},
                                                       {"memory_write_bytes", c.memory_write_bytes},
                                                       {"lx_read_bytes", c.lx_read_bytes},
                                                       {"lx_write_bytes", c.lx_write_bytes},
                                                       {"ring_bytes", c.ring_bytes},
                                                       {"dma_in_bytes", c.dma_in_bytes},
                                                       {"dma_out_bytes", c.dma_out_bytes}};
  const char* separator = "";
  for (const auto& [name, value] : counters) {
    text << separator << '"' << name << "\": " << value;
    separator = ", ";
  }
  text << "}}]}";
  return text.str();
}

double interval_s() {
  const std::string text = spyre::sdk::variable("SPYRE_SMI_INTERVAL");
  if (text.empty()) return 1.0;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return *end == 0 && value >= 0 && value < 1e6 ? value : 1.0;
}

}  // namespace

void publish_status(const spyre::card::Card& card, int device) {
  const double interval = interval_s();
  if (interval == 0) return;
  std::thread([&card, device, interval] {
    try {  // what cannot be written is not shown
      const fs::path file = spyre::sdk::runtime_folder() / (std::to_string(getpid()) + ".json");
      const fs::path partial = fs::path(file).replace_extension(".new");
      const std::string ticks = start_ticks();
      uint64_t peak = 0;
      while (true) {
        spyre::sdk::write_file(partial, record(card, device, ticks, peak));
        fs::rename(partial, file);
        std::this_thread::sleep_for(std::chrono::duration<double>(interval));
      }
    } catch (const std::exception&) {
      return;
    }
  }).detach();
}

}  // namespace flex::internal
