// How long a blocked call takes to return kPeerLost after its server was killed.
// usage: peer_loss PORT PID        kills PID, which serves on 127.0.0.1:PORT, and prints milliseconds
// The server is stopped first, so that the call is pending and its caller asleep when the end comes.
#include <verbena/deadline.hpp>
#include <verbena/kv.hpp>

#include <fmt/core.h>

#include <sys/types.h>
#include <csignal>

#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

namespace {

using verbena::Deadline;
using verbena::Status;
using verbena::ticks_now;
using verbena::ticks_per_us;

template <class Number>
bool parse(const char* text, Number& number) {
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), number);
  return error == std::errc{} && *end == '\0';
}

int measure(std::uint16_t port, pid_t server) {
  verbena::kv::ClientOptions options;
  options.port = port;
  auto client = verbena::kv::Client::connect(options);
  if (!client) {
    fmt::print(stderr, "peer_loss: {}\n", client.error().text());
    return 3;
  }
  const std::array key{std::byte{'k'}};
  std::array<std::byte, 64> value{};
  if ((*client)->put(key, value).status != Status::kOk || ::kill(server, SIGSTOP) != 0) return 3;
  // The signal takes its time: the server stands still when it does not answer any more.
  Status status = Status::kOk;
  while (status == Status::kOk)
    status = (*client)->get(key, value, Deadline::after(std::chrono::milliseconds{5})).status;
  std::atomic<std::uint64_t> killed{0};
  std::uint64_t returned = 0;
  {
    const std::jthread killer([&] {
      // Past the caller's spinning (200 us), well before its deadline (5 s).
      std::this_thread::sleep_for(std::chrono::milliseconds{50});
      killed = ticks_now();
      (void)::kill(server, SIGKILL);
    });
    status = (*client)->get(key, value).status;
    returned = ticks_now();
  }
  if (status != Status::kPeerLost) {
    fmt::print(stderr, "peer_loss: the call ended with '{}', not with 'peer lost'\n", to_string(status));
    return 3;
  }
  fmt::print("{:.3f}\n", static_cast<double>(returned - killed) / ticks_per_us() / 1000.0);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  std::uint16_t port = 0;
  pid_t server = 0;
  if (count != 3 || !parse(arguments[1], port) || !parse(arguments[2], server) || server <= 0) {
    std::fputs("usage: peer_loss PORT PID\n", stderr);
    return 2;
  }
  return measure(port, server);
}
