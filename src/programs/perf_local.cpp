// The server that --local starts, in a process of its own.
#include "programs/perf.hpp"

#include "base/error.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>

namespace verbena::programs {

Result<PerfLocalServer> PerfLocalServer::start(PerfServeArguments arguments) {
  constexpr std::chrono::seconds kStartTimeout{20};
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return fail_system("pipe2", errno, "starting a server");
  PerfLocalServer server{Fd(ends[0])};
  Fd theirs(ends[1]);
  std::fflush(nullptr);  // The child would print it again.
  server.pid_ = ::fork();
  if (server.pid_ < 0) return fail_system("fork", errno, "starting a server");
  if (server.pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    arguments.where.port = 0;
    arguments.port_to = theirs.get();
    ::_exit(static_cast<int>(run_perf_server(arguments)));
  }
  theirs.reset();
  const bool in_time = wait_readable(server.pipe_.get(), Deadline::after(kStartTimeout));
  if (!in_time || ::read(server.pipe_.get(), &server.port_, sizeof server.port_) != sizeof server.port_)
    return fail(in_time ? Status::kPeerLost : Status::kTimedOut, "verbena-perf", 0,
                "the server that --local starts did not get ready; its own message says why");
  return server;
}

PerfLocalServer::~PerfLocalServer() {
  constexpr std::chrono::seconds kEndTimeout{2};
  if (pid_ <= 0) return;
  if (!wait_readable(pipe_.get(), Deadline::after(kEndTimeout))) ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

}  // namespace verbena::programs
