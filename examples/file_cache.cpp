// A cache in front of a tree of files that several processes read, perhaps from a slow file system: the first one to
// read a file stores its bytes with the file's time and length. Whoever finds them asks the file system only whether
// these are still the same. usage: file_cache PORT DIRECTORY
#include <verbena/kv.hpp>

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

namespace kv = verbena::kv;
namespace fs = std::filesystem;
using verbena::Status;

/// In front of the bytes: the file that they are of.
struct Stamp {
  std::int64_t seconds = 0, nanoseconds = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const Stamp&, const Stamp&) = default;
};

/// False: the file is gone, or never was.
bool stamp_of(const std::string& path, Stamp& stamp) {
  struct stat found{};
  if (stat(path.c_str(), &found) != 0) return false;
  stamp = {found.st_mtim.tv_sec, found.st_mtim.tv_nsec, static_cast<std::uint64_t>(found.st_size)};
  return true;
}

kv::Key key_of(const std::string& path) { return std::as_bytes(std::span(path)); }

class FileCache {
 public:
  FileCache(kv::Client& store, std::size_t longest) : store_(store), value_(sizeof(Stamp) + longest) {}

  /// The bytes of a file, valid until the next call. Throws what the file system says.
  std::span<const std::byte> read(const std::string& path) {
    Stamp now;
    if (!stamp_of(path, now))
      throw fs::filesystem_error("cannot read", path, std::error_code(errno, std::generic_category()));
    // A longer value than any file of the tree, or no answer: the file is read, as without a cache.
    const kv::Outcome found =
        path.size() <= kv::kMaxKeyBytes ? store_.get(key_of(path), value_) : kv::Outcome{.status = Status::kBadKey};
    if (found.status == Status::kOk && found.length == sizeof now + now.bytes &&
        std::memcmp(value_.data(), &now, sizeof now) == 0) {
      ++hits;
      return std::span(value_).subspan(sizeof now, now.bytes);
    }
    return read_and_store(path, now);
  }

  std::size_t hits = 0, misses = 0, failures = 0;

 private:
  std::span<const std::byte> read_and_store(const std::string& path, const Stamp& before) {
    ++misses;
    value_.resize(std::max(value_.size(), sizeof before + before.bytes));
    std::memcpy(value_.data(), &before, sizeof before);
    const std::span bytes = std::span(value_).subspan(sizeof before, before.bytes);
    std::ifstream file(path, std::ios::binary);
    file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    Stamp after;
    // If it changed meanwhile, these bytes may be of both: nobody else gets them.
    if (!stamp_of(path, after) || after != before || static_cast<std::size_t>(file.gcount()) != bytes.size())
      return bytes;
    // A full store keeps what it has; the cache goes on without this file.
    const kv::Outcome put = store_.put(key_of(path), std::span(value_).first(sizeof before + bytes.size()));
    if (put.status != Status::kOk) ++failures;
    return bytes;
  }

  kv::Client& store_;
  std::vector<std::byte> value_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: %s PORT DIRECTORY\n", argv[0]), 2;
  const auto client = kv::Client::connect({.port = static_cast<std::uint16_t>(std::atoi(argv[1]))});
  if (!client) return std::fprintf(stderr, "%s\n", client.error().text()), 1;
  try {
    FileCache cache(**client, std::size_t{1} << 20);
    std::size_t files = 0;
    std::uint64_t sum = 0;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(fs::canonical(argv[2]))) {
      if (!entry.is_regular_file()) continue;
      ++files;
      for (const std::byte byte : cache.read(entry.path().string())) sum = sum * 31 + static_cast<unsigned char>(byte);
    }
    std::printf("%zu files: %zu from the cache, %zu read, %zu not stored; sum %016lx\n", files, cache.hits,
                cache.misses, cache.failures, static_cast<unsigned long>(sum));
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
