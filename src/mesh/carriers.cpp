// Carriers that need nothing else: a directory of files, a list of hosts, and a collective call of the user's.
#include "base/error.hpp"
#include "base/files.hpp"
#include "base/hash.hpp"
#include "mesh/wire.hpp"

#include <verbena/mesh.hpp>

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

namespace verbena::mesh {

namespace {

constexpr const char* kJoin = "Mesh::join";

[[nodiscard]] bool is_word(std::string_view text) noexcept {
  constexpr std::size_t kMostBytes = 64;
  const auto is_fit = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' ||
           c == '_';
  };
  return !text.empty() && text.size() <= kMostBytes && text.front() != '.' && std::ranges::all_of(text, is_fit);
}

/// One file per process, renamed into place, so that nobody reads half a file.
class DirectoryCarrier final : public Carrier {
 public:
  DirectoryCarrier(Directory directory, std::string_view path, std::string_view job)
      : directory_(std::move(directory)), path_(path), job_(job) {}

  Result<void> publish(unsigned id, const Blob& blob, Deadline /*deadline*/) override {
    // A name of its own for each life, so that two processes with one id do not write into one file.
    const std::string fresh = fmt::format("{}.{}.{:016x}", job_, id, hash64(blob));
    {
      VERBENA_ASSIGN(File file, directory_.open_file(fresh.c_str(), File::How::kWrite));
      VERBENA_TRY(file.truncate(0));
      VERBENA_TRY(file.write(0, blob));
    }
    return directory_.rename(fresh.c_str(), name_of(id).c_str());
  }

  Result<Blob> find(unsigned id) override {
    const std::string name = name_of(id);
    const auto file = directory_.open_file(name.c_str(), File::How::kRead);
    if (!file && file.error().status() == Status::kNotFound)
      return fail(Status::kAgain, kJoin, 0, "there is no file {} in {} yet", name, path_);
    if (!file) return std::unexpected(file.error());
    Blob blob;
    VERBENA_ASSIGN(const std::size_t bytes, file->read(0, blob));
    if (bytes == blob.size()) return blob;
    return fail(Status::kProtocol, kJoin, 0, "{}/{} has {} bytes, and a blob has {}", path_, name, bytes, blob.size());
  }

 private:
  [[nodiscard]] std::string name_of(unsigned id) const { return fmt::format("{}.{}", job_, id); }

  Directory directory_;
  const std::string path_;
  const std::string job_;
};

class HostListCarrier final : public Carrier {
 public:
  explicit HostListCarrier(std::vector<Blob> blobs) : blobs_(std::move(blobs)) {}

  Result<void> publish(unsigned id, const Blob& blob, Deadline /*deadline*/) override {
    VERBENA_TRY(check(id));
    VERBENA_ASSIGN(const wire::Card mine, wire::decode(blob));
    VERBENA_ASSIGN(const wire::Card listed, wire::decode(blobs_[id]));
    if (mine.port == listed.port) return {};
    return fail(Status::kBadArgument, kJoin, 0, "process {} listens on port {}, and the list of hosts says {}:{}", id,
                mine.port, listed.address, listed.port);
  }
  Result<Blob> find(unsigned id) override {
    VERBENA_TRY(check(id));
    return blobs_[id];
  }

 private:
  [[nodiscard]] Result<void> check(unsigned id) const {
    if (id < blobs_.size()) return {};
    return fail(Status::kBadArgument, kJoin, 0, "the list of hosts has {} entries, and none for process {}",
                blobs_.size(), id);
  }
  const std::vector<Blob> blobs_;
};

class GatherCarrier final : public Carrier {
 public:
  GatherCarrier(unsigned processes, AllGather gather, void* context)
      : gather_(gather), context_(context), blobs_(processes) {}

  Result<void> publish(unsigned /*id*/, const Blob& blob, Deadline /*deadline*/) override {
    return gather_(blob, blobs_, context_);
  }
  Result<Blob> find(unsigned id) override {
    if (id < blobs_.size()) return blobs_[id];
    return fail(Status::kBadArgument, kJoin, 0, "{} processes were gathered, and process {} was not among them",
                blobs_.size(), id);
  }

 private:
  const AllGather gather_;
  void* const context_;
  std::vector<Blob> blobs_;
};

/// "host:port" or "[address]:port".
[[nodiscard]] Result<wire::Card> parse(const std::string& entry, unsigned id) {
  const auto refuse = [&] {
    return fail(Status::kBadArgument, kJoin, 0, "entry {} of the list of hosts is \"{}\": it must be host:port", id,
                entry);
  };
  const std::size_t colon = entry.rfind(':');
  if (colon == std::string::npos || colon == 0) return refuse();
  wire::Card card{.id = id, .address = entry.substr(0, colon)};
  const char* const end = entry.data() + entry.size();
  const auto [rest, error] = std::from_chars(entry.data() + colon + 1, end, card.port);
  if (error != std::errc() || rest != end || card.port == 0) return refuse();
  const bool is_bracketed = card.address.front() == '[' && card.address.back() == ']';
  if (is_bracketed) card.address = card.address.substr(1, card.address.size() - 2);
  // Without brackets the last group of an IPv6 address looks like a port.
  if (card.address.empty() || (!is_bracketed && card.address.find(':') != std::string::npos)) return refuse();
  return card;
}

}  // namespace

Result<std::unique_ptr<Carrier>> directory_carrier(std::string_view directory, std::string_view job) {
  if (!is_word(job))
    return fail(Status::kBadArgument, kJoin, 0,
                "job must have 1 to 64 letters, digits, '.', '-' and '_', and no '.' in front; got \"{}\"", job);
  const std::string path(directory);
  VERBENA_ASSIGN(Directory opened, Directory::open(path.c_str()));
  return std::make_unique<DirectoryCarrier>(std::move(opened), path, job);
}

Result<std::unique_ptr<Carrier>> host_list_carrier(std::span<const std::string> hosts) {
  std::vector<Blob> blobs;
  for (const std::string& host : hosts) {
    VERBENA_ASSIGN(const wire::Card card, parse(host, static_cast<unsigned>(blobs.size())));
    VERBENA_ASSIGN(blobs.emplace_back(), wire::encode(card));
  }
  return std::make_unique<HostListCarrier>(std::move(blobs));
}

std::unique_ptr<Carrier> gather_carrier(unsigned processes, AllGather gather, void* context) {
  return std::make_unique<GatherCarrier>(processes, gather, context);
}

}  // namespace verbena::mesh
