#include "channel/large.hpp"

#include "base/error.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace verbena::channel {

using engine::QueuePair;

namespace {

[[nodiscard]] constexpr std::size_t align_up(std::size_t value, std::size_t to) noexcept {
  return (value + to - 1) / to * to;
}

[[nodiscard]] std::size_t send_slots(const Options& options) noexcept {
  return sends_for(options) + QueuePair::kReserve;
}

}  // namespace

// --- out ----------------------------------------------------------------------------------------------------------

std::size_t LargeSender::bytes_for(const Options& options) noexcept {
  if (options.max_larges == 0) return 0;
  return options.max_operations * kMaxHeadBytes             // a head per slot of the table
         + send_slots(options) * std::size_t{wire::kUnit};  // a fragment header per slot of the send queue
}

void LargeSender::open(const Options& options, const nic::Buffer& memory, std::byte* begin) {
  most_ = options.max_larges;
  number_ = options.first_count & wire::kNumberMask;
  lkey_ = memory.lkey();
  heads_ = begin;
  headers_ = begin + options.max_operations * kMaxHeadBytes;
  request_.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request_.sg_list = sge_.data();
}

void LargeSender::meet(const wire::Handshake& peer, std::uint64_t fragment_bytes) noexcept {
  lease_ = peer.lease;
  request_.wr.rdma.rkey = lease_.rkey;
  if (lease_.length == 0) return;
  const std::uint64_t most =
      std::min({fragment_bytes, lease_.length / 4, std::uint64_t{pair_.nic().limits().max_message}});
  payload_ = static_cast<std::uint32_t>(most / wire::kUnit * wire::kUnit - sizeof(wire::FragmentHeader));
}

Result<void> LargeSender::open_lease(Deadline deadline) {
  if (lease_.length == 0 || is_open_ || most_ == 0) return {};
  VERBENA_TRY(pair_.nic().import_window(pair_.get(), lease_, deadline));
  is_open_ = true;
  return {};
}

Status LargeSender::start(std::span<const std::byte> head, LocalSpan body, std::uint64_t token) noexcept {
  if (pair_.reason() != Status::kOk) return pair_.reason();
  if (!is_open_) return Status::kUnsupported;
  if (head.size() + body.length == 0) return Status::kBadArgument;
  if (head.size() > kMaxHeadBytes) return Status::kTooLong;
  if (started_ == most_) return Status::kAgain;
  Operation* const begun = operations_.begin({.token = token,
                                              .local = body.data,
                                              .total = head.size() + body.length,
                                              .lkey = body.lkey,
                                              .head_bytes = static_cast<std::uint32_t>(head.size()),
                                              .kind = Operation::Kind::kLarge});
  if (begun == nullptr) return Status::kAgain;
  if (!head.empty()) std::memcpy(head_of(*begun), head.data(), head.size());
  ++started_;
  waiting_.push(*begun);
  return Status::kOk;
}

// Leaves a quarter of the credits and of the send queue to eager messages, which a stream of fragments would starve
// otherwise. This cannot deadlock: at rest at most depth/2 of R receives are unreported, and R - depth/2 > R/4 + 2 for
// each depth.
void LargeSender::progress() noexcept {
  while (!waiting_.empty() && pair_.reason() == Status::kOk) {
    if (credits_.available() < 2 + credits_.peer_buffers() / 4 || pair_.room() < 1 + pair_.sends().slots() / 4) return;
    Operation& operation = *waiting_.first();
    if (!post_fragment(operation)) return;
    if (operation.posted == operation.total) waiting_.pop();
  }
}
static_assert(wire::receives_for(wire::kMinDepth) - wire::kMinDepth / 2 > 2 + wire::receives_for(wire::kMinDepth) / 4);

bool LargeSender::post_fragment(Operation& operation) noexcept {
  const auto bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(operation.total - operation.posted, payload_));
  const wire::Placement place =
      wire::place(cursor_, wire::units_of(bytes + sizeof(wire::FragmentHeader)), credits_.peer_lease_units());
  if (place.taken > credits_.lease_room()) return false;
  const bool last = operation.posted + bytes == operation.total;
  request_.num_sge = gather(operation, bytes);
  request_.wr.rdma.remote_addr = lease_.address + place.at * wire::kUnit;
  request_.imm_data = htonl(number_ | (operation.posted == 0 ? wire::kFirst : 0) | (last ? wire::kLast : 0));
  // Signals only the last one for the operation: on a reliable connection it completes after those before it.
  const std::uint32_t tag = last ? operations_.tag(operation) : kNoTag;
  if (!pair_.post(request_, tag, last ? QueuePair::Signal::kAlways : QueuePair::Signal::kSometimes)) return false;
  operation.posted += bytes;
  if (last) operation.outstanding = 1;
  credits_.sent();
  credits_.used_lease(place.taken);
  cursor_ = place.next;
  number_ = (number_ + 1) & wire::kNumberMask;
  pair_.count().bytes += bytes;
  return true;
}

int LargeSender::gather(const Operation& operation, std::uint32_t bytes) noexcept {
  std::byte* const staged = headers_ + std::size_t{pair_.sends().next_slot()} * wire::kUnit;
  const wire::FragmentHeader header{.credits = credits_.tell(), .total = operation.total};
  std::memcpy(staged, &header, sizeof header);
  sge_[0] = {.addr = reinterpret_cast<std::uintptr_t>(staged), .length = sizeof header, .lkey = lkey_};
  std::size_t parts = 1;
  std::uint64_t at = operation.posted;
  if (at < operation.head_bytes) {
    const auto piece = static_cast<std::uint32_t>(std::min<std::uint64_t>(operation.head_bytes - at, bytes));
    sge_[parts++] = {.addr = reinterpret_cast<std::uintptr_t>(head_of(operation) + at), .length = piece, .lkey = lkey_};
    at += piece;
    bytes -= piece;
  }
  if (bytes != 0)
    sge_[parts++] = {.addr = reinterpret_cast<std::uintptr_t>(operation.local + (at - operation.head_bytes)),
                     .length = bytes,
                     .lkey = operation.lkey};
  return static_cast<int>(parts);
}

// --- in -----------------------------------------------------------------------------------------------------------

Result<void> LargeReceiver::open(nic::Nic& nic, ibv_pd* pd, const Options& options) {
  if (options.lease_bytes == 0) return {};
  const std::size_t bytes = align_up(options.lease_bytes, wire::kUnit);
  // Bulk data, read only after its completion: the NIC may write it in any order.
  VERBENA_TRY(lease_.open(
      nic, pd, {.size_bytes = bytes, .node = options.node, .share = host::Share::kReadWrite, .name = "lease"}, {},
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING));
  units_ = wire::units_of(bytes);
  return {};
}

// Everything in a fragment except its position, number and length is the peer's claim, in memory that the peer can
// still write.
Status LargeReceiver::take(const ibv_wc& completion, Fragment& fragment) noexcept {
  const std::uint32_t bytes = completion.byte_len;
  if (bytes <= sizeof(wire::FragmentHeader) || bytes > units_ * wire::kUnit) return Status::kProtocol;
  const wire::Placement place = wire::place(cursor_, wire::units_of(bytes), units_);
  if (!credits_.lease_holds(place.taken)) return Status::kProtocol;
  const std::byte* at = lease_.data() + place.at * wire::kUnit;
  const auto* words = reinterpret_cast<const std::uint64_t*>(at);
  // Atomic loads, so that the compiler reads each word once.
  const std::array<std::uint64_t, 2> copy{__atomic_load_n(&words[0], __ATOMIC_RELAXED),
                                          __atomic_load_n(&words[1], __ATOMIC_RELAXED)};
  const auto header = std::bit_cast<wire::FragmentHeader>(copy);
  const std::uint64_t total = header.total;
  const bool first = total_ == 0;
  if (first) offset_ = 0;
  const std::uint64_t payload = bytes - sizeof(wire::FragmentHeader);
  if (!first && total != total_) return Status::kProtocol;
  if (total < offset_ || payload > total - offset_) return Status::kProtocol;
  const bool last = offset_ + payload == total;
  const std::uint32_t expected = number_ | (first ? wire::kFirst : 0) | (last ? wire::kLast : 0);
  if (ntohl(completion.imm_data) != expected || !credits_.accept(header.credits)) return Status::kProtocol;
  fragment = {.total = total, .offset = offset_, .bytes = {at + sizeof header, payload}};
  total_ = last ? 0 : total;
  number_ = (number_ + 1) & wire::kNumberMask;
  cursor_ = place.next;
  offset_ += payload;
  taken_ = place.taken;
  return Status::kOk;
}

}  // namespace verbena::channel
