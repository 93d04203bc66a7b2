#include "mesh/wire.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <iterator>

namespace verbena::mesh::wire {

namespace {

constexpr std::uint32_t kBlobMagic = 0x4242'4d56;  // "VMBB"

struct BlobLayout {
  std::uint32_t magic = kBlobMagic;
  std::uint16_t version = kVersion;
  std::uint16_t port = 0;
  std::uint32_t id = 0;
  std::uint32_t address_bytes = 0;
  std::uint64_t incarnation = 0;
  std::array<char, kMaxAddressBytes> address{};
  std::array<std::byte, 32> reserved{};
};
static_assert(sizeof(BlobLayout) == kBlobBytes);

}  // namespace

Result<Blob> encode(const Card& card) {
  BlobLayout layout{.port = card.port,
                    .id = card.id,
                    .address_bytes = static_cast<std::uint32_t>(card.address.size()),
                    .incarnation = card.incarnation};
  if (card.address.size() > layout.address.size())
    return fail(Status::kTooLong, "Mesh::join", 0, "the address {} has {} bytes, and a blob has room for {}",
                card.address, card.address.size(), layout.address.size());
  std::ranges::copy(card.address, layout.address.begin());
  Blob blob;
  std::memcpy(blob.data(), &layout, sizeof layout);
  return blob;
}

Result<Card> decode(const Blob& blob) {
  BlobLayout layout;
  std::memcpy(static_cast<void*>(&layout), blob.data(), sizeof layout);
  const bool is_whole = layout.magic == kBlobMagic && layout.address_bytes <= layout.address.size() && layout.port != 0;
  if (!is_whole || layout.version != kVersion)
    return fail(Status::kProtocol, "Mesh::join", 0, "the carrier brought {}; all processes must run the same Verbena",
                is_whole ? "a blob of another version" : "bytes that are no process's blob");
  return Card{.id = layout.id,
              .port = layout.port,
              .incarnation = layout.incarnation,
              .address = std::string(layout.address.data(), layout.address_bytes)};
}

Result<Hello> decode_hello(std::span<const std::byte> data) {
  Hello hello;
  if (!take_all(data, hello) || hello.magic != kMagic)
    return fail(Status::kProtocol, "Mesh::join", 0, "the other end is not a process of a mesh");
  if (hello.version != kVersion)
    return fail(Status::kRejected, "Mesh::join", 0, "process {} speaks version {} of the mesh's protocol, this one {}",
                hello.id, hello.version, kVersion);
  return hello;
}

Result<void> check_limits(const Hello& mine, const Hello& theirs) {
  const auto differ = [&](const char* what, std::uint64_t here, std::uint64_t there) {
    return fail(Status::kRejected, "Mesh::join", 0, "process {} has {} {}, and process {} has {}: make them the same",
                theirs.id, what, there, mine.id, here);
  };
  if (theirs.job != mine.job)
    return fail(Status::kRejected, "Mesh::join", 0, "process {} belongs to a mesh with another job than process {}",
                theirs.id, mine.id);
  if (theirs.processes != mine.processes) return differ("processes =", mine.processes, theirs.processes);
  if (theirs.threads != mine.threads) return differ("threads =", mine.threads, theirs.threads);
  if (theirs.message_bytes != mine.message_bytes)
    return differ("message_bytes =", mine.message_bytes, theirs.message_bytes);
  if (theirs.thread >= mine.threads || theirs.id >= mine.processes)
    return fail(Status::kProtocol, "Mesh::join", 0, "there is no process {} of {}, thread {} of {}", theirs.id,
                mine.processes, theirs.thread, mine.threads);
  return {};
}

WindowFrame frame_of(std::string_view name, const rdma::Window& window) noexcept {
  WindowFrame frame{.address = window.address,
                    .length = window.length,
                    .memory_id = window.memory_id,
                    .rkey = window.rkey,
                    .access = static_cast<std::uint32_t>(window.access),
                    .name_bytes = static_cast<std::uint32_t>(name.size())};
  std::ranges::copy(name, frame.name.begin());
  return frame;
}

Result<rdma::Window> window_of(const WindowFrame& frame) {
  const bool is_sound = frame.name_bytes >= 1 && frame.name_bytes <= kMaxNameBytes && frame.length != 0 &&
                        frame.address + frame.length > frame.address &&
                        frame.access <= static_cast<std::uint32_t>(rdma::Access::kAll);
  if (!is_sound) return fail(Status::kProtocol, "Mesh::publish", 0, "the peer's window is not well-formed");
  return rdma::Window{.address = frame.address,
                      .length = frame.length,
                      .memory_id = frame.memory_id,
                      .rkey = frame.rkey,
                      .access = static_cast<rdma::Access>(frame.access)};
}

std::string list_of(std::span<const unsigned> ids) {
  constexpr std::size_t kMostNamed = 8;
  std::string text;
  for (std::size_t i = 0; i < ids.size() && i < kMostNamed; ++i)
    fmt::format_to(std::back_inserter(text), "{}{}", i == 0 ? "" : ", ", ids[i]);
  if (ids.size() > kMostNamed) fmt::format_to(std::back_inserter(text), " and {} more", ids.size() - kMostNamed);
  return text;
}

}  // namespace verbena::mesh::wire
