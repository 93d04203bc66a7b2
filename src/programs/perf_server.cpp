// The server's end of verbena-perf: a listener, and the threads that answer its clients.
#include "base/text.hpp"
#include "programs/files.hpp"
#include "programs/perf.hpp"
#include "programs/perf_mark.hpp"

#include "base/error.hpp"
#include "host/thread.hpp"

#include <verbena/rdma.hpp>

#include <fmt/core.h>

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <vector>

namespace verbena::programs {
namespace {

using perf_wire::Ask;
using perf_wire::Reply;
using perf_wire::Request;
using perf_wire::Serving;
using rdma::Connection;

/// Longest silence in a ping-pong that has its own thread.
constexpr std::chrono::hours kLongestSilence{1};

double wall_seconds() noexcept { return static_cast<double>(ticks_now()) / ticks_per_us() / 1e6; }

/// Processor time that this process has used.
double cpu_seconds() noexcept {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

/// The listener's thread handles messages, or with Serving::kThread one thread per connection.
class Server final : private rdma::Handler {
 public:
  explicit Server(const PerfServeArguments& arguments) : arguments_(arguments) {}
  /// Serves until the given number of clients has had complete runs, or without an end. \thread main
  [[nodiscard]] Result<void> serve() {
    rdma::Options options = arguments_.where;
    options.handler = this;
    options.receive = arguments_.serving == Serving::kHandler ? rdma::Receive::kHandler : rdma::Receive::kQueue;
    options.max_connections = perf_wire::kMaxConnections;
    options.max_message_bytes = kPerfMostMessage;
    VERBENA_ASSIGN(const auto listener, rdma::Listener::start(options));
    VERBENA_TRY(report(*listener));
    std::unique_lock lock(mutex_);
    // No deadline: a server waits for clients.
    changed_.wait(lock, [this] { return is_done(); });
    lock.unlock();
    listener->stop();  // Ends the connections, and with them their threads.
    lock.lock();
    changed_.wait(lock, [this] { return workers_.load(std::memory_order_relaxed) == 0; });
    return {};
  }

 private:
  /// A connection that has asked for a run, or to join one.
  struct Client {
    Request request;           ///< `connections` is 0 if it is not a run's first, or if its run is over.
    rdma::Memory memory;       ///< Exported by physical address.
    std::uint64_t others = 0;  ///< Runs at the same time.
    double begin = wall_seconds();
    double cpu = cpu_seconds();  ///< Processor time of this process at that moment.
  };

  // rdma::Handler
  void on_accept(Connection& connection) noexcept override {
    if (arguments_.serving == Serving::kHandler) return;
    workers_.fetch_add(1, std::memory_order_relaxed);
    auto started = host::start_thread("perf-receive", [this, kept = connection.keep()]() mutable {
      receive_from(*kept);
      kept.reset();
      const std::lock_guard lock(mutex_);  // The server exists until this is released.
      workers_.fetch_sub(1, std::memory_order_relaxed);
      changed_.notify_all();
    });
    if (started) return started->detach();  // Counted, and awaited at the end.
    workers_.fetch_sub(1, std::memory_order_relaxed);
    complain("{}: {}", to_string(started.error().status()), started.error().text());
  }

  void on_message(Connection& connection, const rdma::Message& message) noexcept override {
    const Status status = handle(connection, message);
    if (status == Status::kOk) return;
    leave(connection, status);
    connection.close();
  }

  void on_disconnect(Connection& connection, Status reason) noexcept override {
    // A connection's own thread notices by itself.
    if (arguments_.serving == Serving::kHandler) leave(connection, reason);
  }

  /// With Serving::kThread.
  void receive_from(Connection& connection) noexcept {
    std::vector<std::byte> buffer(sizeof(Request));
    Status status = Status::kOk;
    while (status == Status::kOk) {
      // No deadline: the end of the connection or of the listener ends it.
      const auto message = connection.receive(buffer, Deadline::never());
      if (message) {
        status = handle(connection, *message);
      } else if (message.error() == Status::kBufferTooSmall && connection.waiting_bytes() <= kPerfMostMessage) {
        buffer.resize(connection.waiting_bytes());
      } else {
        status = message.error();
      }
    }
    leave(connection, status);
  }

  /// Does what a message asks for. Anything but kOk: close the connection.
  [[nodiscard]] Status handle(Connection& connection, const rdma::Message& message) noexcept {
    const bool is_written = message.kind == rdma::Message::Kind::kWritten;
    switch (static_cast<Ask>(is_written ? *message.immediate : static_cast<std::uint32_t>(message.data.front()))) {
      case Ask::kNothing: return Status::kOk;
      case Ask::kAnswer:
        if (!is_written) return connection.send(message.data);
        return connection.write_with_immediate(message.data, static_cast<std::uint32_t>(Ask::kNothing));
      case Ask::kRun: return on_request(connection, message.data);
      case Ask::kBye: return on_bye(connection);
    }
    return Status::kProtocol;
  }

  [[nodiscard]] Status on_request(Connection& connection, std::span<const std::byte> message) noexcept {
    const auto request = perf_wire::decode_request(message);
    if (!request) {
      complain("refused a client with a malformed request");
      return Status::kProtocol;
    }
    Reply reply{.serving = arguments_.serving};
    const auto physical = admit(connection, *request);
    if (physical) {
      reply.physical = *physical;
    } else {
      const std::string_view why = physical.error().text();
      std::ranges::copy(why.substr(0, reply.refusal.size() - 1), reply.refusal.begin());
    }
    const Status sent = connection.send(perf_wire::bytes_of(reply));
    const bool plays = physical && request->test == PerfTest::kPingPong;
    return sent == Status::kOk && plays ? play_ping_pong(connection, request->bytes) : sent;
  }

  /// The physical address of the client's memory, for tests that use it.
  [[nodiscard]] Result<std::uint64_t> admit(Connection& connection, const Request& request) {
    constexpr const char* kCall = "verbena-perf";
    const PerfBy by = facts_of(request.test).by;
    if (by == PerfBy::kWindow && request.bytes > connection.window().size())
      return fail(Status::kOutOfRange, kCall, 0, "the server's windows have {} B: start it with --window {}",
                  connection.window().size(), request.bytes);
    if (arguments_.serving == Serving::kHandler && request.test == PerfTest::kPingPong && request.connections != 1)
      return fail(Status::kUnsupported, kCall, 0,
                  "the listener's thread polls for one ping-pong: take one thread, or a server of --serve thread");
    const std::lock_guard lock(mutex_);
    const auto [client, is_new] = clients_.try_emplace(&connection);
    if (!is_new) return fail(Status::kProtocol, kCall, 0, "a connection is in one run");
    client->second.request = request;
    for (auto& [other, its] : clients_) {
      if (request.connections == 0 || its.request.connections == 0 || other == &connection) continue;
      ++its.others;
      ++client->second.others;
    }
    if (by != PerfBy::kPhysical) return 0;
    const auto physical = export_memory(connection, client->second);
    if (!physical) clients_.erase(client);
    return physical;
  }

  [[nodiscard]] static Result<std::uint64_t> export_memory(Connection& connection, Client& client) {
    VERBENA_ASSIGN(client.memory, connection.allocate(client.request.bytes));
    VERBENA_ASSIGN(const std::uint64_t physical, connection.export_physical(client.memory));
    // The client uses it as one contiguous piece.
    constexpr std::size_t kPage = 4096;
    for (std::size_t offset = 0; offset < client.request.bytes; offset += kPage) {
      VERBENA_ASSIGN(const std::uint64_t at, connection.physical_address_of(&client.memory.bytes()[offset]));
      if (at - physical == offset) continue;
      return fail(Status::kLimit, "verbena-perf", 0,
                  "the server's memory has only {} B in one piece of physical memory: transparent hugepages for shared "
                  "memory make longer ones (docs/physical-addressing.md)",
                  offset);
    }
    return physical;
  }

  [[nodiscard]] Status on_bye(Connection& connection) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = clients_.find(&connection);
    if (found == clients_.end() || found->second.request.connections == 0) return Status::kProtocol;
    Client& client = found->second;
    const double seconds = std::max(wall_seconds() - client.begin, 1e-9);
    const Reply reply{.serving = arguments_.serving,
                      .cpu_ppm = static_cast<std::uint64_t>((cpu_seconds() - client.cpu) / seconds * 1e6),
                      .others = client.others};
    client.request.connections = 0;
    ++served_;
    // The client gets its answer before the server ends.
    const Status sent = connection.send(perf_wire::bytes_of(reply));
    changed_.notify_all();
    return sent;
  }

  [[nodiscard]] Status play_ping_pong(Connection& connection, std::size_t bytes) noexcept {
    const std::byte& seen = connection.window()[bytes - 1];
    const rdma::Remote theirs = connection.peer_window().at(0, bytes);
    const auto own = connection.allocate(bytes);
    if (!own) return own.error().status();
    // A client's thread that waits for its other threads is silent. With a handler there are no others.
    const std::chrono::milliseconds patience =
        arguments_.serving == Serving::kHandler ? arguments_.where.timeout : kLongestSilence;
    for (std::uint8_t mark = kFirstMark;; mark = next_mark(mark)) {
      Status status = await_mark(seen, mark, connection, own->at(), theirs, patience);
      if (status == Status::kClosed) return Status::kOk;
      if (status != Status::kOk) return status;
      set_mark(own->bytes(), mark);
      status = connection.write(own->bytes());
      if (status != Status::kOk) return status;
    }
  }

  /// The connection has ended, which breaks its run unless it has said bye.
  void leave(Connection& connection, Status reason) noexcept {
    const std::lock_guard lock(mutex_);
    const auto client = clients_.find(&connection);
    if (client == clients_.end()) return;
    const Request& request = client->second.request;
    // A broken run is not counted, so a client that breaks a run does not end the server.
    if (request.connections != 0)
      complain("{}: a run of {} with {} B broke", to_string(reason), facts_of(request.test).name, request.bytes);
    clients_.erase(client);
  }

  /// Announces where it listens.
  [[nodiscard]] Result<void> report(const rdma::Listener& listener) const {
    const std::string& address = arguments_.where.address;
    const std::uint16_t port = listener.port();
    const std::string text = fmt::format("verbena-perf: serving on {}; {}\nverbena-perf: {}\n",
                                         endpoint(address.empty() ? "this host" : address, port),
                                         listener.description(), explain(arguments_.serving));
    if (!arguments_.port_to) return write_all(STDOUT_FILENO, "standard output", bytes_of_text(text));
    return write_all(*arguments_.port_to, "the pipe of --local", perf_wire::bytes_of(port));
  }

  [[nodiscard]] bool is_done() const noexcept { return arguments_.clients != 0 && served_ >= arguments_.clients; }

  const PerfServeArguments& arguments_;
  std::atomic<std::uint32_t> workers_{0};  ///< Threads of connections.
  /// Guards the members below. With Serving::kThread the listener's thread never takes it: its holder may wait for that
  /// thread.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Connection*, Client> clients_;
  std::uint32_t served_ = 0;  ///< Complete runs.
};

}  // namespace

Exit run_perf_server(const PerfServeArguments& arguments) {
  const auto served = Server(arguments).serve();
  return served ? Exit::kDone : error_exit("{}: {}", to_string(served.error().status()), served.error().text());
}

}  // namespace verbena::programs
