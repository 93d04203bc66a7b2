// The server's end of a channel whose client has limited rights: checks and refusals, and large values without access
// to the store's memory.
#include "kv/session.hpp"
#include "kv/worker.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace verbena::kv {
namespace {

/// Counts the request as its kind of operation.
void count_denied(Counters& counters, const wire::Request& request) noexcept {
  switch (request.head.op) {
    case wire::Op::kGet: return counters.count_request(OperationKind::kGet);
    case wire::Op::kPut: return counters.count_request(OperationKind::kPut);
    case wire::Op::kCas: return counters.count_request(OperationKind::kCas);
    case wire::Op::kErase: return counters.count_request(OperationKind::kErase);
    case wire::Op::kCell: return counters.count_request(OperationKind::kCell);
    case wire::Op::kPutRead: return counters.count_request(large_kind(request.expected));
    default: return;  // Other requests: only the refusal is counted.
  }
}

}  // namespace

bool Session::may(const wire::Request& request) noexcept {
  const Rights missing = missing_for(request);
  if (missing == Rights::kNone) [[likely]]
    return true;
  count_denied(worker_.counters(), request);
  refuse(request.head.id, {.status = Status::kDenied}, missing);
  return false;
}

Rights Session::missing_to_write(Key key) const noexcept {
  return permissions_->write.covers(key) ? Rights::kNone : Rights::kWrite;
}

Rights Session::missing_for(const wire::Request& request) const noexcept {
  switch (request.head.op) {
    case wire::Op::kGet:
    case wire::Op::kGetPart: return permissions_->read.covers(request.key) ? Rights::kNone : Rights::kRead;
    case wire::Op::kPut:
    case wire::Op::kCas:
    case wire::Op::kErase:
    case wire::Op::kPutRead: return missing_to_write(request.key);
    case wire::Op::kCell:
      // Access to one cell is access to the memory of all.
      if (permissions_->may_use_cells()) return Rights::kNone;
      return permissions_->write.covers_all() ? Rights::kRead : Rights::kWrite;
    case wire::Op::kKeys: return permissions_->read.covers(request.key) ? Rights::kNone : Rights::kRead;
    case wire::Op::kFlush: return missing_to_write(request.key);
    case wire::Op::kStatistics: return permissions_->may_administer ? Rights::kNone : Rights::kAdminister;
    // A large value is checked when it begins.
    case wire::Op::kPutLarge:
    case wire::Op::kMoreLarge:
    case wire::Op::kReads:
    case wire::Op::kGoodbye: break;
  }
  return Rights::kNone;
}

// `missing` is used with kDenied only.
void Session::refuse(std::uint32_t id, const Store::Change& change, Rights missing) noexcept {
  Counters& counters = worker_.counters();
  counters.count_outcome(change.status);
  wire::Refusal refusal{.uid = permissions_->subject.uid};
  std::string_view prefix;
  if (change.status == Status::kDenied) {
    ++counters.denied;
    refusal.right = missing;
    refusal.is_promised = permissions_->is_read_only && missing == Rights::kWrite ? 1 : 0;
    if (missing != Rights::kAdminister) {
      const PrefixSet& granted = missing == Rights::kRead ? permissions_->read : permissions_->write;
      prefix = granted.first();
      refusal.prefixes = static_cast<std::uint16_t>(granted.size());
      refusal.prefix_length = static_cast<std::uint16_t>(prefix.size());
      prefix = prefix.substr(0, wire::kMostPrefixBytes);
    }
  } else {
    ++counters.over_quota;
    const bool is_memory = change.quota == Quota::kMemory;
    const Account::Amount used = permissions_->account->used(), most = permissions_->account->most();
    refusal.quota = static_cast<std::uint8_t>(change.quota);
    refusal.used = is_memory ? used.bytes : used.items;
    refusal.most = is_memory ? most.bytes : most.items;
  }
  std::array<std::byte, sizeof refusal + wire::kMostPrefixBytes> payload;
  std::memcpy(payload.data(), &refusal, sizeof refusal);
  if (!prefix.empty()) std::memcpy(payload.data() + sizeof refusal, prefix.data(), prefix.size());
  reply({.status = change.status, .kind = wire::ReplyKind::kRefusal, .id = id},
        std::span(payload).first(sizeof refusal + prefix.size()));
}

// --- large values by message

// The client asks for the parts one by one. Each carries the version, and the client starts over when it changes, so it
// ends up with one whole value.
void Session::get_part(const wire::Request& request) noexcept {
  const Store::Found found = store_.find(request.key);
  if (found.status != Status::kOk) return reply_change(request.head.id, {.status = found.status});
  wire::ReplyHead head{.kind = wire::ReplyKind::kValue, .id = request.head.id, .version = found.version};
  if (found.value.size() < kEagerBytes) return reply_found(head, found, found.value);
  reply_part(head, found, request.expected < found.value.size() ? request.expected : 0);
}

void Session::reply_part(const wire::ReplyHead& head, const Store::Found& found, std::uint64_t offset) noexcept {
  const wire::Part part{.length = found.value.size(), .offset = offset};
  const auto bytes = static_cast<std::size_t>(std::min(wire::kPartBytes, part.length - offset));
  std::array<std::byte, sizeof part + wire::kPartBytes> payload;
  std::memcpy(payload.data(), &part, sizeof part);
  std::memcpy(payload.data() + sizeof part, found.value.data() + offset, bytes);
  wire::ReplyHead of_part = head;
  of_part.kind = wire::ReplyKind::kPart;
  of_part.entry = 0;
  reply_found(of_part, found, std::span(payload).first(sizeof part + bytes));
}

}  // namespace verbena::kv
