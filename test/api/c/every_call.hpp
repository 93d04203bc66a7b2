// Every call of the C API, the C++ API and the store, on objects that are in use: for what must hold at each of them.
#pragma once

#include "calls.hpp"

#include <verbena/kv.h>
#include <verbena/kv.hpp>
#include <verbena/rdma.hpp>

#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace verbena::test {

/// A listener that greets as calls.hpp expects, without privilege, and sends back what arrives.
class Echo final : public rdma::Handler {
 public:
  /// `ended` gets why a connection ended.
  explicit Echo(Mailbox<Status>* ended = nullptr) : ended_(ended) {
    rdma::Options options = options_of(0);
    options.handler = this;
    options.receive = rdma::Receive::kHandler;
    auto started = rdma::Listener::start(options);
    EXPECT_TRUE(started) << started.error().text();
    if (started) listener_ = std::move(*started);
  }
  [[nodiscard]] std::uint16_t port() const { return listener_->port(); }
  [[nodiscard]] rdma::Listener& listener() { return *listener_; }
  void on_accept(rdma::Connection& connection) noexcept override {
    constexpr std::uint64_t kNoPhysical = 0;
    (void)connection.send(std::as_bytes(std::span(&kNoPhysical, 1)));
  }
  void on_message(rdma::Connection& connection, const rdma::Message& message) noexcept override {
    // Not what was written into its window: the client may write there again meanwhile.
    if (message.kind == rdma::Message::Kind::kSent) (void)connection.send(message.data);
  }
  void on_disconnect(rdma::Connection&, Status reason) noexcept override {
    if (ended_ != nullptr) ended_->put(reason);
  }
  [[nodiscard]] static rdma::Options options_of(std::uint16_t port) {
    rdma::Options options;
    options.transport = transport_under_test();
    if (is_soft_under_test()) options.address = "127.0.0.1";
    options.port = port;
    options.connect_timeout = options.timeout = std::chrono::seconds{20};
    return options;
  }

 private:
  Mailbox<Status>* const ended_;
  std::unique_ptr<rdma::Listener> listener_;
};

[[nodiscard]] inline std::unique_ptr<rdma::Connection> connect_to(std::uint16_t port) {
  auto connection = rdma::Connection::connect(Echo::options_of(port));
  EXPECT_TRUE(connection) << connection.error().text();
  if (!connection) return nullptr;
  std::uint64_t physical = 0;
  EXPECT_TRUE((*connection)->receive(std::as_writable_bytes(std::span(&physical, 1))));
  return std::move(*connection);
}

/// What a call returned.
class Outcome {
 public:
  explicit Outcome(Status status) : is_forked_(status == Status::kForked) {}
  explicit Outcome(int code) : is_forked_(code == RDMA_ERR_FORKED) {}
  template <class Value>
  explicit Outcome(const std::expected<Value, Error>& result)
      : Outcome(result ? Status::kOk : result.error().status()) {}
  template <class Value>
  explicit Outcome(const std::expected<Value, Status>& result) : Outcome(result ? Status::kOk : result.error()) {}
  explicit Outcome(const kv::Outcome& outcome) : Outcome(outcome.status) {}
  /// Of calls that make or find something: nothing, with the words of kForked.
  template <class Made>
  explicit Outcome(Made* made)
      : is_forked_(made == nullptr &&
                   std::string_view(rdmaErrorDetail()).find("was forked") != std::string_view::npos) {}
  [[nodiscard]] bool is_forked() const { return is_forked_; }

 private:
  bool is_forked_;
};

/// Objects for the calls of one API; `each` makes every call and hands its name and its Outcome to `visit`.
class EveryCallOfC {
 public:
  /// With `ended` a thread of the library carries the calls out.
  explicit EveryCallOfC(Echo& echo, Mailbox<int>* ended = nullptr)
      : port_(echo.port()), options_(options_under_test(transport_)) {
    connect(client, transport_, port_, ended);
    idle_ = rdmaConn();
    EXPECT_EQ(rdmaServer(&listener_, nullptr, 0), RDMA_OK);
    EXPECT_EQ(rdmaServerSetOptions(listener_, &options_), RDMA_OK);
    EXPECT_EQ(rdmaServerStart(listener_), RDMA_OK) << rdmaErrorDetail();
    EXPECT_EQ(rdmaServer(&idle_listener_, nullptr, 0), RDMA_OK);
    RdmaNodeOptions node;
    rdmaNodeOptionsInit(&node);
    node.device = transport_.device.c_str();
    EXPECT_EQ(rdmaNode(&node_, &node), RDMA_OK) << rdmaErrorDetail();
  }
  EveryCallOfC(const EveryCallOfC&) = delete;
  EveryCallOfC& operator=(const EveryCallOfC&) = delete;
  ~EveryCallOfC() {
    rdmaConnClose(client.conn);
    rdmaConnClose(idle_);
    rdmaServerRelease(listener_);
    rdmaServerRelease(idle_listener_);
    rdmaNodeRelease(node_);
  }

  /// Those that do not end anything; calls that wait wait `timeout_ms` at most.
  template <class Visit>
  void each(unsigned timeout_ms, Visit&& visit) {
    visit("rdmaConnSetTimeout", Outcome(rdmaConnSetTimeout(client.conn, timeout_ms)));
    for (const Call& call : kCalls) visit(call.name, Outcome(call.call(client)));
    visit("rdmaConnIsConnected", Outcome(rdmaConnIsConnected(client.conn) == 0 ? rdmaConnError(client.conn) : RDMA_OK));
    each_of_setup(visit);
    each_of_memory(visit);
  }
  /// Those that end everything.
  template <class End>
  void end(End&& ended) {
    rdmaConnClose(std::exchange(client.conn, nullptr));
    ended("rdmaConnClose");
    rdmaServerRelease(std::exchange(listener_, nullptr));
    ended("rdmaServerRelease");
    rdmaRuntimeStop();
    ended("rdmaRuntimeStop");
    rdmaConnClose(std::exchange(idle_, nullptr));
    rdmaNodeRelease(std::exchange(node_, nullptr));
    ended("rdmaNodeRelease");
  }

  Client client;

 private:
  template <class Visit>
  void each_of_setup(Visit& visit) {
    RdmaConn* made = rdmaConn();
    visit("rdmaConn", Outcome(made));
    rdmaConnClose(made);
    visit("rdmaConnSetOptions", Outcome(rdmaConnSetOptions(idle_, &options_)));
    visit("rdmaConnOnMessage", Outcome(rdmaConnOnMessage(idle_, nullptr, nullptr)));
    visit("rdmaConnect", Outcome(rdmaConnect(idle_, is_soft_under_test() ? "127.0.0.1" : nullptr, port_)));
    visit("rdmaConnKeep", Outcome(rdmaConnKeep(client.conn)));
    RdmaListener* listener = nullptr;
    visit("rdmaServer", Outcome(rdmaServer(&listener, nullptr, 0)));
    rdmaServerRelease(listener);
    visit("rdmaServerSetOptions", Outcome(rdmaServerSetOptions(idle_listener_, &options_)));
    visit("rdmaServerOnAccept", Outcome(rdmaServerOnAccept(idle_listener_, nullptr, nullptr)));
    visit("rdmaServerStart", Outcome(rdmaServerStart(idle_listener_)));
    visit("rdmaServerPort", Outcome(rdmaServerPort(listener_)));
    std::array<char, 128> address;
    visit("rdmaServerAddress", Outcome(rdmaServerAddress(listener_, address.data(), address.size())));
    visit("rdmaServerStop", Outcome(rdmaServerStop(idle_listener_)));
    visit("rdmaServerWait", Outcome(rdmaServerWait(idle_listener_)));
    RdmaNode* node = nullptr;
    visit("rdmaNode", Outcome(rdmaNode(&node, nullptr)));
    rdmaNodeRelease(node);
  }
  template <class Visit>
  void each_of_memory(Visit& visit) {
    const RdmaMemory* const own = rdmaConnRegMem(client.conn, 4096);
    visit("rdmaConnRegMem", Outcome(own));
    visit("rdmaConnPublish", Outcome(rdmaConnPublish(client.conn, "a", own)));
    visit("rdmaConnPublishPart", Outcome(rdmaConnPublishPart(client.conn, "b", own, 0, 64)));
    std::uint64_t physical = 0;
    visit("rdmaPAExport", Outcome(rdmaPAExport(client.conn, own, &physical)));
    visit("rdmaPAAddress", Outcome(rdmaPAAddress(client.conn, client.memory, &physical)));
    visit("rdmaConnDeregMem", Outcome(rdmaConnDeregMem(client.conn, own)));
    visit("rdmaConnRegister", Outcome(rdmaConnRegister(client.conn, page_.data(), page_.size(), RDMA_ACCESS_LOCAL)));
    visit("rdmaConnPeerWindow", Outcome(rdmaConnPeerWindow(client.conn, &client.window)));
    visit("rdmaConnImportWindow", Outcome(rdmaConnImportWindow(client.conn, &client.window)));
    visit("rdmaConnReleaseWindow", Outcome(rdmaConnReleaseWindow(client.conn, &client.window)));
    const RdmaMemory* const served = rdmaServerRegMem(listener_, 4096);
    visit("rdmaServerRegMem", Outcome(served));
    visit("rdmaServerPublish", Outcome(rdmaServerPublish(listener_, "c", served)));
    visit("rdmaServerPublishPart", Outcome(rdmaServerPublishPart(listener_, "d", served, 0, 64)));
    visit("rdmaServerDeregMem", Outcome(rdmaServerDeregMem(listener_, served)));
    visit("rdmaServerRegister", Outcome(rdmaServerRegister(listener_, page_.data(), page_.size(), RDMA_ACCESS_LOCAL)));
    const RdmaMemory* const shared = rdmaNodeRegMem(node_, 4096);
    visit("rdmaNodeRegMem", Outcome(shared));
    visit("rdmaNodePublish", Outcome(rdmaNodePublish(node_, "e", shared)));
    visit("rdmaNodePublishPart", Outcome(rdmaNodePublishPart(node_, "f", shared, 0, 64)));
    visit("rdmaNodeDeregMem", Outcome(rdmaNodeDeregMem(node_, shared)));
    visit("rdmaNodeRegister", Outcome(rdmaNodeRegister(node_, page_.data(), page_.size(), RDMA_ACCESS_LOCAL)));
  }

  const int port_;
  const Transport transport_ = transport_under_test();
  const RdmaOptions options_;
  RdmaConn* idle_ = nullptr;
  RdmaListener* listener_ = nullptr;
  RdmaListener* idle_listener_ = nullptr;
  RdmaNode* node_ = nullptr;
  alignas(4096) std::array<std::byte, 4096> page_{};
};

class EveryCallOfCxx {
 public:
  explicit EveryCallOfCxx(Echo& echo) : echo_(echo), connection(connect_to(echo.port())) {
    auto allocated = connection->allocate(4096);
    EXPECT_TRUE(allocated);
    memory = std::move(*allocated);
    rdma::NodeOptions options;
    options.transport = transport_under_test();
    auto opened = rdma::Node::open(options);
    EXPECT_TRUE(opened) << opened.error().text();
    node_ = std::move(*opened);
    auto started = rdma::Listener::start(Echo::options_of(0));
    EXPECT_TRUE(started) << started.error().text();
    acceptor_ = std::move(*started);
  }

  template <class Visit>
  void each(std::chrono::milliseconds timeout, Visit&& visit) {
    connection->set_timeout(timeout);
    each_of_data(visit);
    each_of_started(visit);
    visit("connect", Outcome(rdma::Connection::connect(Echo::options_of(echo_.port()))));
    visit("Listener::start", Outcome(rdma::Listener::start(Echo::options_of(0))));
    visit("accept", Outcome(acceptor_->accept(Deadline::after(timeout))));
    visit("Node::open", Outcome(rdma::Node::open({})));
    visit("is_connected", Outcome(connection->is_connected() ? Status::kOk : connection->failure()));
    auto allocated = connection->allocate(4096);
    visit("allocate", Outcome(allocated));
    visit("Memory::deregister", allocated ? Outcome(allocated->deregister()) : Outcome(allocated));
    visit("register_memory", Outcome(connection->register_memory(page_)));
    visit("publish", Outcome(connection->publish("name", memory)));
    visit("unpublish", Outcome(connection->unpublish("name")));
    visit("find", Outcome(connection->find("never")));
    visit("import", Outcome(connection->import(connection->peer_window())));
    visit("release", Outcome(connection->release(connection->peer_window())));
    visit("export_physical", Outcome(connection->export_physical(memory)));
    visit("physical_address_of", Outcome(connection->physical_address_of(page_.data())));
    visit("Listener::allocate", Outcome(acceptor_->allocate(4096)));
    visit("Listener::register_memory", Outcome(acceptor_->register_memory(page_)));
    visit("Listener::unpublish", Outcome(acceptor_->unpublish("name")));
    visit("Node::allocate", Outcome(node_->allocate(4096)));
    visit("Node::register_memory", Outcome(node_->register_memory(page_)));
    visit("Node::unpublish", Outcome(node_->unpublish("name")));
  }
  template <class End>
  void end(End&& ended) {
    acceptor_->stop();
    ended("Listener::stop");
    acceptor_->wait();
    ended("Listener::wait");
    acceptor_.reset();
    ended("~Listener");
    connection->close();
    ended("close");
    connection.reset();
    ended("~Connection");
    memory = {};
    ended("~Memory");
    node_.reset();
    ended("~Node");
  }

 private:
  Echo& echo_;

 public:
  std::unique_ptr<rdma::Connection> connection;
  rdma::Memory memory;

 private:
  template <class Visit>
  void each_of_data(Visit& visit) {
    const rdma::Remote window = connection->peer_window().at(0, 64);
    visit("send", Outcome(connection->send(bytes_)));
    visit("send_with_immediate", Outcome(connection->send_with_immediate(bytes_, 1)));
    for (int i = 0; i < 3; ++i) visit("receive", Outcome(connection->receive(bytes_)));  // The third waits.
    visit("write", Outcome(connection->write(bytes_)));
    visit("read", Outcome(connection->read(bytes_)));
    visit("write to a part", Outcome(connection->write(bytes_, window)));
    visit("read of a part", Outcome(connection->read(bytes_, window)));
    visit("write from memory", Outcome(connection->write(memory.at(0, 64), window)));
    visit("read to memory", Outcome(connection->read(memory.at(0, 64), window)));
    visit("write_with_immediate", Outcome(connection->write_with_immediate(bytes_, 1)));
    visit("fetch_add", Outcome(connection->fetch_add(connection->peer_window().at(0, 8), 1)));
    visit("compare_swap", Outcome(connection->compare_swap(connection->peer_window().at(0, 8), 1, 2)));
  }
  template <class Visit>
  void each_of_started(Visit& visit) {
    const rdma::Remote window = connection->peer_window().at(0, 64);
    visit("start_write", Outcome(connection->start_write(memory.at(0, 64), window, 1)));
    visit("start_read", Outcome(connection->start_read(memory.at(0, 64), window, 2)));
    visit("start_fetch_add", Outcome(connection->start_fetch_add(connection->peer_window().at(0, 8), 1, 3)));
    visit("start_compare_swap", Outcome(connection->start_compare_swap(connection->peer_window().at(0, 8), 1, 2, 4)));
    for (int i = 0; i < 4; ++i) visit("complete", Outcome(connection->complete()));
  }

  std::unique_ptr<rdma::Node> node_;
  std::unique_ptr<rdma::Listener> acceptor_;
  std::array<std::byte, 64> bytes_{};
  alignas(4096) std::array<std::byte, 4096> page_{};
};

[[nodiscard]] inline kv::ServerOptions small_server() {
  kv::ServerOptions options;
  options.transport = transport_under_test();
  options.port = 0;
  options.memory_bytes = std::size_t{16} << 20;
  options.max_clients = 8;
  options.max_cells = 8;
  options.pin_workers = false;
  return options;
}
[[nodiscard]] inline kv::ClientOptions client_of(std::uint16_t port) {
  kv::ClientOptions options;
  options.transport = transport_under_test();
  options.port = port;
  options.timeout = std::chrono::seconds{20};
  options.wait = WaitPolicy::kEvent;  // So that each wait is a system call.
  return options;
}

class EveryCallOfTheStore {
 public:
  EveryCallOfTheStore() {
    auto started = kv::Server::start(small_server());
    EXPECT_TRUE(started) << started.error().text();
    server = std::move(*started);
    auto connected = kv::Client::connect(client_of(server->port()));
    EXPECT_TRUE(connected) << connected.error().text();
    client = std::move(*connected);
    EXPECT_EQ(client->put(key, value_).status, Status::kOk);
    address_ = is_soft_under_test() ? "127.0.0.1" : server->address();
    name_ = address_ + ":" + std::to_string(server->port());
    kv_client_options_t options;
    EXPECT_EQ(kv_client_options_init(&options), KV_OK);
    options.device = device_.c_str();
    options.spin_us = 0;
    EXPECT_EQ(kv_open_with(name_.c_str(), mode(), &options, &handle_), KV_OK) << kv_error_detail();
    idle_ = kv_client_create(mode());
    EXPECT_EQ(kv_client_set_options(idle_, &options), KV_OK);
  }
  EveryCallOfTheStore(const EveryCallOfTheStore&) = delete;
  EveryCallOfTheStore& operator=(const EveryCallOfTheStore&) = delete;
  ~EveryCallOfTheStore() {
    kv_close(handle_);
    kv_client_destroy(idle_);
  }

  template <class Visit>
  void each(Visit&& visit) {
    each_of_cxx(visit);
    each_of_c(visit);
    each_of_batches(visit);
  }
  template <class End>
  void end(End&& ended) {
    client.reset();
    ended("~Client");
    kv_client_destroy(std::exchange(idle_, nullptr));
    ended("kv_client_destroy");
    kv_close(std::exchange(handle_, nullptr));
    ended("kv_close");
    server->stop();
    ended("Server::stop");
    server.reset();
    ended("~Server");
  }

  /// The client of the C API.
  [[nodiscard]] kv_client_t* c_client() const noexcept { return static_cast<kv_client_t*>(handle_); }

  const kv::Key key = std::as_bytes(std::span("key", 3));
  std::unique_ptr<kv::Server> server;
  std::unique_ptr<kv::Client> client;

 private:
  [[nodiscard]] static conn_mode_t mode() {
    return transport_under_test().bootstrap == Bootstrap::kCm ? CONN_MODE_CM : CONN_MODE_SOCKET;
  }
  template <class Visit>
  void each_of_cxx(Visit& visit) {
    visit("put", Outcome(client->put(key, value_)));
    visit("put of a large value", Outcome(client->put(key, large_)));
    visit("get", Outcome(client->get(key, large_)));
    visit("cas", Outcome(client->cas(key, 1, value_)));
    visit("start_put", Outcome(client->start_put(key, value_, 1)));
    visit("start_get", Outcome(client->start_get(key, value_, 2)));
    std::array<kv::Completion, 2> completions;
    while (client->in_flight() != 0 && client->wait(completions, Deadline::after(std::chrono::seconds{20})) != 0) {}
    (void)client->poll(completions);
    kv::GetRequest get{.key = key, .out = large_, .outcome = {}};
    client->get(std::span(&get, 1));
    visit("get of many", Outcome(get.outcome));
    kv::PutRequest put{.key = key, .value = value_, .outcome = {}};
    client->put(std::span(&put, 1));
    visit("put of many", Outcome(put.outcome));
    visit("erase", Outcome(client->erase(key)));
    const auto cell = client->open_cell(std::as_bytes(std::span("cell", 4)), 0);
    visit("open_cell", Outcome(cell));
    const kv::Cell found = cell ? *cell : kv::Cell{};
    std::uint64_t old = 0;
    visit("fetch_add", Outcome(client->fetch_add(found, 1, old)));
    visit("compare_swap", Outcome(client->compare_swap(found, 1, 2, old)));
    visit("read", Outcome(client->read(found, old)));
    visit("server_statistics", Outcome(client->server_statistics(Deadline::after(std::chrono::seconds{20}))));
    visit("connection_error", Outcome(client->connection_error().status()));
    visit("Client::connect", Outcome(kv::Client::connect(client_of(server->port()))));
    visit("Server::start", Outcome(kv::Server::start(small_server())));
  }
  template <class Visit>
  void each_of_c(Visit& visit) {
    kv_client_t* const of = c_client();
    std::array<char, 64> text{};
    std::size_t length = text.size();
    std::uint64_t version = 0;
    visit("kv_client_connect", Outcome(kv_client_connect(idle_, address_.c_str(), server->port())));
    visit("kv_client_disconnect", Outcome(kv_client_disconnect(idle_)));
    visit("kv_client_put", Outcome(kv_client_put(of, "c", 1, "value", 5)));
    visit("kv_client_get", Outcome(kv_client_get(of, "c", 1, text.data(), &length)));
    length = text.size();
    visit("kv_client_put_ttl", Outcome(kv_client_put_ttl(of, "t", 1, "value", 5, 60'000)));
    std::int64_t left_ms = 0;
    visit("kv_client_get_ttl", Outcome(kv_client_get_ttl(of, "t", 1, &left_ms)));
    visit("kv_client_get_version", Outcome(kv_client_get_version(of, "c", 1, text.data(), &length, &version)));
    visit("kv_client_cas", Outcome(kv_client_cas(of, "c", 1, version, "other", 5, &version)));
    visit("kv_client_delete", Outcome(kv_client_delete(of, "c", 1)));
    kv_cell_t cell{};
    std::uint64_t old = 0;
    visit("kv_client_cell_open", Outcome(kv_client_cell_open(of, "cell", 4, 0, &cell)));
    visit("kv_client_cell_fetch_add", Outcome(kv_client_cell_fetch_add(of, &cell, 1, &old)));
    visit("kv_client_cell_compare_swap", Outcome(kv_client_cell_compare_swap(of, &cell, 1, 2, &old)));
    visit("kv_client_cell_read", Outcome(kv_client_cell_read(of, &cell, &old)));
    kv_cursor_t cursor{};
    kv_key_page_t page;
    visit("kv_client_keys", Outcome(kv_client_keys(of, "c", 1, &cursor, &page)));
    std::uint64_t erased = 0;
    visit("kv_client_flush", Outcome(kv_client_flush(of, "c", 1, &erased)));
    visit("kv_client_allocate", Outcome(kv_client_allocate(of, 64)));
    visit("kv_set", Outcome(kv_set(of, "s", "text")));
    char* copy = nullptr;
    visit("kv_get", Outcome(kv_get(of, "s", &copy)));
    kv_release(copy);
    void* opened = nullptr;
    visit("kv_open", Outcome(kv_open(name_.c_str(), &opened)));
    kv_close(opened);
    kv_server_t* made = kv_server_create(nullptr);
    visit("kv_server_create", Outcome(made));
    kv_server_destroy(made);
  }
  template <class Visit>
  void each_of_batches(Visit& visit) {
    kv_client_t* const of = c_client();
    std::array<char, 64> text{};
    kv_put_item_t put{.key = "b", .klen = 1, .value = "value", .vlen = 5, .version = 0, .code = 0};
    visit("kv_client_put_items", Outcome(kv_client_put_items(of, &put, 1)));
    visit("kv_client_put_items_ttl", Outcome(kv_client_put_items_ttl(of, &put, 1, 60'000)));
    kv_get_item_t get{.key = "b", .klen = 1, .buf = text.data(), .len = text.size(), .version = 0, .code = 0};
    visit("kv_client_get_items", Outcome(kv_client_get_items(of, &get, 1)));
    const char* const keys[] = {"b"};
    const std::size_t klens[] = {1};
    const void* const values[] = {"value"};
    void* const places[] = {text.data()};
    std::size_t vlens[] = {5};
    visit("kv_client_batch_put", Outcome(kv_client_batch_put(of, keys, klens, values, vlens, 1)));
    vlens[0] = text.size();
    visit("kv_client_batch_get", Outcome(kv_client_batch_get(of, keys, klens, places, vlens, 1)));
  }

  const std::string device_ = transport_under_test().device;
  std::string address_;
  std::string name_;
  void* handle_ = nullptr;
  kv_client_t* idle_ = nullptr;
  std::array<std::byte, 64> value_{};
  std::vector<std::byte> large_ = std::vector<std::byte>(100'000);
};

}  // namespace verbena::test
