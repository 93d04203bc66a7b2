// The client when the server grants it no memory, or refuses a request: large values come in parts, and refusals become
// messages.
#include "kv/client.hpp"

#include "base/error.hpp"
#include "base/failure.hpp"
#include "kv/account.hpp"

#include <array>
#include <cstring>
#include <iterator>
#include <string_view>

namespace verbena::kv {
namespace {

/// Text in a fixed buffer, cut at its end.
class Line {
 public:
  void add(char c) noexcept {
    if (length_ < text_.size()) text_[length_++] = c;
  }
  [[nodiscard]] std::string_view view() const noexcept { return {text_.data(), length_}; }

 private:
  std::array<char, 4 * wire::kMostPrefixBytes + 8> text_{};
  std::size_t length_ = 0;
};

/// Quotes a peer's bytes; escapes control characters and quotes.
Line quoted(std::span<const std::byte> bytes, bool is_cut) noexcept {
  constexpr std::string_view kDigits = "0123456789abcdef";
  Line line;
  line.add('"');
  for (const std::byte each : bytes) {
    const auto c = std::to_integer<unsigned char>(each);
    if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\') {
      line.add(static_cast<char>(c));
      continue;
    }
    for (const char part : {'\\', 'x', kDigits[c >> 4], kDigits[c & 0xf]}) line.add(part);
  }
  line.add('"');
  if (is_cut) std::ranges::for_each(std::string_view("..."), [&](char c) { line.add(c); });
  return line;
}

const char* name_of(Rights right) noexcept {
  switch (right) {
    case Rights::kRead: return "read";
    case Rights::kWrite: return "write";
    default: return "administer";
  }
}

Status tell_denied(const char* call, const wire::Refusal& refusal, std::span<const std::byte> prefix) noexcept {
  const char* const right = name_of(refusal.right);
  if (refusal.is_promised != 0)
    return note(Status::kDenied, call, "this client has promised to be read-only (read_only): it may not {}", right);
  if (refusal.right == Rights::kAdminister)
    return note(Status::kDenied, call, "uid {} has no right to administer: the server must grant it", refusal.uid);
  if (refusal.prefixes == 0)
    return note(Status::kDenied, call, "uid {} has no right to {}: the server must grant it", refusal.uid, right);
  if (refusal.prefix_length == 0)
    return note(Status::kDenied, call, "uid {} has no right to {} all keys, which cells need", refusal.uid, right);
  const Line line = quoted(prefix, refusal.prefix_length > prefix.size());
  const unsigned others = refusal.prefixes - 1u;
  if (others == 0)
    return note(Status::kDenied, call, "uid {} has the right to {} only keys that begin with {}", refusal.uid, right,
                line.view());
  return note(Status::kDenied, call, "uid {} has the right to {} only keys that begin with {}, or with one of {} more",
              refusal.uid, right, line.view(), others);
}

Status tell_over_quota(const char* call, const wire::Refusal& refusal) noexcept {
  const bool is_memory = refusal.quota == static_cast<std::uint8_t>(Quota::kMemory);
  return note(Status::kOverQuota, call,
              "uid {} has {} {} of its quota of {}, and this does not fit: delete some, or raise {}", refusal.uid,
              refusal.used, is_memory ? "bytes" : "items", refusal.most, is_memory ? "max_memory_bytes" : "max_items");
}

double mebibytes(std::uint64_t bytes) noexcept { return static_cast<double>(bytes) / 1048576; }

}  // namespace

/// Makes the rest of the reply a plain one.
[[gnu::cold]] void PollingClient::take_full(const Operation& operation, wire::Reply& reply) noexcept {
  reply.head.kind = wire::ReplyKind::kPlain;
  if (operation.is_abandoned) return;
  const wire::Fullness& full = reply.full;
  (void)note(
      Status::kStoreFull, call_of(operation.op),
      "the key's worker has no room for a value of {} bytes: of {:.1f} MiB, keys and values take {:.1f} (most of "
      "it, {:.1f}, in blocks of up to {} bytes), values that wait out their grace period {:.1f}; "
      "{} of its items are cells: erase some, or raise memory_bytes",
      full.needed, mebibytes(full.capacity), mebibytes(full.used), mebibytes(full.class_used), full.class_block,
      mebibytes(full.resting), full.cells);
}

// --- refusals

/// Makes the rest of the reply a plain one.
[[gnu::cold]] void PollingClient::take_refusal(const Operation& operation, wire::Reply& reply) noexcept {
  reply.head.kind = wire::ReplyKind::kPlain;
  if (operation.is_abandoned) return;
  const char* const call = call_of(operation.op);
  (void)(reply.head.status == Status::kDenied ? tell_denied(call, reply.refusal, reply.value)
                                              : tell_over_quota(call, reply.refusal));
}

// --- large values in parts

// Each part carries its value's version; another version starts the transfer over.
void PollingClient::take_part(Operation& operation, const wire::Reply& reply) noexcept {
  const wire::Part& part = reply.part;
  const auto length = static_cast<std::size_t>(part.length);
  if (length > server_.max_value_bytes) return die(Status::kProtocol, "the server names a value longer than its limit");
  if (length > operation.out.size())
    return finish(operation, {Status::kBufferTooSmall, reply.head.version, length, time_left(reply)});
  const bool goes_on = reply.head.version == operation.outcome.version && length == operation.outcome.length;
  if (!goes_on) operation.transfer.copied = 0;
  operation.outcome = {Status::kOk, reply.head.version, length, time_left(reply)};
  if (part.offset == operation.transfer.copied) {
    std::memcpy(operation.out.data() + operation.transfer.copied, reply.value.data(), reply.value.size());
    operation.transfer.copied += reply.value.size();
  } else if (goes_on) {
    return die(Status::kProtocol, "the server sent a part of a value that the client did not ask for");
  }
  if (operation.transfer.copied == length) return finish(operation, operation.outcome);
  ask_for_part(operation);
}

void PollingClient::ask_for_part(Operation& operation) noexcept {
  std::array<std::byte, 24> head;
  const std::size_t bytes =
      wire::encode_head({.op = wire::Op::kGetPart, .key_length = operation.key_length, .id = operation.id},
                        operation.transfer.copied, head);
  const Status status = channel_of(operation).send(std::span(head).first(bytes), operation.key_bytes());
  if (status == Status::kOk) return;
  const Status noticed = notice(operation.worker, status);
  if (!has_failed()) finish(operation, {noticed});  // Otherwise it ends with the connection.
}

}  // namespace verbena::kv
