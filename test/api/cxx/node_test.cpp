// The C++ API: nodes, memory that all peers share, parts of it, started atomics, listeners' windows, error_detail.
#include "fixture.hpp"

#include <array>
#include <cstring>
#include <string>
#include <string_view>

namespace verbena::rdma {
namespace {

[[nodiscard]] std::uint64_t word_at(std::span<const std::byte> memory, std::size_t index = 0) {
  std::uint64_t word = 0;
  std::memcpy(&word, memory.subspan(8 * index, sizeof word).data(), sizeof word);
  return word;
}
[[nodiscard]] std::span<const std::byte> bytes_of(const std::uint64_t& word) {
  return std::as_bytes(std::span(&word, 1));
}
[[nodiscard]] bool says(std::string_view text, std::string_view word) {
  return text.find(word) != std::string_view::npos;
}

// --- listeners

TEST_F(RdmaCxx, AListenerTellsWhatAPeerDials) {
  start();
  options.address = server->address();
  ASSERT_FALSE(options.address.empty());
  const ConnectionPtr client = connect();
  ASSERT_TRUE(client);
  server->stop();
  EXPECT_TRUE(server->address().empty());
}

TEST_F(RdmaCxx, ASharedWindowIsTheSameForAllConnections) {
  options.shared_window = true;
  options.window_bytes = 4096;
  start();
  ASSERT_EQ(server->window().size(), 4096U);
  const ConnectionPtr first = connect(), second = connect();
  ASSERT_TRUE(first && second);
  const std::uint64_t one = 41, two = 42;
  ASSERT_EQ(first->write(bytes_of(one)), Status::kOk) << error_detail();
  ASSERT_EQ(second->write(bytes_of(two), 8), Status::kOk) << error_detail();
  EXPECT_EQ(word_at(server->window()), 41U);
  EXPECT_EQ(word_at(server->window(), 1), 42U);
  const ConnectionPtr peer = accept();
  EXPECT_EQ(peer->window().data(), server->window().data());
  server->stop();
  EXPECT_TRUE(server->window().empty());
}

TEST_F(RdmaCxx, WithoutASharedWindowAListenerHasNone) {
  start();
  EXPECT_TRUE(server->window().empty());
}

TEST_F(RdmaCxx, WrongOptionsOfANodeAreNamed) {
  const auto refused = [&](const char* name, auto&& change) {
    NodeOptions wrong{.transport = options.transport};
    change(wrong);
    const auto node = Node::open(wrong);
    ASSERT_STATUS(node, Status::kBadArgument);
    EXPECT_TRUE(says(node.error().text(), name)) << node.error().text();
  };
  refused("shards", [](NodeOptions& of) { of.shards = 0; });
  refused("connections", [](NodeOptions& of) { of.connections = 0; });
  refused("cpus", [](NodeOptions& of) { of.cpus = {0, 0}; });
}

// --- nodes

class RdmaCxxNode : public RdmaCxx {
 protected:
  void SetUp() override {
    auto opened = Node::open({.transport = options.transport, .shards = 2});
    ASSERT_OK(opened);
    node = std::move(*opened);
    options.node = node.get();
  }
  void TearDown() override { server.reset(); }
  /// The first word of what a client finds under a name.
  [[nodiscard]] static std::uint64_t first_word(Connection& client, std::string_view name, std::uint64_t length) {
    const auto window = client.find(name);
    EXPECT_OK(window);
    if (!window) return 0;
    EXPECT_EQ(window->length, length);
    std::array<std::byte, 8> word{};
    EXPECT_EQ(client.read(word, window->at(0, 8)), Status::kOk) << error_detail();
    return word_at(word);
  }

  std::unique_ptr<Node> node;
};

TEST_F(RdmaCxxNode, TwoListenersAndTheirClientsShareIt) {
  EXPECT_FALSE(node->description().empty());
  start();
  const std::uint16_t first_port = options.port;
  options.port = 0;
  auto second = Listener::start(options);
  ASSERT_OK(second);
  EXPECT_NE((*second)->port(), first_port);
  for (const std::uint16_t port : {first_port, (*second)->port(), first_port}) {
    options.port = port;
    const ConnectionPtr client = connect();
    ASSERT_TRUE(client);
    auto accepted = (port == first_port ? *server : **second).accept(patience());
    ASSERT_TRUE(accepted.has_value());
    const Bytes bytes = pattern(100'000, port);
    ASSERT_EQ(client->send(bytes), Status::kOk) << error_detail();
    EXPECT_EQ(receive(**accepted, bytes.size()), bytes);
    ASSERT_EQ((*accepted)->send(bytes), Status::kOk) << error_detail();
    EXPECT_EQ(receive(*client, bytes.size()), bytes);
  }
  // One ends, and the other goes on.
  second->reset();
  options.port = first_port;
  const ConnectionPtr client = connect();
  ASSERT_TRUE(client);
  EXPECT_TRUE(client->is_connected());
}

TEST_F(RdmaCxxNode, MemoryThatIsRegisteredOnceReachesEveryPeer) {
  auto memory = node->allocate(4096);
  ASSERT_OK(memory);
  Bytes own(4096);
  auto registered = node->register_memory(own, Access::kRead);
  ASSERT_OK(registered);
  const std::uint64_t forty = 40, fifty = 50, sixty = 60;
  std::ranges::copy(bytes_of(forty), memory->bytes().begin());
  std::ranges::copy(bytes_of(sixty), memory->bytes().begin() + 1024);
  std::ranges::copy(bytes_of(fifty), own.begin());
  ASSERT_OK(node->publish("all", *memory));
  ASSERT_OK(node->publish("part", *memory, 1024, 64));
  ASSERT_OK(node->publish("own", *registered));
  EXPECT_STATUS(node->publish("own", *memory), Status::kBusy);
  EXPECT_STATUS(node->publish("beyond", *memory, 4090, 8), Status::kOutOfRange);
  EXPECT_STATUS(node->publish("shell", Memory()), Status::kBadArgument);
  start();
  for (int i = 0; i < 3; ++i) {
    const ConnectionPtr client = connect();
    ASSERT_TRUE(client);
    EXPECT_EQ(first_word(*client, "part", 64), 60U);
    EXPECT_EQ(first_word(*client, "all", 4096), 40U);
    EXPECT_EQ(first_word(*client, "own", 4096), 50U);
    // From this memory too, whichever the connection.
    EXPECT_EQ(client->write(memory->at(0, 8), client->peer_window().at(0, 8)), Status::kOk) << error_detail();
  }
  ASSERT_OK(node->unpublish("own"));
  EXPECT_STATUS(node->unpublish("own"), Status::kNotFound);
  ASSERT_OK(memory->deregister());
  const ConnectionPtr client = connect();
  ASSERT_TRUE(client);
  // A deadline that was too short for the peer's answer is doubled.
  auto gone = client->find("all", Deadline::now());
  for (int ms = 25; !gone && gone.error().status() == Status::kTimedOut && ms < 20'000; ms *= 2)
    gone = client->find("all", Deadline::after(std::chrono::milliseconds{ms}));
  EXPECT_STATUS(gone, Status::kNotFound);
}

TEST_F(RdmaCxxNode, ItsMemoryIsTheDefaultWindowOfAListener) {
  auto memory = node->allocate(8192);
  ASSERT_OK(memory);
  options.window = memory->bytes().subspan(4096);
  start();
  options.window = {};
  EXPECT_EQ(server->window().data(), memory->bytes().data() + 4096);
  const ConnectionPtr client = connect();
  ASSERT_TRUE(client);
  const std::uint64_t word = 77;
  ASSERT_EQ(client->write(bytes_of(word)), Status::kOk) << error_detail();
  EXPECT_EQ(word_at(memory->bytes(), 512), 77U);
}

TEST_F(RdmaCxxNode, MemoryIsAShellAfterItsNode) {
  auto memory = node->allocate(4096);
  ASSERT_OK(memory);
  options.node = nullptr;
  node.reset();
  EXPECT_OK(memory->deregister());
}

// --- atomics that are started

TEST_F(RdmaCxx, StartedAtomicsTellWhatTheyFoundInOrder) {
  start();
  const ConnectionPtr client = connect();
  ASSERT_TRUE(client);
  const Remote word = client->peer_window().at(8, 8);
  for (std::size_t i = 0; i < Connection::kMaxStarted; ++i)
    ASSERT_EQ(client->start_fetch_add(word, 2, i), Status::kOk) << error_detail();
  EXPECT_EQ(client->start_fetch_add(word, 2, 999), Status::kAgain);
  EXPECT_EQ(client->start_compare_swap(word, 0, 1, 999), Status::kAgain);
  for (std::size_t i = 0; i < Connection::kMaxStarted; ++i) {
    const auto completion = client->complete(patience());
    ASSERT_TRUE(completion.has_value()) << to_string(completion.error());
    EXPECT_EQ(completion->status, Status::kOk);
    EXPECT_EQ(completion->operation, Completion::Operation::kAtomic);
    EXPECT_EQ(completion->cookie, i);
    EXPECT_EQ(completion->old, 2 * i);
  }
  constexpr std::uint64_t kSum = 2 * Connection::kMaxStarted;
  ASSERT_EQ(client->start_compare_swap(word, kSum + 1, 5, 1), Status::kOk) << error_detail();
  ASSERT_EQ(client->start_compare_swap(word, kSum, 5, 2), Status::kOk) << error_detail();
  ASSERT_EQ(client->start_fetch_add(word, 1, 3), Status::kOk) << error_detail();
  for (const std::uint64_t old : {kSum, kSum, std::uint64_t{5}}) {
    const auto completion = client->complete(patience());
    ASSERT_TRUE(completion.has_value()) << to_string(completion.error());
    EXPECT_EQ(completion->old, old);
  }
  EXPECT_EQ(client->complete(Deadline::now()).error(), Status::kNotFound);
  EXPECT_EQ(client->start_fetch_add(client->peer_window().at(4, 8), 1, 0), Status::kBadArgument);
  EXPECT_EQ(client->start_fetch_add(Remote{.address = word.address + (1 << 20), .length = 8, .rkey = word.rkey}, 1, 0),
            Status::kOutOfRange);
  EXPECT_TRUE(client->is_connected());
}

TEST_F(RdmaCxx, StartedAtomicsGoToTheHandler) {
  struct Completions final : Handler {
    void on_complete(Connection& /*connection*/, const Completion& completion) noexcept override {
      taken.put(completion);
    }
    Mailbox<Completion> taken;
  } handler;
  start();
  options.handler = &handler;
  options.complete = Complete::kHandler;
  const ConnectionPtr client = connect();
  ASSERT_TRUE(client);
  ASSERT_EQ(client->start_fetch_add(client->peer_window().at(0, 8), 7, 1), Status::kOk) << error_detail();
  ASSERT_EQ(client->start_fetch_add(client->peer_window().at(0, 8), 7, 2), Status::kOk) << error_detail();
  EXPECT_EQ(handler.taken.take().old, 0U);
  const Completion second = handler.taken.take();
  EXPECT_EQ(second.old, 7U);
  EXPECT_EQ(second.cookie, 2U);
  EXPECT_EQ(second.operation, Completion::Operation::kAtomic);
}

// --- error_detail

TEST_F(RdmaCxx, TheDetailNamesTheCallAndTheArgument) {
  start();
  const ConnectionPtr client = connect();
  ASSERT_TRUE(client);
  const Bytes bytes(100);
  EXPECT_EQ(client->write(bytes, (1 << 20) - 50), Status::kOutOfRange);
  const std::string of_write = error_detail();
  EXPECT_TRUE(says(of_write, "write")) << of_write;
  EXPECT_TRUE(says(of_write, "100")) << of_write;
  EXPECT_EQ(client->fetch_add(client->peer_window().at(4, 8), 1).error(), Status::kBadArgument);
  const std::string of_atomic = error_detail();
  EXPECT_TRUE(says(of_atomic, "fetch_add")) << of_atomic;
  EXPECT_TRUE(says(of_atomic, "8")) << of_atomic;
  // A call that succeeds leaves it, and another thread has its own.
  EXPECT_EQ(client->write(bytes), Status::kOk);
  EXPECT_EQ(error_detail(), of_atomic);
  std::thread([] { EXPECT_STREQ(error_detail(), ""); }).join();
}

}  // namespace
}  // namespace verbena::rdma
