// Stores a value and reads it back. Start a server first: verbena-kv serve
#include <verbena/kv.hpp>

#include <cstdio>

int main() {
  auto client = verbena::kv::Client::connect({});  // 127.0.0.1, port 7470
  if (!client) return std::fprintf(stderr, "%s\n", client.error().text()), 1;
  const char key[] = "greeting", value[] = "hello";
  std::byte out[64];
  const auto put = (*client)->put(std::as_bytes(std::span(key)), std::as_bytes(std::span(value)));
  const auto got = (*client)->get(std::as_bytes(std::span(key)), out);
  if (got.status != verbena::Status::kOk) return std::fprintf(stderr, "%s\n", to_string(got.status)), 1;
  std::printf("%s, version %lu\n", reinterpret_cast<const char*>(out), static_cast<unsigned long>(put.version));
}
