// SPDX-License-Identifier: Apache-2.0
#include "dxp/server.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

namespace spyre::sdk {
namespace {

/// A file descriptor that is closed.
class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { close_now(); }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&&) = delete;
  int get() const { return fd_; }
  bool good() const { return fd_ >= 0; }
  void close_now() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_;
};

[[noreturn]] void failed(const std::string& what) { throw Failure(what + ": " + std::strerror(errno)); }

/// A path of the folder that is short enough for a socket's address, however long the folder's own name is.
std::string short_path(const Fd& folder, const std::string& name) {
  return "/proc/self/fd/" + std::to_string(folder.get()) + "/" + name;
}

Fd connect_to(const Fd& folder, const std::string& name) {
  Fd found(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!found.good()) failed("cannot make a socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = short_path(folder, name);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  if (connect(found.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return Fd(-1);
  return found;
}

/// In the child: an environment in which this package's own compiler is found, not the checkout's of the same name.
[[noreturn]] void run_server(const Compiler& compiler, const fs::path& folder, const std::string& name, int ready) {
  setsid();
  const std::string log = (folder / (name + ".log")).string(), socket = (folder / name).string();
  const int in = open("/dev/null", O_RDONLY), out = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
  dup2(in, 0);
  dup2(out, 1);
  dup2(out, 2);
  for (const char* variable : {"LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "PYTHONSTARTUP"}) unsetenv(variable);
  setenv("PYTHONPATH", compiler.root.c_str(), 1);
  setenv("PYTHONSAFEPATH", "1", 1);
  setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0", 1);
  if (chdir("/") != 0) _exit(127);
  const std::string fd = std::to_string(ready);
  execl(compiler.python.c_str(), compiler.python.c_str(), "-m", "torch_spyre.sdk.server", socket.c_str(), fd.c_str(),
        static_cast<char*>(nullptr));
  dprintf(2, "cannot run %s: %s\n", compiler.python.c_str(), std::strerror(errno));
  _exit(127);
}

/// Returns when the server listens. It is a grandchild, so that nobody waits for its end.
void start(const Compiler& compiler, const fs::path& folder, const std::string& name) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) failed("cannot make a pipe");
  Fd ready(ends[0]), theirs(ends[1]);
  const pid_t child = fork();
  if (child < 0) failed("cannot start a process");
  if (child == 0) {
    if (fork() != 0) _exit(0);
    fcntl(ends[1], F_SETFD, 0);
    run_server(compiler, folder, name, ends[1]);
  }
  waitpid(child, nullptr, 0);
  theirs.close_now();
  char byte;
  ssize_t got;
  while ((got = read(ready.get(), &byte, 1)) < 0 && errno == EINTR) {
  }
  if (got == 1) return;
  std::string why;
  try {
    why = read_file(folder / (name + ".log"));
  } catch (const Failure& failure) {
    why = failure.what();
  }
  throw Failure("the compile server (" + compiler.python + " -m torch_spyre.sdk.server) did not start:\n" + why);
}

Fd connect_or_start(const Compiler& compiler, const fs::path& folder, const Fd& opened, const std::string& name) {
  Fd found = connect_to(opened, name);
  if (found.good()) return found;
  const fs::path lock_file = folder / (name + ".lock");
  Fd lock(open(lock_file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock.good() || flock(lock.get(), LOCK_EX) != 0) failed("cannot lock " + lock_file.string());
  Fd theirs = connect_to(opened, name);  // another client may have been faster
  if (theirs.good()) return theirs;
  start(compiler, folder, name);
  return connect_to(opened, name);
}

void send_all(const Fd& to, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t sent = send(to.get(), text.data() + at, text.size() - at, MSG_NOSIGNAL);
    if (sent < 0 && errno != EINTR) return;  // the reply will be missing
    if (sent > 0) at += static_cast<size_t>(sent);
  }
}

std::string receive_all(const Fd& from) {
  std::string text;
  char part[4096];
  while (true) {
    const ssize_t got = read(from.get(), part, sizeof part);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(part, static_cast<size_t>(got));
  }
}

}  // namespace

Reply ask_server(const Compiler& compiler, const fs::path& bundle, const fs::path& entry) {
  const fs::path folder = runtime_folder();
  const std::string name = "dxp-" + compiler.stamp.substr(0, 16);
  Fd opened(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.good()) failed("cannot open " + folder.string());
  // A server that is just ending takes the connection with it.
  for (int attempt = 0; attempt < 3; ++attempt) {
    Fd server = connect_or_start(compiler, folder, opened, name);
    if (!server.good()) continue;
    send_all(server, bundle.string() + "\n" + entry.string() + "\n");
    const std::string reply = receive_all(server);
    if (reply.starts_with("ok\n")) return {true, reply.substr(3)};
    if (reply.starts_with("error\n")) return {false, reply.substr(6)};
  }
  throw Failure("the compile server gave no answer; its log is " + (folder / (name + ".log")).string());
}

}  // namespace spyre::sdk
