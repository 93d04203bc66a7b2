#include "channel/messages.hpp"

#include "channel/operations.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace verbena::channel {

using engine::QueuePair;

namespace {

/// Places of messages that are not inline. Every fourth of them is signaled, so that the others come back.
constexpr std::uint32_t kMostStaging = 32;
constexpr std::uint32_t kStagingPerSignal = 4;
/// The first bytes of each receive are in an area of their own, so that short messages use few pages: the receives take
/// turns, and of the buffers behind this each has its own. A message that is longer is put together by one short copy.
constexpr std::uint32_t kHeadBytes = 256;

[[nodiscard]] std::uint32_t message_bytes(const Options& options) noexcept {
  return Messages::kCreditBytes + options.eager_bytes;
}

[[nodiscard]] std::size_t stride_of(const Options& options) noexcept {
  constexpr std::size_t kUnit = wire::kUnit;
  return (message_bytes(options) + kUnit - 1) / kUnit * kUnit;
}

[[nodiscard]] std::uint32_t staging_of(const Options& options, std::uint32_t max_inline) noexcept {
  const bool all_inline = max_inline >= message_bytes(options);
  return all_inline ? 0 : std::min(sends_for(options), kMostStaging);
}

}  // namespace

std::size_t Messages::bytes_for(const Options& options, std::uint32_t max_inline) noexcept {
  const std::size_t receives = wire::receives_for(options.depth);
  return receives * kHeadBytes + (receives + staging_of(options, max_inline)) * stride_of(options);
}

std::uint64_t Messages::table_bytes_for(const Options& options) noexcept {
  return wire::receives_for(options.depth) * (sizeof(ibv_recv_wr) + sizeof(ReceiveSges)) +
         kMostStaging * sizeof(std::uint32_t);
}

void Messages::open(const Options& options, const nic::Buffer& memory) {
  const std::uint32_t count = wire::receives_for(options.depth);
  eager_bytes_ = options.eager_bytes;
  stride_ = stride_of(options);
  lkey_ = memory.lkey();
  heads_ = memory.data();
  buffers_ = heads_ + std::size_t{count} * kHeadBytes;
  staging_ = buffers_ + count * stride_;
  // As if each place had been used by a request that is retired already.
  staged_at_.assign(staging_of(options, pair_.max_inline()), pair_.sends().position());
  receives_.resize(count);
  receive_sges_.resize(count);
  const std::uint32_t head = std::min(kHeadBytes, message_bytes(options));
  const std::uint32_t rest = message_bytes(options) - head;
  for (std::uint32_t i = 0; i < count; ++i) {
    receive_sges_[i] = {
        {{.addr = reinterpret_cast<std::uintptr_t>(heads_ + i * kHeadBytes), .length = head, .lkey = lkey_},
         {.addr = reinterpret_cast<std::uintptr_t>(buffers_ + i * stride_ + kHeadBytes),
          .length = rest,
          .lkey = lkey_}}};
    receives_[i] = {.wr_id = engine::wr::kReceiveBit | i,
                    .next = &receives_[i + 1 < count ? i + 1 : 0],
                    .sg_list = receive_sges_[i].data(),
                    .num_sge = rest != 0 ? 2 : 1};
  }
  request_.opcode = IBV_WR_SEND;
  request_.sg_list = sge_.data();
}

void Messages::meet(const wire::Handshake& peer) noexcept {
  const std::uint32_t inline_body = pair_.max_inline() - std::min(pair_.max_inline(), kCreditBytes);
  longest_ = std::min(peer.eager_bytes, std::max(eager_bytes_, inline_body));
}

// --- receiving ----------------------------------------------------------------------------------------------------

void Messages::post_receives() noexcept {
  // The handshake has told of them.
  receives_.back().next = nullptr;
  (void)pair_.post_receives(receives_.front(), credits_.buffers());
  receives_.back().next = receives_.data();
}

Status Messages::take(const ibv_wc& completion, std::span<const std::byte>& body) noexcept {
  const std::size_t slot = engine::wr::slot_of(completion.wr_id);
  std::byte* buffer = heads_ + slot * kHeadBytes;
  if (completion.byte_len < kCreditBytes) return Status::kProtocol;
  if (completion.byte_len > kHeadBytes)
    buffer = static_cast<std::byte*>(std::memcpy(buffers_ + slot * stride_, buffer, kHeadBytes));
  wire::Credits claim;
  std::memcpy(&claim, buffer, sizeof claim);
  if (!credits_.accept(claim)) return Status::kProtocol;
  body = {buffer + kCreditBytes, completion.byte_len - kCreditBytes};
  return Status::kOk;
}

void Messages::refill() noexcept {
  const std::uint32_t count = credits_.unposted();
  if (count == 0) return;
  const std::uint32_t end = (next_receive_ + count) % credits_.buffers();
  ibv_recv_wr& last = receives_[end == 0 ? credits_.buffers() - 1 : end - 1];
  ibv_recv_wr* const linked = std::exchange(last.next, nullptr);
  const bool posted = pair_.post_receives(receives_[next_receive_], count);
  last.next = linked;
  if (!posted) return;
  next_receive_ = end;
  credits_.posted(count);
}

// A call would be a tenth of what a short message costs.
inline int Messages::gather_inline(std::span<const std::byte> a, std::span<const std::byte> b,
                                   std::span<const std::byte> c) noexcept {
  header_ = credits_.tell();
  sge_[0] = {.addr = reinterpret_cast<std::uintptr_t>(&header_), .length = kCreditBytes, .lkey = 0};
  int parts = 1;
  for (const auto& part : {a, b, c}) {
    if (part.empty()) continue;
    sge_[static_cast<std::size_t>(parts++)] = {.addr = reinterpret_cast<std::uintptr_t>(part.data()),
                                               .length = static_cast<std::uint32_t>(part.size()),
                                               .lkey = 0};
  }
  request_.send_flags = IBV_SEND_INLINE;
  ++pair_.count().inline_sends;
  return parts;
}

void Messages::send_update() noexcept {
  // Still due then: what arrives or completes next comes by here.
  if (credits_.available() == 0 || !pair_.has_reserve()) return;
  const bool is_inline = pair_.max_inline() >= kCreditBytes;
  if (!is_inline && !is_staging_free()) return;
  refill();
  if (pair_.reason() != Status::kOk) return;
  request_.num_sge = is_inline ? gather_inline({}, {}, {}) : gather_staged({}, {}, {});
  if (pair_.post(request_, kNoTag, QueuePair::Signal::kSometimes)) credits_.sent();
}

// --- sending ------------------------------------------------------------------------------------------------------

Status Messages::post(std::uint32_t tag, QueuePair::Signal signal, std::span<const std::byte> a,
                      std::span<const std::byte> b, std::span<const std::byte> c) noexcept {
  const std::size_t total = a.size() + b.size() + c.size();
  if (total + kCreditBytes <= pair_.max_inline()) [[likely]] {
    request_.num_sge = gather_inline(a, b, c);
  } else {
    if (!is_staging_free()) return Status::kAgain;
    if (next_staging_ % kStagingPerSignal == 0) signal = QueuePair::Signal::kAlways;
    request_.num_sge = gather_staged(a, b, c);
  }
  if (!pair_.post(request_, tag, signal)) [[unlikely]]
    return pair_.reason();
  credits_.sent();
  pair_.count().bytes += total;
  return Status::kOk;
}

bool Messages::is_staging_free() const noexcept { return pair_.sends().is_retired(staged_at_[next_staging_]); }

int Messages::gather_staged(std::span<const std::byte> a, std::span<const std::byte> b,
                            std::span<const std::byte> c) noexcept {
  std::byte* const start = staging_ + next_staging_ * stride_;
  staged_at_[next_staging_] = pair_.sends().position() + 1;  // Of the request that is posted next.
  if (++next_staging_ == staged_at_.size()) next_staging_ = 0;
  const wire::Credits header = credits_.tell();
  std::memcpy(start, &header, sizeof header);
  std::byte* end = start + sizeof header;
  for (const auto& part : {a, b, c}) {
    if (part.empty()) continue;
    std::memcpy(end, part.data(), part.size());
    end += part.size();
  }
  sge_[0] = {.addr = reinterpret_cast<std::uintptr_t>(start),
             .length = static_cast<std::uint32_t>(end - start),
             .lkey = lkey_};
  request_.send_flags = 0;
  return 1;
}

}  // namespace verbena::channel
