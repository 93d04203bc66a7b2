// A consumer of the installed package: names of statuses, errors and deadlines.
#include <verbena/deadline.hpp>
#include <verbena/error.hpp>
#include <verbena/status.hpp>

#include <chrono>
#include <cstdio>
#include <cstring>

int main() {
  using verbena::Deadline;
  const Deadline soon = Deadline::after(std::chrono::hours{1});
  if (soon.passed() || !Deadline::now().passed() || soon.left() <= std::chrono::minutes{59}) return 1;
  if (std::strcmp(verbena::to_string(verbena::Status::kPeerLost), "peer lost") != 0) return 2;
  const verbena::Error error(verbena::Status::kLimit, "open", 0, "too many files");
  if (std::strcmp(error.text(), "too many files") != 0) return 3;
  std::printf("basics: %s\n", verbena::to_string(error.status()));
}
