// The processes of verbena-perf mesh: all started here, or this one alone.
#include "programs/perf_mesh.hpp"

#include "base/error.hpp"
#include "base/text.hpp"
#include "host/thread.hpp"
#include "programs/files.hpp"
#include "programs/line.hpp"
#include "programs/perf.hpp"

#include <fmt/core.h>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <system_error>

namespace verbena::programs {
namespace {

/// A directory where the processes started here find each other; removed with this object.
class MeetingPlace {
 public:
  [[nodiscard]] Result<void> open() {
    std::error_code why;
    std::string name = (std::filesystem::temp_directory_path(why) / "verbena-perf-XXXXXX").string();
    if (why || ::mkdtemp(name.data()) == nullptr)
      return fail_system("mkdtemp", errno, "a directory for the processes to find each other");
    path_ = name;
    return {};
  }
  MeetingPlace() = default;
  MeetingPlace(const MeetingPlace&) = delete;
  MeetingPlace& operator=(const MeetingPlace&) = delete;
  ~MeetingPlace() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

/// The processes started by this one.
class Children {
 public:
  Children() = default;
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;
  ~Children() { end_all(); }

  template <class Run>
  [[nodiscard]] Result<void> start(Run&& run) {
    std::fflush(nullptr);  // Otherwise the child would print it again.
    const pid_t pid = ::fork();
    if (pid < 0) return fail_system("fork", errno, "starting a process of the mesh");
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::_exit(static_cast<int>(run()));
    }
    pids_.push_back(pid);
    return {};
  }

  /// Waits until all have ended. Each bounds its own waits; once one fails, the others are killed.
  [[nodiscard]] Exit await() {
    Exit all = Exit::kDone;
    while (!pids_.empty()) {
      int status = 0;
      const pid_t pid = ::waitpid(-1, &status, 0);
      if (pid < 0 && errno == EINTR) continue;
      if (pid < 0) return error_exit("waitpid: {}", std::generic_category().message(errno));
      if (std::erase(pids_, pid) == 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) continue;
      if (all != Exit::kDone) continue;  // It was killed on purpose.
      all = Exit::kError;
      if (WIFSIGNALED(status)) complain("a process of the mesh was ended by signal {}", WTERMSIG(status));
      end_all();
    }
    return all;
  }

 private:
  void end_all() noexcept {
    for (const pid_t pid : pids_) ::kill(pid, SIGKILL);
    for (const pid_t pid : pids_) ::waitpid(pid, nullptr, 0);
    pids_.clear();
  }
  std::vector<pid_t> pids_;
};

Exit run_process(const MeshArguments& arguments, std::span<const unsigned> cpus) {
  const unsigned id = arguments.mesh.id;
  const auto print = [](std::string_view text) {
    return write_all(STDOUT_FILENO, "standard output", bytes_of_text(text));
  };
  const auto run = [&]() -> Result<void> {
    const auto announce = [&]() -> Result<void> {
      if (!cpus.empty()) VERBENA_TRY(host::pin_this_thread(cpus[id % cpus.size()]));
      return id == 0 && !arguments.json ? print(mesh_announcement(arguments)) : Result<void>();
    };
    VERBENA_ASSIGN(const auto result, measure_mesh(arguments, announce));
    if (id != 0) return {};
    result->cpus.assign(cpus.begin(), cpus.end());
    return print(arguments.json ? mesh_json(*result) : mesh_text(*result));
  };
  const auto done = run();
  return done ? Exit::kDone
              : error_exit("process {}: {}: {}", id, to_string(done.error().status()), done.error().text());
}

/// One cpu per process; any cpu if there are not enough and none was named.
std::vector<unsigned> cpus_for(const MeshArguments& arguments) {
  const std::vector<unsigned> allowed = allowed_cpus();
  const unsigned processes = arguments.mesh.processes;
  if (arguments.cpu) return perf_cpus(arguments.cpu, processes);
  return processes <= allowed.size() ? perf_cpus(allowed.front(), processes) : std::vector<unsigned>();
}

}  // namespace

Exit run_mesh(const MeshArguments& arguments) {
  MeshArguments process = arguments;
  if (arguments.id) {
    process.mesh.id = *arguments.id;
    std::vector<unsigned> cpus;
    if (arguments.cpu) cpus.assign(1, *arguments.cpu);
    return run_process(process, cpus);
  }
  MeetingPlace place;
  Children children;
  const auto start = [&]() -> Result<void> {
    VERBENA_TRY(place.open());
    process.directory = place.path();
    const std::vector<unsigned> cpus = cpus_for(arguments);
    for (process.mesh.id = 0; process.mesh.id < process.mesh.processes; ++process.mesh.id)
      VERBENA_TRY(children.start([&] { return run_process(process, cpus); }));
    return {};
  };
  if (const auto started = start(); !started)
    return error_exit("{}: {}", to_string(started.error().status()), started.error().text());
  return children.await();
}

}  // namespace verbena::programs
