#include "programs/values.hpp"

#include "base/error.hpp"
#include "programs/files.hpp"

#include <algorithm>

namespace verbena::programs {

std::string endpoint(std::string_view address, std::uint16_t port) {
  if (address.empty()) return fmt::format("this host, port {}", port);
  const bool is_ipv6 = address.find(':') != std::string_view::npos;
  return is_ipv6 ? fmt::format("[{}]:{}", address, port) : fmt::format("{}:{}", address, port);
}

kv::Outcome get_whole(kv::Client& client, std::string_view key, std::vector<std::byte>& value) {
  constexpr std::size_t kFirst = std::size_t{16} << 10;
  constexpr int kAttempts = 8;  // The value may be replaced by a longer one between two attempts, but not for ever.
  if (value.size() < kFirst) value.resize(kFirst);
  kv::Outcome outcome;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    outcome = client.get(as_key(key), value);
    if (outcome.status != Status::kBufferTooSmall || outcome.length <= value.size()) break;
    if (outcome.length > client.max_value_bytes()) return {.status = Status::kProtocol};
    value.resize(outcome.length);
  }
  return outcome;
}

Result<void> read_file(const std::filesystem::path& path, std::size_t most, std::vector<std::byte>& out) {
  VERBENA_ASSIGN(const OpenFile file, OpenFile::open(path, OpenFile::Follow::kYes));
  return read_all(file.fd(), path.string(), most, out);
}

}  // namespace verbena::programs
