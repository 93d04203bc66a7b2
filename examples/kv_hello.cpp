// Stores a value and reads it back. Start a server first: verbena-kv serve
// usage: kv_hello [PORT]
#include <verbena/kv.hpp>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  verbena::kv::ClientOptions where;  // A server of this host, port 7470.
  if (argc > 1) where.port = static_cast<std::uint16_t>(std::atoi(argv[1]));
  auto client = verbena::kv::Client::connect(where);
  if (!client) return std::fprintf(stderr, "%s\n", client.error().text()), 1;
  const char key[] = "greeting", value[] = "hello";
  std::byte out[64];
  const auto put = (*client)->put(std::as_bytes(std::span(key)), std::as_bytes(std::span(value)));
  if (put.status != verbena::Status::kOk) return std::fprintf(stderr, "%s\n", to_string(put.status)), 1;
  const auto got = (*client)->get(std::as_bytes(std::span(key)), out);
  if (got.status != verbena::Status::kOk) return std::fprintf(stderr, "%s\n", to_string(got.status)), 1;
  std::printf("%s, version %lu\n", reinterpret_cast<const char*>(out), static_cast<unsigned long>(put.version));
}
