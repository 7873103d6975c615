// SPDX-License-Identifier: Apache-2.0
#include "comms/rendezvous.h"

#include <unistd.h>

#include <atomic>
#include <charconv>
#include <optional>
#include <sstream>
#include <thread>

#include "common/folders.h"
#include "comms/sockets.h"

namespace spyre_comms::internal {
namespace {

using spyre::card::Error;
using spyre::sdk::variable;
namespace fs = std::filesystem;
using Time = std::chrono::steady_clock;

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

std::string link_of(const char* path) {
  char text[256] = "";
  const ssize_t n = readlink(path, text, sizeof text);
  return n > 0 ? std::string(text, static_cast<size_t>(n)) : "";
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

std::string text_of(const Place& place) {
  std::ostringstream text;
  text << place.host << " " << place.mailbox.process << " " << place.mailbox.fd << " " << place.mailbox.bytes << " "
       << place.address << " " << place.port;
  return text.str();
}

std::optional<Place> read_place(std::istream& text) {
  Place place;
  auto& mailbox = place.mailbox;
  if (text >> place.host >> mailbox.process >> mailbox.fd >> mailbox.bytes >> place.address >> place.port) return place;
  return std::nullopt;
}

[[noreturn]] void did_not_come(const World& world, const std::string& who, const std::string& where) {
  throw Error("CollectiveTimeout", who + " of " + std::to_string(world.size) + " did not come to " + where +
                                       " within " + std::to_string(world.timeout.count() / 1000) +
                                       " s (SPYRE_COMMS_TIMEOUT_S)");
}

// On one host

fs::path folder_of(const World& world) {
  return spyre::sdk::own_folder(spyre::sdk::runtime_folder() / world.name, "SPYRE_RUNTIME_DIR");
}

fs::path file_of(const World& world, int rank) { return folder_of(world) / ("rank-" + std::to_string(rank)); }

std::optional<Place> read_place_file(const fs::path& file) {
  std::error_code error;
  if (!fs::exists(file, error)) return std::nullopt;
  std::istringstream text(spyre::sdk::read_file(file));
  const std::optional<Place> place = read_place(text);
  std::string born;
  if (!place || !(text >> born)) return std::nullopt;
  if (born != birth(place->mailbox.process)) return std::nullopt;  // left by a process that was killed
  return place;
}

std::vector<Place> meet_in_files(const World& world, Place own, Deadline deadline) {
  own.address = "localhost";
  const fs::path file = file_of(world, world.rank), partial = file.string() + ".part";
  spyre::sdk::write_file(partial, text_of(own) + " " + birth(own.mailbox.process) + "\n");
  fs::rename(partial, file);
  std::vector<Place> found(static_cast<size_t>(world.size));
  for (int rank = 0; rank < world.size; ++rank) {
    while (true) {
      if (const auto place = read_place_file(file_of(world, rank))) {
        found[static_cast<size_t>(rank)] = *place;
        break;
      }
      if (Time::now() > deadline) {
        leave(world);
        did_not_come(world, "rank " + std::to_string(rank), world.master + ":" + variable("MASTER_PORT"));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  return found;
}

// Over several hosts

std::string missing(const std::vector<std::optional<Place>>& found) {
  std::string ranks;
  for (size_t rank = 0; rank < found.size(); ++rank)
    if (!found[rank]) ranks += (ranks.empty() ? "rank " : ", ") + std::to_string(rank);
  return ranks;
}

/// Where others reach who called: rank 0's own host calls itself by a name that means nothing elsewhere.
std::string reachable(const std::string& peer) {
  const bool loops = peer == "::1" || peer.starts_with("127.") || peer.starts_with("::ffff:127.");
  return loops || peer.empty() ? "-" : peer;
}

std::vector<Place> meet_as_first(const World& world, const Place& own, Deadline deadline) {
  const Socket listener = listen_at(world.port, "SPYRE_COMMS_PORT");
  std::vector<std::optional<Place>> found(static_cast<size_t>(world.size));
  std::vector<Socket> callers(static_cast<size_t>(world.size));
  found[0] = own;
  while (!missing(found).empty()) {
    std::optional<Socket> caller = accept_until(listener, deadline);
    if (!caller) did_not_come(world, missing(found), "port " + std::to_string(world.port));
    // Whoever calls without a word is not waited for.
    const auto line = receive_line(*caller, std::min(deadline, Time::now() + std::chrono::seconds(10)));
    std::istringstream text(line.value_or(""));
    std::string name;
    int rank = -1;
    if (!(text >> name >> rank) || name != world.name || rank < 1 || rank >= world.size) continue;
    std::optional<Place> place = read_place(text);
    if (!place) continue;
    const auto at = static_cast<size_t>(rank);
    // A rank that called before and calls again has lost its connection.
    place->address = reachable(caller->peer());
    found[at] = place;
    callers[at] = std::move(*caller);
  }
  std::vector<Place> places;
  std::string all;
  for (const auto& place : found) {
    places.push_back(*place);
    all += (all.empty() ? "" : " ") + text_of(*place);
  }
  for (int rank = 1; rank < world.size; ++rank)
    if (!send_line(callers[static_cast<size_t>(rank)], all))
      throw Error("PeerLost", "rank " + std::to_string(rank) + " went away while the ranks met");
  return places;
}

std::vector<Place> meet_at_first(const World& world, const Place& own, Deadline deadline) {
  const std::string where = world.master + ":" + std::to_string(world.port);
  do {
    const std::optional<Socket> first = connect_until(world.master, world.port, deadline);
    if (!first) break;
    if (!send_line(*first, world.name + " " + std::to_string(world.rank) + " " + text_of(own))) continue;
    const auto line = receive_line(*first, deadline);
    std::istringstream text(line.value_or(""));
    std::vector<Place> places;
    while (auto place = read_place(text)) {
      if (place->address == "-") place->address = world.master;
      places.push_back(*place);
    }
    if (places.size() == static_cast<size_t>(world.size)) return places;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // another job was there
  } while (Time::now() < deadline);
  did_not_come(world, "rank 0", where);
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
  world.local_size = number("LOCAL_WORLD_SIZE", world.size, 1);
  if (world.local_size > world.size)
    throw Error("InvalidArgument", "LOCAL_WORLD_SIZE is " + std::to_string(world.local_size) + " and WORLD_SIZE " +
                                       std::to_string(world.size) + "; a host has at most all ranks");
  world.master = variable("MASTER_ADDR");
  const std::string links = variable("SPYRE_LINKS");
  if (!links.empty() && links != "auto" && links != "tcp")
    throw Error("InvalidArgument", "SPYRE_LINKS is '" + links + "'; it is auto or tcp");
  world.tcp_within = links == "tcp";
  if (world.several_hosts()) {
    if (world.master.empty())
      throw Error("InvalidArgument", "MASTER_ADDR is not set; ranks of several hosts meet at the host that it names");
    const int beside_the_store = number("MASTER_PORT", 0, 1) + 1;
    world.port = number("SPYRE_COMMS_PORT", beside_the_store, 1);
    if (world.port > 65535 || (world.port == 1 && beside_the_store == 1))
      throw Error("InvalidArgument",
                  "ranks of several hosts meet at SPYRE_COMMS_PORT, by default MASTER_PORT + 1; set "
                  "one of them to a port");
  }
  static std::atomic<int> times{0};
  const std::string job = world.master + " " + variable("MASTER_PORT") + " " + variable("TORCHELASTIC_RUN_ID") + " " +
                          variable("TORCHELASTIC_RESTART_COUNT") + " " + std::to_string(world.size);
  std::ostringstream name;
  name << "comms-" << std::hex << std::hash<std::string>()(job) << "-" << std::dec << times++;
  world.name = name.str();
  return world;
}

Place place_here(const World& world, const spyre::card::LinkGroup::Address& mailbox, int port) {
  Place place;
  std::istringstream boot(spyre::sdk::read_file("/proc/sys/kernel/random/boot_id"));
  boot >> place.host;
  place.host +=
      "/" + link_of("/proc/self/ns/pid") + "/" + link_of("/proc/self/ns/net") + "/" + std::to_string(getuid());
  if (world.tcp_within) place.host += "/" + std::to_string(world.rank);
  place.mailbox = mailbox;
  place.port = port;
  return place;
}

std::vector<Place> meet(const World& world, const Place& own) {
  const Deadline deadline = Time::now() + world.timeout;
  if (!world.several_hosts()) return meet_in_files(world, own, deadline);
  return world.rank == 0 ? meet_as_first(world, own, deadline) : meet_at_first(world, own, deadline);
}

void leave(const World& world) {
  if (world.several_hosts()) return;
  std::error_code error;
  fs::remove(file_of(world, world.rank), error);
  fs::remove(folder_of(world), error);  // if this was the last rank
}

}  // namespace spyre_comms::internal
