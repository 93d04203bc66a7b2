// The C++ API, as its users call it. VERBENA_NIC and VERBENA_BOOTSTRAP choose what it runs over.
#include <verbena/rdma.hpp>

#include <pattern.hpp>
#include <result.hpp>
#include <transport.hpp>

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace verbena::rdma {
namespace {

using test::fill;
using Bytes = std::vector<std::byte>;
using ConnectionPtr = std::unique_ptr<Connection>;

[[nodiscard]] Bytes pattern(std::size_t length, std::uint64_t seed) {
  Bytes bytes(length);
  fill(bytes, seed);
  return bytes;
}
[[nodiscard]] Deadline patience() { return Deadline::after(std::chrono::seconds{20}); }

/// Things that handlers hand over to the test.
template <class T>
class Mailbox {
 public:
  void put(T item) {
    const std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
    arrived_.notify_all();
  }
  /// The next one; fails the test when none comes.
  [[nodiscard]] T take() {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait_for(lock, std::chrono::seconds{20}, [&] { return !items_.empty(); })) {
      ADD_FAILURE() << "nothing came";
      return {};
    }
    T item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<T> items_;
};

/// Calls what the test sets before it connects.
struct Calls final : Handler {
  void on_accept(Connection& connection) noexcept override {
    if (accepted) accepted(connection);
  }
  void on_connect(Connection& connection) noexcept override {
    if (connected) connected(connection);
  }
  void on_message(Connection& connection, const Message& message) noexcept override {
    if (arrived) arrived(connection, message);
  }
  void on_disconnect(Connection& connection, Status reason) noexcept override {
    if (disconnected) disconnected(connection, reason);
    ended.put(reason);
  }
  std::function<void(Connection&)> accepted;
  std::function<void(Connection&)> connected;
  std::function<void(Connection&, const Message&)> arrived;
  std::function<void(Connection&, Status)> disconnected;
  Mailbox<Status> ended;
};

class RdmaCxx : public testing::Test {
 protected:
  RdmaCxx() {
    options.transport = test::transport_under_test();
    if (test::is_soft_under_test()) options.address = "127.0.0.1";
    options.port = 0;
    options.timeout = options.connect_timeout = std::chrono::seconds{20};
  }

  /// Clients have the options as they are when they connect, but for the handler.
  void start(Handler* handler = nullptr) {
    Options server_options = options;
    server_options.handler = handler;
    auto started = Listener::start(server_options);
    ASSERT_OK(started);
    server = std::move(*started);
    options.port = server->port();
    ASSERT_NE(options.port, 0);
    if (options.receive == Receive::kDiscard || options.receive == Receive::kHandler) options.receive = Receive::kQueue;
  }
  [[nodiscard]] ConnectionPtr connect() const {
    auto connected = Connection::connect(options);
    EXPECT_OK(connected);
    return connected ? std::move(*connected) : nullptr;
  }
  [[nodiscard]] ConnectionPtr accept() const {
    auto accepted = server->accept(patience());
    EXPECT_TRUE(accepted.has_value());
    return accepted ? std::move(*accepted) : nullptr;
  }
  [[nodiscard]] static Bytes receive(Connection& connection, std::size_t most) {
    Bytes bytes(most);
    const auto message = connection.receive(bytes);
    EXPECT_TRUE(message.has_value()) << to_string(message.error());
    bytes.resize(message ? message->data.size() : 0);
    return bytes;
  }

  Options options;
  std::unique_ptr<Listener> server;
};

const std::vector<std::size_t> kSizes = {1, 7, 64, 4096, 16'351, 16'352, 16'353, 65'536, 1'000'000, 5'000'001};

// --- control

TEST_F(RdmaCxx, AWriteIsThereAndIsReadBack) {
  start();
  const ConnectionPtr client = connect();
  const ConnectionPtr peer = accept();
  ASSERT_EQ(client->peer_window_bytes(), peer->window().size());
  for (const std::size_t size : kSizes) {
    const Bytes bytes = pattern(size % 1'000'000, size);
    if (bytes.empty()) continue;
    ASSERT_EQ(client->write(bytes, 17), Status::kOk);
    EXPECT_TRUE(std::ranges::equal(bytes, peer->window().subspan(17, bytes.size())));
    Bytes back(bytes.size());
    ASSERT_EQ(client->read(back, 17), Status::kOk);
    EXPECT_EQ(back, bytes);
  }
}

TEST_F(RdmaCxx, MessagesOfAnyLengthComeBackFromAHandler) {
  Calls calls;
  calls.arrived = [](Connection& connection, const Message& message) {
    EXPECT_EQ(message.immediate ? connection.send(message.data, *message.immediate + 1) : connection.send(message.data),
              Status::kOk);
  };
  options.receive = Receive::kHandler;
  start(&calls);
  const ConnectionPtr client = connect();
  for (const std::size_t size : kSizes) {
    const Bytes bytes = pattern(size, size);
    ASSERT_EQ(client->send(bytes), Status::kOk);
    EXPECT_EQ(receive(*client, size), bytes);
  }
  Bytes byte(1);
  ASSERT_EQ(client->send(byte, 41u), Status::kOk);
  const auto message = client->receive(byte);
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->immediate, 42u);
  EXPECT_EQ(message->kind, Message::Kind::kSent);
}

}  // namespace
}  // namespace verbena::rdma
