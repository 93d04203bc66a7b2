// An echo server of coroutines: one thread serves all clients, each by a coroutine that reads like a blocking one. The
// clients are coroutines of another loop in the same program.
//
//     coro_echo [CLIENTS [MESSAGES]]     1000 clients, 20 messages each
#include <verbena/coroutines.hpp>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace verbena;
using coroutine::Loop;
using coroutine::Task;
using Numbers = typed::Segment<std::uint64_t>;

constexpr std::size_t kLength = 8;

Deadline limit() { return Deadline::after(std::chrono::seconds{60}); }

int fail(const char* what, const char* why) {
  std::fprintf(stderr, "coro_echo: %s: %s\n", what, why);
  return EXIT_FAILURE;
}

/// What a loop and its coroutines need: the node that drives connections, and memory for one message of each client.
struct End {
  std::unique_ptr<rdma::Node> node;
  std::unique_ptr<Loop> loop;
  typed::MemoryRegion<std::uint64_t> memory;

  [[nodiscard]] Result<void> open(unsigned clients) {
    auto opened =
        rdma::Node::open({.transport = {.device = "soft"}, .address = "127.0.0.1", .connections = clients + 1});
    if (!opened) return std::unexpected(opened.error());
    node = std::move(*opened);
    auto made = Loop::make({.frames = {.frames = clients + 8, .frame_bytes = 2048}, .waits = clients + 8});
    if (!made) return std::unexpected(made.error());
    loop = std::move(*made);
    auto allocated = typed::MemoryRegion<std::uint64_t>::allocate(*node, clients * kLength, {.max_segments = clients});
    if (!allocated) return std::unexpected(allocated.error());
    memory = std::move(*allocated);
    return {};
  }
};

/// Serves one client until it leaves.
Task<Status> serve(Loop& /*loop*/, typed::Link link, Numbers room) {
  while (true) {
    auto arrived = co_await coroutine::receive(link, std::move(room), limit());
    if (arrived.status == Status::kClosed) co_return Status::kOk;  // It has left.
    if (arrived.status != Status::kOk) co_return arrived.status;
    auto sent = co_await coroutine::send(link, std::move(arrived.segment), limit());
    if (sent.status != Status::kOk) co_return sent.status;
    room = std::move(sent.segment);
  }
}

/// Takes in clients, and gives each a coroutine.
Task<Status> accept_all(Loop& loop, rdma::Listener& listener, typed::MemoryRegion<std::uint64_t>& memory,
                        unsigned clients) {
  for (std::size_t i = 0; i < clients; ++i) {
    auto connection = co_await coroutine::accept(listener, limit());
    if (!connection) co_return connection.error();
    auto link = typed::Link::over(std::move(*connection));
    auto room = memory.take(i * kLength, kLength);
    if (!link || !room) co_return Status::kLimit;
    if (const Status spawned = loop.spawn(serve(loop, std::move(*link), std::move(*room))); spawned != Status::kOk)
      co_return spawned;
  }
  co_return Status::kOk;
}

/// Sends messages and checks that they come back.
Task<Status> ask(Loop& /*loop*/, typed::Link& link, Numbers mine, std::uint64_t id, unsigned messages) {
  for (unsigned i = 0; i < messages; ++i) {
    mine.fill(id * 1000 + i);
    auto sent = co_await coroutine::send(link, std::move(mine), limit());
    if (sent.status != Status::kOk) co_return sent.status;
    auto arrived = co_await coroutine::receive(link, std::move(sent.segment), limit());
    if (arrived.status != Status::kOk) co_return arrived.status;
    mine = std::move(arrived.segment);
    if (arrived.received.count != kLength || mine.get(kLength - 1) != id * 1000 + i) co_return Status::kProtocol;
  }
  co_return Status::kOk;
}

/// Has the library's thread drive clients' connections, so that their loop polls none of them.
class Driven final : public rdma::Handler {};

int run(unsigned clients, unsigned messages) {
  End server;
  End client;
  if (const auto opened = server.open(clients); !opened) return fail("server", opened.error().text());
  if (const auto opened = client.open(clients); !opened) return fail("clients", opened.error().text());
  Driven driven;
  rdma::Options options{.transport = {.device = "soft"},
                        .address = "127.0.0.1",
                        .port = 0,
                        .connect_timeout = std::chrono::seconds{60},
                        .window_bytes = 0,
                        .inbox_bytes = std::size_t{64} << 10};
  options.node = server.node.get();
  auto listener = rdma::Listener::start(options);
  if (!listener) return fail("listen", listener.error().text());
  options.port = (*listener)->port();
  options.node = client.node.get();
  options.handler = &driven;

  Status accepted = Status::kOk;
  std::uint64_t failed = 0;
  std::jthread serving([&] {
    accepted =
        coroutine::sync_wait(*server.loop, accept_all(*server.loop, **listener, server.memory, clients), limit());
    const auto have_left = [&] { return server.loop->spawned() == 0; };
    if (server.loop->run_until(have_left, limit()) != Status::kOk) accepted = Status::kTimedOut;
    failed = server.loop->failed();
    server.loop->drop_all();  // In the thread that ran them.
  });

  std::vector<typed::Link> links;
  for (unsigned i = 0; i < clients; ++i) {
    auto connection = rdma::Connection::connect(options);
    if (!connection) return fail("connect", connection.error().text());
    auto link = typed::Link::over(std::move(*connection));
    if (!link) return fail("link", link.error().text());
    links.push_back(std::move(*link));
  }
  const std::uint64_t start = ticks_now();
  for (unsigned i = 0; i < clients; ++i) {
    auto mine = client.memory.take(i * kLength, kLength);
    if (!mine) return fail("memory", to_string(mine.error()));
    const Status spawned = client.loop->spawn(ask(*client.loop, links[i], std::move(*mine), i, messages));
    if (spawned != Status::kOk) return fail("spawn", to_string(spawned));
  }
  if (client.loop->run_until([&] { return client.loop->spawned() == 0; }, limit()) != Status::kOk)
    return fail("echoes", "not all came back in time");
  const double us = static_cast<double>(ticks_now() - start) / ticks_per_us();
  links.clear();  // They leave.
  serving.join();
  if (client.loop->failed() != 0 || failed != 0 || accepted != Status::kOk)
    return fail("echoes", accepted != Status::kOk ? to_string(accepted) : "a client or its server failed");
  std::printf("%u clients, %u messages each came back: %.0f a second; %u frames at a time in one thread\n", clients,
              messages, 1e6 * clients * messages / us, server.loop->frames().counts().highest);
  return EXIT_SUCCESS;
}

[[nodiscard]] bool number(const char* text, unsigned& into) {
  const std::string_view view(text);
  return std::from_chars(view.data(), view.data() + view.size(), into).ptr == view.data() + view.size() && into != 0;
}

}  // namespace

int main(int argc, char** argv) {
  unsigned clients = 1000;
  unsigned messages = 20;
  if (argc > 3 || (argc > 1 && !number(argv[1], clients)) || (argc > 2 && !number(argv[2], messages)))
    return fail("usage", "coro_echo [CLIENTS [MESSAGES]]");
  return run(clients, messages);
}
