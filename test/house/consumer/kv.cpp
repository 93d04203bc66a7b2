// needs: verbena::kv::Client::connect
// A consumer of the installed package: a server and a client in one process, a value there and back.
#include <verbena/kv.hpp>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <span>

int main() {
  namespace kv = verbena::kv;
  kv::ServerOptions options;
  options.port = 0;
  options.memory_bytes = std::size_t{16} << 20;
  options.max_value_bytes = std::size_t{1} << 20;
  options.lease_bytes = std::size_t{64} << 10;
  options.pin_workers = false;
  auto server = kv::Server::start(options);
  if (!server) return std::printf("server: %s\n", server.error().text()), 1;
  kv::ClientOptions where;
  where.port = (*server)->port();
  auto client = kv::Client::connect(where);
  if (!client) return std::printf("client: %s\n", client.error().text()), 2;

  const char key[] = "key", value[] = "value";
  std::byte out[sizeof value];
  const kv::Outcome put = (*client)->put(std::as_bytes(std::span(key)), std::as_bytes(std::span(value)));
  const kv::Outcome got = (*client)->get(std::as_bytes(std::span(key)), out);
  if (put.status != verbena::Status::kOk || got.status != verbena::Status::kOk) return 3;
  if (got.length != sizeof value || std::memcmp(out, value, sizeof value) != 0 || got.version != put.version) return 4;
  std::printf("kv: %s\n", verbena::to_string(got.status));
}
