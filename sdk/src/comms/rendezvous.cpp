// SPDX-License-Identifier: Apache-2.0
#include "comms/rendezvous.h"

#include <unistd.h>

#include <atomic>
#include <charconv>
#include <optional>
#include <sstream>
#include <thread>

#include "common/folders.h"

namespace spyre_comms::internal {
namespace {

using spyre::card::Error;
using spyre::card::LinkGroup;
using spyre::sdk::variable;
namespace fs = std::filesystem;

int number(const char* name, int absent, int lowest) {
  const std::string text = variable(name);
  if (text.empty()) return absent;
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < lowest)
    throw Error("InvalidArgument", std::string(name) + " is '" + text + "'; it must be a whole number of at least " +
                                       std::to_string(lowest));
  return value;
}

/// When a process began, which tells it from a later one with the same number; empty if there is none.
std::string birth(int process) {
  try {
    const std::string stat = spyre::sdk::read_file("/proc/" + std::to_string(process) + "/stat");
    std::istringstream fields(stat.substr(stat.rfind(')') + 1));  // the name before may hold blanks
    std::string field;
    for (int i = 3; i <= 22; ++i) fields >> field;
    return field;
  } catch (const std::exception&) {
    return "";
  }
}

fs::path folder_of(const World& world) {
  return spyre::sdk::own_folder(spyre::sdk::runtime_folder() / world.name, "SPYRE_RUNTIME_DIR");
}

fs::path file_of(const World& world, int rank) { return folder_of(world) / ("rank-" + std::to_string(rank)); }

std::optional<LinkGroup::Address> read_address(const fs::path& file) {
  std::error_code error;
  if (!fs::exists(file, error)) return std::nullopt;
  std::istringstream text(spyre::sdk::read_file(file));
  LinkGroup::Address address;
  std::string born;
  if (!(text >> address.process >> address.fd >> address.bytes >> born)) return std::nullopt;
  if (born != birth(address.process)) return std::nullopt;  // left by a process that was killed
  return address;
}

}  // namespace

World read_world() {
  World world;
  world.size = number("WORLD_SIZE", 1, 1);
  world.rank = number("RANK", 0, 0);
  world.timeout = std::chrono::seconds(number("SPYRE_COMMS_TIMEOUT_S", 300, 1));
  if (world.rank >= world.size)
    throw Error("InvalidArgument", "RANK is " + std::to_string(world.rank) + " and WORLD_SIZE " +
                                       std::to_string(world.size) + "; ranks count from 0");
  const int local = number("LOCAL_WORLD_SIZE", world.size, 1);
  if (local != world.size)
    throw Error("InvalidArgument", "LOCAL_WORLD_SIZE is " + std::to_string(local) + " and WORLD_SIZE " +
                                       std::to_string(world.size) + "; all ranks must run on one host");
  static std::atomic<int> times{0};
  const std::string job = variable("MASTER_ADDR") + " " + variable("MASTER_PORT") + " " +
                          variable("TORCHELASTIC_RUN_ID") + " " + variable("TORCHELASTIC_RESTART_COUNT") + " " +
                          std::to_string(world.size);
  std::ostringstream name;
  name << "comms-" << std::hex << std::hash<std::string>()(job) << "-" << std::dec << times++;
  world.name = name.str();
  return world;
}

std::vector<LinkGroup::Address> meet(const World& world, const LinkGroup::Address& own) {
  std::ostringstream text;
  text << own.process << " " << own.fd << " " << own.bytes << " " << birth(own.process) << "\n";
  const fs::path file = file_of(world, world.rank), partial = file.string() + ".part";
  spyre::sdk::write_file(partial, text.str());
  fs::rename(partial, file);
  std::vector<LinkGroup::Address> found(static_cast<size_t>(world.size));
  const auto deadline = std::chrono::steady_clock::now() + world.timeout;
  for (int rank = 0; rank < world.size; ++rank) {
    while (true) {
      if (const auto address = read_address(file_of(world, rank))) {
        found[static_cast<size_t>(rank)] = *address;
        break;
      }
      if (std::chrono::steady_clock::now() > deadline) {
        leave(world);
        throw Error("CollectiveTimeout",
                    "rank " + std::to_string(rank) + " of " + std::to_string(world.size) + " did not come to " +
                        variable("MASTER_ADDR") + ":" + variable("MASTER_PORT") + " within " +
                        std::to_string(world.timeout.count() / 1000) + " s (SPYRE_COMMS_TIMEOUT_S)");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  return found;
}

void leave(const World& world) {
  std::error_code error;
  fs::remove(file_of(world, world.rank), error);
  fs::remove(folder_of(world), error);  // if this was the last rank
}

}  // namespace spyre_comms::internal
