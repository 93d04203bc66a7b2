// Verbena as the driver bench/slices loads it: public calls only, so that it compiles against any checkout's headers.
#include "variant.hpp"

#include <verbena/kv.hpp>
#include <verbena/rdma.hpp>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace {

using namespace verbena;  // NOLINT(google-build-using-namespace): this file is one program.

constexpr std::size_t kWindow = 4096;
constexpr std::size_t kValueBytes = 64;

/// Sends each message back.
class Echo final : public rdma::Handler {
 public:
  void on_message(rdma::Connection& connection, const rdma::Message& message) noexcept override {
    if (connection.send(message.data) != Status::kOk) has_failed.store(true);
  }
  std::atomic<bool> has_failed{false};
};

/// One end that both serves and connects: a listener, and the other end's connection to it.
struct End {
  std::unique_ptr<rdma::Listener> listener;
  std::unique_ptr<rdma::Connection> connection;
  rdma::Memory memory;                  ///< The caller's, registered.
  alignas(64) std::uint64_t plain = 0;  ///< The caller's, not registered.

  [[nodiscard]] volatile std::uint64_t& seen() const noexcept {
    return *reinterpret_cast<volatile std::uint64_t*>(listener->window().data());
  }
};

struct Everything {
  Echo echo;
  std::unique_ptr<rdma::Node> node;
  std::array<End, 2> ends;  ///< The first one's connection leads to the second one's listener, and back.
  std::unique_ptr<kv::Server> server;
  std::unique_ptr<kv::Client> known, index, message;
  std::string why;
};
std::unique_ptr<Everything> all;

Result<void> connect(End& from, const End& other) {
  rdma::Options options;
  options.port = other.listener->port();
  options.window_bytes = kWindow;
  auto made = rdma::Connection::connect(options);
  if (!made) return std::unexpected(made.error());
  from.connection = std::move(*made);
  auto memory = from.connection->allocate(kWindow);
  if (!memory) return std::unexpected(memory.error());
  from.memory = std::move(*memory);
  return {};
}

Result<std::unique_ptr<kv::Client>> client_of(const kv::Server& server, kv::Lookup lookup, std::size_t known) {
  kv::ClientOptions options;
  options.port = server.port();
  options.lookup = lookup;
  options.known_locations = known;
  return kv::Client::connect(options);
}

constexpr std::array<char, 16> kKeyText{'0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'};
kv::Key key() noexcept { return std::as_bytes(std::span(kKeyText)); }

Result<void> open_all(Everything& to, unsigned server_cpu) {
  rdma::NodeOptions node;
  node.cpus = {server_cpu};
  auto opened = rdma::Node::open(node);
  if (!opened) return std::unexpected(opened.error());
  to.node = std::move(*opened);
  for (End& end : to.ends) {
    rdma::Options options;
    options.port = 0;
    options.handler = &to.echo;
    options.receive = rdma::Receive::kHandler;
    options.window_bytes = kWindow;
    options.shared_window = true;
    options.node = to.node.get();
    auto started = rdma::Listener::start(options);
    if (!started) return std::unexpected(started.error());
    end.listener = std::move(*started);
  }
  if (auto connected = connect(to.ends[0], to.ends[1]); !connected) return connected;
  if (auto connected = connect(to.ends[1], to.ends[0]); !connected) return connected;
  kv::ServerOptions server;
  server.port = 0;
  server.memory_bytes = std::size_t{16} << 20;
  auto made = kv::Server::start(server);
  if (!made) return std::unexpected(made.error());
  to.server = std::move(*made);
  struct {
    std::unique_ptr<kv::Client>& client;
    kv::Lookup lookup;
    std::size_t known;
  } const clients[] = {{to.known, kv::Lookup::kOneSided, 4096},
                       {to.index, kv::Lookup::kOneSided, 0},
                       {to.message, kv::Lookup::kMessage, 0}};
  for (const auto& [client, lookup, known] : clients) {
    auto connected = client_of(*to.server, lookup, known);
    if (!connected) return std::unexpected(connected.error());
    client = std::move(*connected);
  }
  const std::array<std::byte, kValueBytes> value{};
  if (const Status put = to.message->put(key(), value).status; put != Status::kOk)
    return std::unexpected(Error(put, "put", 0, "the first put failed"));
  return {};
}

const char* open(unsigned server_cpu) {
  all = std::make_unique<Everything>();
  const auto opened = open_all(*all, server_cpu);
  if (opened) return nullptr;
  all->why = opened.error().text();
  return all->why.c_str();
}

void close() {
  for (End& end : all->ends) end.connection.reset();
  for (End& end : all->ends) end.listener.reset();
  all.reset();
}

End& mine() { return all->ends[0]; }

template <class Call>
bool repeat(std::uint64_t count, Call&& call) {
  for (std::uint64_t i = 0; i < count; ++i)
    if (!call(i)) return false;
  return true;
}

template <std::size_t kBytes>
bool message(std::uint64_t count) {
  rdma::Connection& to = *mine().connection;
  std::array<std::byte, kBytes> out{}, in{};
  return repeat(count, [&](std::uint64_t) {
    if (to.send(out) != Status::kOk) return false;
    const auto got = to.receive(in);
    return got.has_value() && got->data.size() == kBytes;
  });
}

bool read_registered(std::uint64_t count) {
  rdma::Connection& to = *mine().connection;
  const rdma::Local into = mine().memory.at(0, 8);
  const rdma::Remote from = to.peer_window().at(0, 8);
  return repeat(count, [&](std::uint64_t) { return to.read(into, from) == Status::kOk; });
}
bool read_plain(std::uint64_t count) {
  rdma::Connection& to = *mine().connection;
  const auto into = std::as_writable_bytes(std::span(&mine().plain, 1));
  return repeat(count, [&](std::uint64_t) { return to.read(into) == Status::kOk; });
}
bool write_registered(std::uint64_t count) {
  rdma::Connection& to = *mine().connection;
  const rdma::Local from = mine().memory.at(0, 8);
  const rdma::Remote into = to.peer_window().at(64, 8);
  return repeat(count, [&](std::uint64_t) { return to.write(from, into) == Status::kOk; });
}

/// A word that grows, written into the other end's window and seen there by a load.
template <std::size_t kEnd, bool kBegins>
bool seen(std::uint64_t count) {
  End& here = all->ends[kEnd];
  rdma::Connection& to = *here.connection;
  auto& word = *reinterpret_cast<std::uint64_t*>(here.memory.bytes().data());
  const rdma::Local from = here.memory.at(0, 8);
  const rdma::Remote into = to.peer_window().at(0, 8);
  volatile std::uint64_t& arrived = here.seen();
  return repeat(count, [&](std::uint64_t) {
    const std::uint64_t next = word + 1;
    if (!kBegins)
      while (arrived != next) {}
    word = next;
    if (to.write(from, into) != Status::kOk) return false;
    if (kBegins)
      while (arrived != next) {}
    return true;
  });
}

template <std::unique_ptr<kv::Client> Everything::* kClient>
bool get(std::uint64_t count) {
  kv::Client& from = *((*all).*kClient);
  std::array<std::byte, kValueBytes> out{};
  return repeat(count, [&](std::uint64_t) { return from.get(key(), out).status == Status::kOk; });
}
bool put(std::uint64_t count) {
  const std::array<std::byte, kValueBytes> value{};
  return repeat(count, [&](std::uint64_t) { return all->message->put(key(), value).status == Status::kOk; });
}

constexpr verbena::slices::Operation kOperations[] = {
    {.name = "message 8 B", .client = message<8>},
    {.name = "message 64 B", .client = message<64>},
    {.name = "read 8 B", .client = read_registered},
    {.name = "read 8 B, not registered", .client = read_plain},
    {.name = "write 8 B", .client = write_registered},
    {.name = "write 8 B seen", .client = seen<0, true>, .server = seen<1, false>},
    {.name = "GET 64 B, location known", .client = get<&Everything::known>},
    {.name = "GET 64 B, through the index", .client = get<&Everything::index>},
    {.name = "GET 64 B, by message", .client = get<&Everything::message>},
    {.name = "PUT 64 B", .client = put},
};
constexpr verbena::slices::Variant kVariant{
    .open = open, .close = close, .operations = kOperations, .count = std::size(kOperations)};

}  // namespace

const verbena::slices::Variant* slices_variant() { return &kVariant; }
