#include "runner.hpp"

#include "base/check.hpp"

#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <sstream>
#include <utility>

namespace verbena::sim {

namespace {

using Clock = std::chrono::steady_clock;

// --- what a child tells: a line for each fault, one for the result, and after it, in words, what was wrong

constexpr std::string_view kFault = "fault";
constexpr std::string_view kResult = "result";

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // Nobody listens any more.
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

std::string line_of(std::size_t place, const Fault& fault) {
  return fmt::format("{} {} {} {} {} {} {}\n", kFault, place, static_cast<unsigned>(fault.kind), fault.process,
                     fault.at, fault.time, fault.state);
}

std::string line_of(const RunResult& result) {
  return fmt::format("{} {} {} {} {} {} {} {}\n{}", kResult, result.hash, result.events, result.calls,
                     result.overlapping, result.undecided, result.restarts, result.time, result.wrong);
}

void read_fault(std::istream& from, RunResult& into) {
  std::size_t place = 0;
  unsigned kind = 0;
  Fault fault;
  from >> place >> kind >> fault.process >> fault.at >> fault.time;
  std::getline(from >> std::ws, fault.state);
  fault.kind = static_cast<Fault::Kind>(kind);
  if (into.faults.size() <= place) into.faults.resize(place + 1);
  into.faults[place] = std::move(fault);
}

/// False: the child did not come to a result.
bool read_result(const std::string& said, RunResult& into) {
  std::istringstream lines(said);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == kFault) read_fault(words, into);
    if (kind != kResult) continue;
    words >> into.hash >> into.events >> into.calls >> into.overlapping >> into.undecided >> into.restarts >> into.time;
    into.wrong.assign(std::istreambuf_iterator<char>(lines), {});
    return true;
  }
  return false;
}

// --- the child ----------------------------------------------------------------------------------------------------

RunResult run_twice(const Job& job, RunOptions options) {
  RunResult first = job.scenario->run(options);
  options.story = nullptr;
  options.on_fault = nullptr;
  const RunResult second = job.scenario->run(options);
  if (first.hash != second.hash || first.events != second.events || first.wrong != second.wrong)
    first.wrong = fmt::format(
        "seed {} does not repeat: {} events and hash {:016x} the first time, {} events and hash {:016x} the second.{}",
        options.seed, first.events, first.hash, second.events, second.hash,
        first.wrong == second.wrong ? ""
                                    : fmt::format(" The first said: {} The second: {}", first.wrong, second.wrong));
  return first;
}

[[noreturn]] void be_child(const Job& job, int tells, int errors) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  constexpr rlimit kNone{0, 0};
  ::setrlimit(RLIMIT_CORE, &kNone);
  ::dup2(errors, STDERR_FILENO);
  RunOptions options = job.options;
  options.on_fault = [tells](std::size_t place, const Fault& fault) { write_all(tells, line_of(place, fault)); };
  const RunResult result = job.is_twice ? run_twice(job, options) : job.scenario->run(options);
  std::string said;
  for (std::size_t i = 0; i < result.faults.size(); ++i) said += line_of(i, result.faults[i]);
  write_all(tells, said + line_of(result));
  std::fflush(stdout);
  ::_exit(0);
}

// --- the parent ---------------------------------------------------------------------------------------------------

class Child {
 public:
  Child(const Job& job, std::chrono::seconds most) : job_(job), until_(Clock::now() + most) {
    std::array<int, 2> ends{};
    VERBENA_CHECK(::pipe(ends.data()) == 0);
    errors_ = ::memfd_create("errors", MFD_CLOEXEC);
    VERBENA_CHECK(errors_ >= 0);
    std::fflush(stdout);
    process_ = ::fork();
    VERBENA_CHECK(process_ >= 0);
    if (process_ == 0) be_child(job_, ends[1], errors_);
    ::close(ends[1]);
    hears_ = ends[0];
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    ::close(hears_);
    ::close(errors_);
  }

  [[nodiscard]] int fd() const noexcept { return hears_; }
  [[nodiscard]] const Job& job() const noexcept { return job_; }
  [[nodiscard]] Clock::time_point until() const noexcept { return until_; }
  /// Takes what it has told. False: it has ended.
  bool listen() {
    std::array<char, 4096> bytes;
    const ssize_t count = ::read(hears_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) return true;
    if (count <= 0) return false;
    said_.append(bytes.data(), static_cast<std::size_t>(count));
    return true;
  }
  void kill() noexcept {
    is_late_ = true;
    ::kill(process_, SIGKILL);
  }
  /// Once it has ended.
  [[nodiscard]] RunResult result() {
    int status = 0;
    while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) {}
    RunResult result;
    if (!read_result(said_, result)) result.wrong = why_no_result(status);
    return result;
  }

 private:
  [[nodiscard]] std::string why_no_result(int status) const {
    if (is_late_) return "the run did not end in the time that it may take";
    const std::string how = WIFSIGNALED(status)
                                ? fmt::format("signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)))
                                : fmt::format("exit code {}", WEXITSTATUS(status));
    constexpr std::size_t kShown = 4000;
    std::array<char, kShown> bytes;
    const off_t size = ::lseek(errors_, 0, SEEK_END);
    const ssize_t count = ::pread(errors_, bytes.data(), bytes.size(), std::max<off_t>(0, size - off_t{kShown}));
    return fmt::format("the run crashed with {}: {}", how,
                       std::string_view(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(0, count))));
  }

  const Job job_;
  const Clock::time_point until_;
  pid_t process_ = -1;
  int hears_ = -1;
  int errors_ = -1;
  std::string said_;
  bool is_late_ = false;
};

using Children = std::vector<std::unique_ptr<Child>>;

/// Waits until a child tells something, or has no time any more.
void wait_for_any(const Children& children) {
  std::vector<pollfd> polled;
  Clock::time_point until = Clock::time_point::max();
  for (const auto& child : children) {
    polled.push_back({.fd = child->fd(), .events = POLLIN, .revents = 0});
    until = std::min(until, child->until());
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
  (void)::poll(polled.data(), polled.size(), static_cast<int>(std::max<std::int64_t>(0, left.count())));
  for (std::size_t i = 0; i < polled.size(); ++i)
    if (polled[i].revents == 0 && Clock::now() >= children[i]->until()) children[i]->kill();
}

bool has_something(const Child& child) {
  pollfd one{.fd = child.fd(), .events = POLLIN, .revents = 0};
  return ::poll(&one, 1, 0) > 0;
}

}  // namespace

void run_jobs(const Limits& limits, const std::function<std::optional<Job>()>& next,
              const std::function<void(const Job& job, RunResult result)>& done) {
  Children children;
  for (bool is_over = false;;) {
    while (!is_over && children.size() < limits.jobs) {
      const std::optional<Job> job = next();
      if (job) children.push_back(std::make_unique<Child>(*job, limits.each));
      is_over = !job;
    }
    if (children.empty()) return;
    wait_for_any(children);
    std::erase_if(children, [&](const std::unique_ptr<Child>& child) {
      if (!has_something(*child) || child->listen()) return false;
      done(child->job(), child->result());
      return true;
    });
  }
}

RunResult run_job(const Limits& limits, const Job& job) {
  RunResult result;
  bool is_given = false;
  run_jobs(
      limits,
      [&]() -> std::optional<Job> {
        if (std::exchange(is_given, true)) return std::nullopt;
        return job;
      },
      [&](const Job&, RunResult its) { result = std::move(its); });
  return result;
}

Shrunk shrink(const Limits& limits, const Job& job, const RunResult& failed, std::chrono::seconds most) {
  Shrunk shrunk{.without = job.options.without, .result = failed};
  const auto until = Clock::now() + most;
  // True: it fails without these, too.
  const auto try_without = [&](std::vector<std::size_t> without) {
    Job smaller = job;
    smaller.options.story = nullptr;
    smaller.options.without = without;
    ++shrunk.runs;
    RunResult result = run_job(limits, smaller);
    if (result.wrong.empty()) return false;
    shrunk.without = std::move(without);
    shrunk.result = std::move(result);
    return true;
  };
  // First all at once that the run has left out by itself.
  std::vector<std::size_t> without = shrunk.without;
  for (std::size_t i = 0; i < failed.faults.size(); ++i)
    if (failed.faults[i].state.empty() && std::ranges::find(without, i) == without.end()) without.push_back(i);
  if (without.size() > shrunk.without.size()) (void)try_without(std::move(without));
  for (bool is_smaller = true; is_smaller;) {
    is_smaller = false;
    for (std::size_t i = 0; i < failed.faults.size(); ++i) {
      if (std::ranges::find(shrunk.without, i) != shrunk.without.end()) continue;
      if (Clock::now() > until) {
        shrunk.is_least = false;
        return shrunk;
      }
      without = shrunk.without;
      without.push_back(i);
      is_smaller |= try_without(std::move(without));
    }
  }
  return shrunk;
}

}  // namespace verbena::sim
