// Each call of the C++ API with each argument that it refuses: the status, the name of the call, and the text, which
// names the argument, its value and what it may be.
#include "fixture.hpp"

#include <key_file.hpp>
#include <words.hpp>

#include <atomic>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace verbena::rdma {
namespace {

constexpr std::array<std::string_view, 5> kOfC{"rdmaConn", "rdmaServer", "rdmaStart", "RDMA_", "verbena_"};
using Says = std::vector<std::string>;

/// A Result that is an error, of the call named.
template <class T>
void expect_refused(const char* call, const Result<T>& result, Status status, const Says& says) {
  SCOPED_TRACE(call);
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().status(), status) << to_string(result.error().status()) << ": " << result.error().text();
  EXPECT_NE(std::string_view(result.error().call()).find(call), std::string_view::npos) << result.error().call();
  test::expect_words(result.error().text(), kOfC, says);
}

/// A Status, with the sentence in error_detail.
void expect_told(const char* call, Status got, Status status, const Says& says) {
  SCOPED_TRACE(call);
  EXPECT_EQ(got, status) << to_string(got);
  const std::string_view text = error_detail();
  const std::string front = std::string("rdma::") + call + ": ";
  ASSERT_TRUE(text.starts_with(front)) << text;
  test::expect_words(text.substr(front.size()), kOfC, says);
}
template <class T>
void expect_told(const char* call, const std::expected<T, Status>& got, Status status, const Says& says) {
  expect_told(call, got ? Status::kOk : got.error(), status, says);
}

[[nodiscard]] std::string hex(std::uint64_t number) {
  char text[32];
  std::snprintf(text, sizeof text, "%#llx", static_cast<unsigned long long>(number));
  return text;
}

class RdmaCxxArguments : public RdmaCxx {
 protected:
  /// Both that take these options refuse them.
  void refuse(const Options& wrong, const Says& says) {
    expect_refused("Connection::connect", Connection::connect(wrong), Status::kBadArgument, says);
    expect_refused("Listener::start", Listener::start(wrong), Status::kBadArgument, says);
  }
  [[nodiscard]] Options like() const {
    Options wrong = options;
    wrong.port = 1;
    return wrong;
  }
};

TEST_F(RdmaCxxArguments, OptionsAreNamedWithTheirRange) {
  using std::chrono::milliseconds;
  Options wrong = like();
  wrong.connect_timeout = milliseconds{0};
  refuse(wrong, {"connect_timeout", "got 0", "1 to 1073741824"});
  wrong = like();
  wrong.timeout = milliseconds{-5};
  refuse(wrong, {"timeout", "got -5", "1 to 1073741824"});
  for (const unsigned connections : {0u, 65537u}) {
    wrong = like();
    wrong.max_connections = connections;
    refuse(wrong, {"max_connections", "got " + std::to_string(connections), "1 to 65536"});
  }
  wrong = like();
  wrong.inbox_bytes = 1;
  refuse(wrong, {"inbox_bytes", "got 1", "65536 to 1073741824"});
  wrong = like();
  wrong.window_bytes = (std::size_t{64} << 30) + 1;
  refuse(wrong, {"window_bytes", "got 68719476737", "0 to 68719476736"});
  wrong = like();
  wrong.max_message_bytes = 0;
  refuse(wrong, {"max_message_bytes", "got 0", "1 to 1099511627776"});
  alignas(64) std::array<std::byte, 63> memory;
  wrong = like();
  wrong.window = memory;
  refuse(wrong, {"window", "got 63", "multiple of 64"});
  wrong = like();
  wrong.receive = Receive::kHandler;
  refuse(wrong, {"handler", "null"});
  wrong = like();
  wrong.complete = Complete::kHandler;
  refuse(wrong, {"handler", "null"});
  wrong = like();
  wrong.receive = static_cast<Receive>(9);
  refuse(wrong, {"receive", "got 9", "kQueue"});
  wrong = like();
  wrong.complete = static_cast<Complete>(9);
  refuse(wrong, {"complete", "got 9", "kQueue"});
  wrong = like();
  wrong.transport.bootstrap = static_cast<Bootstrap>(9);
  refuse(wrong, {"bootstrap", "got 9", "kCm"});
  wrong = like();
  wrong.transport.gid_index = 256;
  refuse(wrong, {"gid_index", "got 256", "0 to 255"});
  wrong = like();
  wrong.transport.device = "mlx5_0:x";
  refuse(wrong, {"device", "mlx5_0:x", "mlx5_0:2"});
  wrong = like();
  wrong.key_name = "name";
  refuse(wrong, {"key_name", "without key_file"});
  if (test::has_keys()) {
    wrong = like();
    wrong.key_file = "/";
    refuse(wrong, {"key_file", "no regular file"});
  }
  wrong = like();
  wrong.port = 0;
  expect_refused("Connection::connect", Connection::connect(wrong), Status::kBadArgument,
                 {"port", "got 0", "1 to 65535"});
  wrong = like();
  wrong.receive = Receive::kDiscard;
  expect_refused("Connection::connect", Connection::connect(wrong), Status::kBadArgument, {"receive", "kDiscard"});
}

TEST_F(RdmaCxxArguments, OptionsOfNodesAreNamedWithTheirRange) {
  const auto refuse_node = [](auto set, const Says& says) {
    NodeOptions wrong;
    wrong.transport = test::transport_under_test();
    set(wrong);
    expect_refused("Node::open", Node::open(wrong), Status::kBadArgument, says);
  };
  refuse_node([](NodeOptions& o) { o.shards = 0; }, {"shards", "got 0", "1 to 256"});
  refuse_node([](NodeOptions& o) { o.shards = 257; }, {"shards", "got 257", "1 to 256"});
  refuse_node([](NodeOptions& o) { o.connections = 0; }, {"connections", "got 0", "1 to 65536"});
  refuse_node([](NodeOptions& o) { o.connections = 65537; }, {"connections", "got 65537", "1 to 65536"});
  refuse_node([](NodeOptions& o) { o.cpus = {0, 1}; }, {"cpus", "got 2"});
  refuse_node([](NodeOptions& o) { o.transport.bootstrap = static_cast<Bootstrap>(9); }, {"bootstrap", "got 9", "kCm"});
  refuse_node([](NodeOptions& o) { o.transport.gid_index = 256; }, {"gid_index", "got 256", "0 to 255"});
}

TEST_F(RdmaCxxArguments, ADeviceThatIsNoneIsNamed) {
  Options wrong = like();
  wrong.transport.device = "nosuchdevice";
  for (const Error& error : {Connection::connect(wrong).error(), Listener::start(wrong).error()}) {
    // A kernel that has no devices at all says that.
    EXPECT_TRUE(error.status() == Status::kNotFound || error.status() == Status::kDevice) << to_string(error.status());
    test::expect_words(error.text(), kOfC, Says{"nosuchdevice"});
  }
}

TEST_F(RdmaCxxArguments, DataAndWindowsAreNamed) {
  start();
  const ConnectionPtr client = connect();
  ASSERT_NE(client, nullptr);
  auto memory = client->allocate(4096);
  ASSERT_OK(memory);
  const Window window = client->peer_window();
  const std::string size = std::to_string(window.length);
  std::array<std::byte, 16> some{};
  const std::span<std::byte> none;
  const std::span eight = std::span(some).first(8);
  const Says empty{"at least 1", "got 0"};
  expect_told("Connection::send", client->send(none), Status::kBadArgument, {"data", "at least 1 byte", "got 0"});
  expect_told("Connection::send_with_immediate", client->send_with_immediate(none, 1), Status::kBadArgument,
              {"data", "at least 1 byte", "got 0"});
  expect_told("Connection::write", client->write(none), Status::kBadArgument, {"from", "at least 1 byte", "got 0"});
  expect_told("Connection::read", client->read(none), Status::kBadArgument, {"to", "at least 1 byte", "got 0"});
  expect_told("Connection::write", client->write(Local(), window.at(0, 0)), Status::kBadArgument,
              {"from", "at least 1 byte", "got 0"});
  expect_told("Connection::read", client->read(Local(), window.at(0, 0)), Status::kBadArgument,
              {"to", "at least 1 byte", "got 0"});
  expect_told("Connection::start_write", client->start_write(Local(), window.at(0, 0), 1), Status::kBadArgument,
              {"from", "at least 1 byte", "got 0"});
  expect_told("Connection::start_read", client->start_read(Local(), window.at(0, 0), 1), Status::kBadArgument,
              {"to", "at least 1 byte", "got 0"});
  expect_told("Connection::write", client->write(none, Physical{4096}), Status::kBadArgument, {"from", "got 0"});
  expect_told("Connection::read", client->read(none, Physical{4096}), Status::kBadArgument, {"to", "got 0"});

  expect_told("Connection::write", client->write(eight, window.length), Status::kOutOfRange,
              {"offset " + size, "8", size});
  expect_told("Connection::read", client->read(eight, window.length), Status::kOutOfRange,
              {"offset " + size, "8", size});
  expect_told("Connection::write_with_immediate", client->write_with_immediate(eight, 1, window.length),
              Status::kOutOfRange, {"offset " + size, "8", size});
  // The window's own parts cannot be outside it: these are numbers as they may come in a message.
  const Remote past{.address = window.address + window.length, .length = 8, .rkey = window.rkey};
  const Remote unknown{.address = window.address, .length = 8, .rkey = 0xbadbad};
  const Says outside{hex(past.address), "8 bytes", size};
  expect_told("Connection::write", client->write(eight, past), Status::kOutOfRange, outside);
  expect_told("Connection::read", client->read(eight, past), Status::kOutOfRange, outside);
  expect_told("Connection::write", client->write(memory->at(0, 8), past), Status::kOutOfRange, outside);
  expect_told("Connection::read", client->read(memory->at(0, 8), past), Status::kOutOfRange, outside);
  expect_told("Connection::start_write", client->start_write(memory->at(0, 8), past, 1), Status::kOutOfRange, outside);
  expect_told("Connection::start_read", client->start_read(memory->at(0, 8), past, 1), Status::kOutOfRange, outside);
  const Says keyless{"rkey", "0xbadbad"};
  expect_told("Connection::write", client->write(eight, unknown), Status::kNotFound, keyless);
  expect_told("Connection::read", client->read(eight, unknown), Status::kNotFound, keyless);
  expect_told("Connection::write", client->write(memory->at(0, 8), unknown), Status::kNotFound, keyless);
  expect_told("Connection::read", client->read(memory->at(0, 8), unknown), Status::kNotFound, keyless);
  expect_told("Connection::start_write", client->start_write(memory->at(0, 8), unknown, 1), Status::kNotFound, keyless);
  expect_told("Connection::start_read", client->start_read(memory->at(0, 8), unknown, 1), Status::kNotFound, keyless);
  expect_told("Connection::fetch_add", client->fetch_add(unknown, 1), Status::kNotFound, keyless);
  expect_told("Connection::compare_swap", client->compare_swap(unknown, 1, 2), Status::kNotFound, keyless);

  const Says misfit{"16 bytes", "8 bytes"};
  expect_told("Connection::write", client->write(some, window.at(0, 8)), Status::kBadArgument, misfit);
  expect_told("Connection::read", client->read(eight, window.at(0, 16)), Status::kBadArgument, misfit);
  expect_told("Connection::start_write", client->start_write(memory->at(0, 16), window.at(0, 8), 1),
              Status::kBadArgument, misfit);
  expect_told("Connection::start_read", client->start_read(memory->at(0, 8), window.at(0, 16), 1), Status::kBadArgument,
              misfit);

  const Remote crooked = window.at(4, 8);
  const Says aligned{"word", "multiple of 8", hex(crooked.address)};
  expect_told("Connection::fetch_add", client->fetch_add(crooked, 1), Status::kBadArgument, aligned);
  expect_told("Connection::compare_swap", client->compare_swap(crooked, 1, 2), Status::kBadArgument, aligned);
  expect_told("Connection::start_fetch_add", client->start_fetch_add(crooked, 1, 1), Status::kBadArgument, aligned);
  expect_told("Connection::start_compare_swap", client->start_compare_swap(crooked, 1, 2, 1), Status::kBadArgument,
              aligned);
  expect_told("Connection::fetch_add", client->fetch_add(Physical{4}, 1), Status::kBadArgument,
              {"word", "multiple of 8", "0x4"});
  expect_told("Connection::compare_swap", client->compare_swap(Physical{4}, 1, 2), Status::kBadArgument,
              {"word", "multiple of 8", "0x4"});
  expect_told("Connection::fetch_add", client->fetch_add(window.at(0, 4), 1), Status::kBadArgument,
              {"word", "8 bytes", "got 4"});
  const Says unexported{"0x1000", "export_physical"};
  expect_told("Connection::fetch_add", client->fetch_add(Physical{4096}, 1), Status::kNotFound, unexported);
  expect_told("Connection::write", client->write(eight, Physical{4096}), Status::kNotFound, unexported);
  expect_told("Connection::read", client->read(memory->at(0, 8), Physical{4096}), Status::kNotFound, unexported);
  expect_told("Connection::complete", client->complete(), Status::kNotFound, {"nothing", "start"});
  // Memory that is not registered any more.
  const Local gone = memory->at(0, 8);
  ASSERT_OK(memory->deregister());
  const Says unregistered{"registered", hex(gone.lkey())};
  expect_told("Connection::write", client->write(gone, window.at(0, 8)), Status::kLocalAccess, unregistered);
  expect_told("Connection::read", client->read(gone, window.at(0, 8)), Status::kLocalAccess, unregistered);
  expect_told("Connection::start_write", client->start_write(gone, window.at(0, 8), 1), Status::kLocalAccess,
              unregistered);
  expect_told("Connection::start_read", client->start_read(gone, window.at(0, 8), 1), Status::kLocalAccess,
              unregistered);
  EXPECT_TRUE(client->is_connected());
}

/// The calls that connections, listeners and nodes have in common.
template <class Owner>
void expect_memory_refused(const std::string& who, Owner& owner) {
  const auto name_of = [&](const char* call) { return who + "::" + call; };
  const Says sizes{"1 to 1099511627776"};
  alignas(64) std::array<std::byte, 64> bytes{};
  expect_refused(name_of("allocate").c_str(), owner.allocate(0), Status::kBadArgument,
                 {"bytes", "got 0", "1 to 1099511627776"});
  expect_refused(name_of("allocate").c_str(), owner.allocate((std::size_t{1} << 40) + 1), Status::kBadArgument,
                 {"bytes", "got 1099511627777", "1 to 1099511627776"});
  expect_refused(name_of("register_memory").c_str(), owner.register_memory({}), Status::kBadArgument,
                 {"memory", "got 0", "1 to 1099511627776"});
  expect_refused(name_of("register_memory").c_str(), owner.register_memory(bytes, static_cast<Access>(8)),
                 Status::kBadArgument, {"access", "got 8", "0 to 7"});
  auto memory = owner.allocate(4096);
  ASSERT_OK(memory);
  ASSERT_OK(owner.publish("taken", *memory));
  const char* const publish = "publish";
  expect_refused(name_of(publish).c_str(), owner.publish("", *memory), Status::kBadArgument,
                 {"name", "got 0", "1 to 64 bytes"});
  expect_refused(name_of(publish).c_str(), owner.publish(std::string(65, 'n'), *memory), Status::kBadArgument,
                 {"name", "got 65", "1 to 64 bytes"});
  expect_refused(name_of(publish).c_str(), owner.publish("name", Memory()), Status::kBadArgument,
                 {"memory", "not registered"});
  expect_refused(name_of(publish).c_str(), owner.publish("taken", *memory), Status::kBusy, {"\"taken\""});
  expect_refused(name_of(publish).c_str(), owner.publish("name", *memory, 4096), Status::kOutOfRange,
                 {"offset", "4096"});
  expect_refused(name_of(publish).c_str(), owner.publish("name", *memory, 1, 4096), Status::kOutOfRange,
                 {"offset 1", "length 4096", "4096 bytes"});
  expect_refused(name_of(publish).c_str(), owner.publish("name", *memory, 0, 0), Status::kBadArgument,
                 {"length", "got 0", "at least 1"});
  expect_refused(name_of("unpublish").c_str(), owner.unpublish("nobody's"), Status::kNotFound, {"\"nobody's\""});
  expect_refused(name_of("unpublish").c_str(), owner.unpublish(""), Status::kBadArgument,
                 {"name", "got 0", "1 to 64 bytes"});
}

TEST_F(RdmaCxxArguments, MemoryAndNamesAreNamed) {
  start();
  const ConnectionPtr client = connect();
  ASSERT_NE(client, nullptr);
  auto node = Node::open({.transport = options.transport});
  ASSERT_OK(node);
  expect_memory_refused("Connection", *client);
  expect_memory_refused("Listener", *server);
  expect_memory_refused("Node", **node);
  expect_refused("Connection::find", client->find(""), Status::kBadArgument, {"name", "got 0", "1 to 64 bytes"});
  expect_refused("Connection::find", client->find(std::string(65, 'n')), Status::kBadArgument,
                 {"name", "got 65", "1 to 64 bytes"});
  expect_refused("Connection::export_physical", client->export_physical(Memory()), Status::kBadArgument, {"memory"});
  expect_refused("Connection::physical_address_of", client->physical_address_of(nullptr), Status::kBadArgument,
                 {"local", "null"});
}

TEST_F(RdmaCxxArguments, AClosedConnectionSaysSo) {
  start();
  const ConnectionPtr client = connect();
  auto memory = client->allocate(64);
  ASSERT_OK(memory);
  const Local local = memory->at();
  const Remote there = client->peer_window().at(0, 8);
  client->close();
  std::array<std::byte, 8> some{};
  const Says says{"closed"};
  expect_told("Connection::send", client->send(some), Status::kClosed, says);
  expect_told("Connection::send_with_immediate", client->send_with_immediate(some, 1), Status::kClosed, says);
  expect_told("Connection::receive", client->receive(some), Status::kClosed, says);
  expect_told("Connection::write", client->write(some), Status::kClosed, says);
  expect_told("Connection::read", client->read(some), Status::kClosed, says);
  expect_told("Connection::write", client->write(some, there), Status::kClosed, says);
  expect_told("Connection::write", client->write(local.at(0, 8), there), Status::kClosed, says);
  expect_told("Connection::read", client->read(local.at(0, 8), there), Status::kClosed, says);
  expect_told("Connection::write_with_immediate", client->write_with_immediate(some, 1), Status::kClosed, says);
  expect_told("Connection::fetch_add", client->fetch_add(there, 1), Status::kClosed, says);
  expect_told("Connection::compare_swap", client->compare_swap(there, 1, 2), Status::kClosed, says);
  expect_told("Connection::start_write", client->start_write(local.at(0, 8), there, 1), Status::kClosed, says);
  expect_told("Connection::start_read", client->start_read(local.at(0, 8), there, 1), Status::kClosed, says);
  expect_told("Connection::start_fetch_add", client->start_fetch_add(there, 1, 1), Status::kClosed, says);
  expect_told("Connection::start_compare_swap", client->start_compare_swap(there, 1, 2, 1), Status::kClosed, says);
  expect_told("Connection::complete", client->complete(), Status::kClosed, says);
  expect_refused("Connection::find", client->find("name"), Status::kClosed, says);
  expect_refused("Connection::import", client->import({}), Status::kClosed, says);
  expect_refused("Connection::release", client->release({}), Status::kClosed, says);
  expect_refused("Connection::allocate", client->allocate(64), Status::kClosed, says);
  expect_refused("Connection::register_memory", client->register_memory(some), Status::kClosed, says);
  expect_refused("Connection::unpublish", client->unpublish("name"), Status::kClosed, says);
}

TEST_F(RdmaCxxArguments, ReceiveSaysWhatItNeeds) {
  start();
  const ConnectionPtr client = connect();
  const ConnectionPtr accepted = accept();
  ASSERT_EQ(accepted->send(pattern(100, 1)), Status::kOk);
  std::array<std::byte, 64> buffer;
  expect_told("Connection::receive", client->receive(buffer), Status::kBufferTooSmall, {"buffer", "100", "got 64"});
  expect_told("Connection::receive", client->receive(std::span(buffer).first(0)), Status::kBufferTooSmall,
              {"buffer", "100", "got 0"});
}

TEST_F(RdmaCxxArguments, CallsThatGoToTheHandlerSaySo) {
  Calls calls;
  options.receive = Receive::kHandler;
  start(&calls);
  options.receive = Receive::kHandler;
  options.handler = &calls;
  const ConnectionPtr client = connect();
  std::array<std::byte, 8> some{};
  expect_told("Connection::receive", client->receive(some), Status::kUnsupported, {"receive", "kQueue"});
  expect_told("Listener::accept", server->accept(Deadline::now()), Status::kUnsupported, {"on_accept"});
}

TEST_F(RdmaCxxArguments, AnotherThreadsCallIsToldSo) {
  start();
  const ConnectionPtr client = connect();
  const ConnectionPtr accepted = accept();
  std::atomic<bool> has_seen{false};
  std::thread other([&] {
    std::array<std::byte, 1> byte;
    // The two are in each other's way until one of them waits.
    for (;;) {
      const auto got = client->receive(byte, patience());
      if (got || got.error() != Status::kBusy) break;
    }
    has_seen = true;
  });
  std::array<std::byte, 1> byte{};
  for (Status status = Status::kOk; status != Status::kBusy && !has_seen;) {
    const auto got = client->receive(byte, Deadline::now());
    status = got ? Status::kOk : got.error();
  }
  expect_told("Connection::receive", client->receive(byte, Deadline::now()), Status::kBusy, {"another thread"});
  expect_told("Connection::read", client->read(byte), Status::kBusy, {"another thread"});
  EXPECT_EQ(accepted->send(byte), Status::kOk);
  other.join();
}

}  // namespace
}  // namespace verbena::rdma
