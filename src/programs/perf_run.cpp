#include "programs/perf_run.hpp"

#include "programs/perf_mark.hpp"

#include "base/error.hpp"
#include "base/ticks.hpp"
#include "host/thread.hpp"
#include "host/topology.hpp"

#include <algorithm>
#include <array>
#include <barrier>
#include <limits>
#include <memory>
#include <span>
#include <thread>
#include <utility>

namespace verbena::programs {
namespace {

using perf_wire::Ask;
using perf_wire::Reply;
using perf_wire::Request;
using rdma::Connection;

constexpr std::chrono::milliseconds kByeTimeout{1000};
/// One in so many started operations carries its start time: reading the clock costs as much as some operations take.
constexpr std::uint64_t kTimedEvery = 32;
/// Messages on one connection before the next connection's turn.
constexpr std::uint64_t kBurst = 16;

// --- connecting

Result<Reply> receive_reply(Connection& connection, std::uint32_t bytes, Deadline deadline) {
  std::array<std::byte, sizeof(Reply)> buffer{};
  const auto message = connection.receive(buffer, deadline);
  if (!message && message.error() != Status::kBufferTooSmall)
    return fail(message.error(), "verbena-perf", 0,
                "the server did not answer: is it a verbena-perf server, and has no other client a ping-pong there?");
  const auto reply = message ? perf_wire::decode_reply(message->data, bytes) : std::unexpected(Status::kProtocol);
  if (!reply)
    return fail(reply.error(), "verbena-perf", 0, "the answer is not from a verbena-perf server of this version");
  if (reply->refusal.front() != '\0') return fail(Status::kRejected, "verbena-perf", 0, "{}", reply->refusal.data());
  return *reply;
}

Result<PerfPeer> open_peer(const PerfArguments& arguments, const Request& request, PerfRun& run) {
  const PerfTestFacts& facts = facts_of(request.test);
  rdma::Options options = arguments.where;
  // The server writes into it.
  options.window_bytes = facts.by == PerfBy::kWindow && facts.keeps_server_busy() ? request.bytes : 0;
  PerfPeer peer;
  VERBENA_ASSIGN(peer.connection, Connection::connect(options));
  VERBENA_ASSIGN(peer.own, peer.connection->allocate(request.bytes));
  peer.local = peer.own.at();
  if (facts.keeps_server_busy()) peer.inbox.resize(request.bytes);
  if (const Status sent = peer.connection->send(perf_wire::bytes_of(request)); sent != Status::kOk)
    return fail(sent, "verbena-perf", 0, "the server did not take the request of a run");
  VERBENA_ASSIGN(const Reply reply, receive_reply(*peer.connection, request.bytes, Deadline::after(options.timeout)));
  run.serving = reply.serving;
  peer.physical.address = reply.physical;
  peer.remote = peer.connection->peer_window().at(0, request.bytes);
  return peer;
}

// --- measured calls: the ones that a user's program would make

template <class T>
Status status_of(const std::expected<T, Status>& outcome) noexcept {
  return outcome ? Status::kOk : outcome.error();
}

Status write_with_immediate(const PerfPeer& peer, Ask ask) noexcept {
  return peer.connection->write_with_immediate(peer.local.bytes(), static_cast<std::uint32_t>(ask));
}

/// One thread's part of a run.
class Lane {
 public:
  Lane(const PerfArguments& arguments, std::span<PerfPeer> peers) noexcept : arguments_(arguments), peers_(peers) {}

  /// Warms up, waits for the other threads, and measures.
  void run(std::optional<unsigned> cpu, std::barrier<>& start) noexcept {
    if (cpu) outcome = host::pin_this_thread(*cpu);
    if (outcome) go(arguments_.warm_up);
    if (!outcome) return start.arrive_and_drop();
    ticks.clear();
    start.arrive_and_wait();
    begin = ticks_now();
    go(arguments_.iterations);
    end = ticks_now();
  }

  // Set when it has run.
  Result<void> outcome;
  std::uint64_t begin = 0, end = 0;
  Histogram ticks;

 private:
  void go(std::uint64_t count) noexcept {
    if (const Status status = perform(count); status != Status::kOk)
      outcome =
          fail(status, "verbena-perf", 0, "the run broke after {} of {} operations; see that the server still runs",
               done_, arguments_.warm_up + arguments_.iterations);
  }

  /// Looks at the test once, not for every operation.
  Status perform(std::uint64_t count) noexcept {
    PerfPeer& peer = peers_.front();
    Connection& connection = *peer.connection;
    switch (arguments_.test) {
      case PerfTest::kRead: return calls(count, [&] { return connection.read(peer.local, peer.remote); });
      case PerfTest::kWrite: return calls(count, [&] { return connection.write(peer.local, peer.remote); });
      case PerfTest::kPaRead: return calls(count, [&] { return connection.read(peer.local, peer.physical); });
      case PerfTest::kPaWrite: return calls(count, [&] { return connection.write(peer.local, peer.physical); });
      case PerfTest::kFetchAdd: return calls(count, [&] { return status_of(connection.fetch_add(peer.remote, 1)); });
      case PerfTest::kCompareSwap:
        // Each one finds the value that the one before it stored.
        return calls(count, [&] {
          const std::uint64_t left = swapped_++;
          return status_of(connection.compare_swap(peer.remote, left, left + 1));
        });
      case PerfTest::kPingPong: return calls(count, [&] { return ping_pong(peer); });
      case PerfTest::kMessage:
        peer.ask_for(Ask::kAnswer);
        return calls(count, [&] {
          const Status status = connection.send(peer.local.bytes());
          return status == Status::kOk ? receive(peer) : status;
        });
      case PerfTest::kWriteImm:
        return calls(count, [&] {
          const Status status = write_with_immediate(peer, Ask::kAnswer);
          return status == Status::kOk ? receive(peer) : status;
        });
      case PerfTest::kReadBw:
        return pipeline(count, [](const PerfPeer& to, std::uint64_t cookie) {
          return to.connection->start_read(to.local, to.remote, cookie);
        });
      case PerfTest::kWriteBw:
        return pipeline(count, [](const PerfPeer& to, std::uint64_t cookie) {
          return to.connection->start_write(to.local, to.remote, cookie);
        });
      case PerfTest::kFetchAddBw:
        return pipeline(count, [](const PerfPeer& to, std::uint64_t cookie) {
          return to.connection->start_fetch_add(to.remote, 1, cookie);
        });
      case PerfTest::kCompareSwapBw:
        // Each one finds the initial zero and stores a zero.
        return pipeline(count, [](const PerfPeer& to, std::uint64_t cookie) {
          return to.connection->start_compare_swap(to.remote, 0, 0, cookie);
        });
      case PerfTest::kMessageBw:
        return stream(count, [](const PerfPeer& to, Ask) { return to.connection->send(to.local.bytes()); });
      case PerfTest::kWriteImmBw: return stream(count, write_with_immediate);
      default: return Status::kBadArgument;
    }
  }

  // --- one at a time

  template <class Call>
  Status calls(std::uint64_t count, Call&& call) noexcept {
    const std::uint64_t silence = ticks_in(std::chrono::microseconds{arguments_.idle_us});
    const auto be_silent = [&] {
      for (const Deadline quiet = Deadline::at_ticks(ticks_now() + silence); !quiet.passed();) relax();
      return true;
    };
    return time_calls(
        ticks, count, arguments_.clock_every, [&] { return silence != 0 && be_silent(); },
        [&] {
          const Status status = call();
          if (status == Status::kOk) ++done_;
          return status;
        });
  }

  Status ping_pong(const PerfPeer& peer) noexcept {
    set_mark(peer.local.bytes(), mark_);
    if (const Status status = peer.connection->write(peer.local, peer.remote); status != Status::kOk) return status;
    return await_mark(peer.connection->window()[peer.local.size() - 1], std::exchange(mark_, next_mark(mark_)),
                      *peer.connection, peer.local, peer.remote, arguments_.where.timeout);
  }

  Status receive(PerfPeer& peer) noexcept {
    if (arguments_.idle_us == 0) return status_of(peer.connection->receive(peer.inbox));
    // This end polls, because its own wake-up is not to be measured.
    Status status = Status::kTimedOut;
    for (const auto until = Deadline::after(arguments_.where.timeout);
         status == Status::kTimedOut && !until.passed();) {
      relax();
      status = status_of(peer.connection->receive(peer.inbox, Deadline::now()));
    }
    return status;
  }

  // --- several at a time

  /// Keeps `depth` operations in flight on each connection.
  template <class Start>
  Status pipeline(std::uint64_t count, Start&& start) noexcept {
    const std::uint64_t target = done_ + count;
    for (std::uint64_t started = 0; done_ < target;) {
      for (PerfPeer& peer : peers_) {
        for (; peer.in_flight < arguments_.depth && started < count; ++peer.in_flight, ++started) {
          const Status status = start(peer, started % kTimedEvery == 0 ? ticks_now() : 0);
          if (status == Status::kAgain && peer.in_flight != 0) break;
          if (status != Status::kOk) return status;
        }
        if (const Status status = take_completions(peer); status != Status::kOk) return status;
      }
    }
    return Status::kOk;
  }

  /// Waits for one completion, and takes all that are ready then.
  Status take_completions(PerfPeer& peer) noexcept {
    if (peer.in_flight == 0) return Status::kOk;
    std::array<rdma::Completion, Connection::kMaxStarted> taken;
    const auto first = peer.connection->complete();
    if (!first) return first.error();
    taken[0] = *first;
    const std::size_t count = 1 + peer.connection->poll(std::span(taken).subspan(1));
    for (const rdma::Completion& each : std::span(taken).first(count)) {
      if (each.status != Status::kOk) return each.status;
      if (each.cookie != 0) ticks.record((ticks_now() - each.cookie) * kPerfTick);
    }
    peer.in_flight -= static_cast<std::uint32_t>(count);
    done_ += count;
    return Status::kOk;
  }

  /// Makes one call after the other, on all connections in turn, then asks for an answer on each: the server has then
  /// taken all.
  template <class Send>
  Status stream(std::uint64_t count, Send&& send) noexcept {
    for (PerfPeer& peer : peers_) peer.ask_for(Ask::kNothing);
    for (std::uint64_t left = count; left != 0;) {
      for (const PerfPeer& peer : peers_) {
        const std::uint64_t burst = std::min(kBurst, left);
        for (std::uint64_t i = 0; i < burst; ++i, ++done_)
          if (const Status status = send(peer, Ask::kNothing); status != Status::kOk) return status;
        left -= burst;
      }
    }
    for (PerfPeer& peer : peers_) {
      peer.ask_for(Ask::kAnswer);
      if (const Status status = send(peer, Ask::kAnswer); status != Status::kOk) return status;
    }
    for (PerfPeer& peer : peers_) {
      if (const Status status = status_of(peer.connection->receive(peer.inbox)); status != Status::kOk) return status;
    }
    return Status::kOk;
  }

  const PerfArguments& arguments_;
  const std::span<PerfPeer> peers_;
  std::uint64_t done_ = 0;  ///< Operations, including those of the warm-up.
  std::uint64_t swapped_ = 0;
  std::uint8_t mark_ = kFirstMark;
};

/// Runs each lane in a thread; returns when all have ended.
Result<void> run_all(std::span<const std::unique_ptr<Lane>> lanes, std::span<const unsigned> cpus) {
  std::barrier<> start(static_cast<std::ptrdiff_t>(lanes.size()));
  std::vector<std::thread> threads;
  Result<void> all;
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    const auto cpu = cpus.empty() ? std::nullopt : std::optional(cpus[i]);
    auto thread = host::start_thread("perf-client", [lane = lanes[i].get(), cpu, &start] { lane->run(cpu, start); });
    if (thread) {
      threads.push_back(std::move(*thread));
    } else {
      all = std::unexpected(thread.error());
      start.arrive_and_drop();  // Stands in for the thread, so that the others can end.
    }
  }
  for (std::thread& thread : threads) thread.join();
  return all;
}

}  // namespace

Result<PerfRun> open_run(const PerfArguments& arguments, std::uint32_t bytes) {
  PerfRun run;
  Request request{.test = arguments.test, .connections = arguments.all_connections(), .bytes = bytes};
  for (unsigned i = 0; i < arguments.all_connections(); ++i) {
    VERBENA_ASSIGN(PerfPeer peer, open_peer(arguments, request, run));
    run.peers.push_back(std::move(peer));
    request.connections = 0;
  }
  return run;
}

void end_run(PerfRun& run, PerfResult& result) noexcept {
  // Measuring is over, so a server that ends before it answers is no error.
  const Deadline deadline = Deadline::after(kByeTimeout);
  for (const PerfPeer& peer : run.peers) {
    if (result.arguments.test != PerfTest::kPingPong) break;
    set_mark(peer.local.bytes(), kStopMark);
    (void)peer.connection->write(peer.local, peer.remote, deadline);
  }
  constexpr Ask kBye = Ask::kBye;
  Connection& connection = *run.peers.front().connection;
  if (connection.send(perf_wire::bytes_of(kBye), deadline) != Status::kOk) return;
  const auto reply = receive_reply(connection, 0, deadline);
  if (!reply) return;
  result.server_percent = static_cast<double>(reply->cpu_ppm) * 1e-4;
  result.other_runs = reply->others;
}

Result<void> measure_run(PerfRun& run, PerfResult& result) {
  const std::size_t each = result.arguments.connections;
  std::vector<std::unique_ptr<Lane>> lanes;
  for (std::size_t i = 0; i < run.peers.size(); i += each)
    lanes.push_back(std::make_unique<Lane>(result.arguments, std::span(run.peers).subspan(i, each)));
  VERBENA_TRY(run_all(lanes, result.cpus));
  std::uint64_t first = std::numeric_limits<std::uint64_t>::max(), last = 0;
  for (const auto& lane : lanes) {
    VERBENA_TRY(Result<void>(lane->outcome));
    first = std::min(first, lane->begin);
    last = std::max(last, lane->end);
    result.ticks.merge(lane->ticks);
  }
  result.operations = result.arguments.iterations * lanes.size();
  result.seconds = static_cast<double>(last - first) / ticks_per_us() / 1e6;
  return {};
}

}  // namespace verbena::programs
