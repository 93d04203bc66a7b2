#include "channel/messages.hpp"

#include "channel/operations.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace verbena::channel {

using engine::QueuePair;

namespace {

/// One in four messages that are not inline is signaled, so that their places become free again.
constexpr std::uint32_t kStagingPerSignal = 4;
/// The first bytes of all receives share one area, so short messages touch few pages: receives take turns, while each
/// has its own full buffer. One short copy puts a longer message together.
constexpr std::uint32_t kHeadBytes = 256;

[[nodiscard]] std::uint32_t message_bytes(const Options& options) noexcept {
  return Messages::kCreditBytes + options.eager_bytes;
}

[[nodiscard]] std::size_t stride_of(const Options& options) noexcept {
  constexpr std::size_t kUnit = wire::kUnit;
  return (message_bytes(options) + kUnit - 1) / kUnit * kUnit;
}

[[nodiscard]] std::uint32_t staging_of(const Options& options, std::uint32_t max_inline) noexcept {
  return max_inline >= message_bytes(options) ? 0 : std::min(sends_for(options), options.staged);
}

[[nodiscard]] std::uint32_t places_of(const Options& options, std::uint32_t max_inline) noexcept {
  return staging_of(options, max_inline) + options.reservations;
}

}  // namespace

std::size_t Messages::bytes_for(const Options& options, std::uint32_t max_inline) noexcept {
  const std::size_t receives = wire::receives_for(options.depth);
  return receives * kHeadBytes + (receives + places_of(options, max_inline)) * stride_of(options);
}

std::uint64_t Messages::table_bytes_for(const Options& options, std::uint32_t max_inline) noexcept {
  return wire::receives_for(options.depth) * (sizeof(ibv_recv_wr) + sizeof(ReceiveSges) + sizeof(std::uint8_t)) +
         places_of(options, max_inline) * sizeof(Place);
}

void Messages::open(const Options& options, const nic::Buffer& memory) {
  const std::uint32_t count = wire::receives_for(options.depth);
  eager_bytes_ = options.eager_bytes;
  stride_ = stride_of(options);
  lkey_ = memory.lkey();
  heads_ = memory.data();
  buffers_ = heads_ + std::size_t{count} * kHeadBytes;
  first_place_ = buffers_ + count * stride_;
  const std::uint32_t staging = staging_of(options, pair_.max_inline());
  staging_ = {.first = 0, .end = staging, .next = 0};
  reservations_ = {.first = staging, .end = staging + options.reservations, .next = staging};
  places_.assign(reservations_.end, {});
  is_kept_.assign(count, 0);
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
                    .next = i + 1 < count ? &receives_[i + 1] : nullptr,
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
  // The handshake has announced them.
  (void)pair_.post_receives(receives_.front(), credits_.buffers());
}

Status Messages::take(const ibv_wc& completion, std::span<const std::byte>& body) noexcept {
  const std::uint32_t slot = engine::wr::slot_of(completion.wr_id);
  current_ = slot;
  std::byte* buffer = heads_ + slot * kHeadBytes;
  if (completion.byte_len > kHeadBytes)
    buffer = static_cast<std::byte*>(std::memcpy(buffers_ + slot * stride_, buffer, kHeadBytes));
  return read({buffer, completion.byte_len}, body);
}

void Messages::refill() noexcept {
  if (to_post_ == nullptr) return;
  const std::uint32_t count = credits_.unposted();
  if (pair_.post_receives(*std::exchange(to_post_, nullptr), count)) credits_.posted(count);
}

// Inline: a call would cost a tenth of a short message.
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
  // The update stays due; the next arrival or completion tries again.
  if (credits_.available() == 0 || !pair_.has_reserve()) return;
  const bool is_inline = pair_.max_inline() >= kCreditBytes;
  if (!is_inline && !is_free(places_[staging_.next])) return;
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
    if (signal == QueuePair::Signal::kSometimes && send_now(a, b, c)) return Status::kOk;
    request_.num_sge = gather_inline(a, b, c);
  } else {
    if (!is_free(places_[staging_.next])) return Status::kAgain;
    if (staging_.next % kStagingPerSignal == 0) signal = QueuePair::Signal::kAlways;
    request_.num_sge = gather_staged(a, b, c);
  }
  if (!pair_.post(request_, tag, signal)) [[unlikely]]
    return pair_.reason();
  credits_.sent();
  pair_.count().bytes += total;
  return Status::kOk;
}

bool Messages::send_now(std::span<const std::byte> a, std::span<const std::byte> b,
                        std::span<const std::byte> c) noexcept {
  const std::size_t total = a.size() + b.size() + c.size();
  if (pair_.direct() == nullptr || total + kCreditBytes > pair_.max_inline()) return false;
  const int parts = gather_inline(a, b, c);
  if (!pair_.send_directly(sge_.data(), static_cast<std::size_t>(parts))) [[unlikely]] {
    --pair_.count().inline_sends;
    return false;
  }
  credits_.sent();
  pair_.count().bytes += total;
  return true;
}

bool Messages::is_free(const Place& place) const noexcept {
  return place.state == Place::State::kFree ||
         (place.state == Place::State::kPosted && pair_.sends().is_retired(place.posted_at));
}

/// The next place of `ring`.
std::byte* Messages::take_next(Ring& ring, Place::State as) noexcept {
  std::byte* const start = first_place_ + ring.next * stride_;
  places_[ring.next] = {.posted_at = pair_.sends().position() + 1, .state = as};  // For the next request posted.
  ring.advance();
  return start;
}

std::byte* Messages::reserve() noexcept {
  // Skips a reservation that is held for long.
  for (std::uint32_t i = reservations_.first; i < reservations_.end; ++i, reservations_.advance())
    if (is_free(places_[reservations_.next])) return take_next(reservations_, Place::State::kReserved) + kCreditBytes;
  return nullptr;
}

bool Messages::is_reserved(const std::byte* body) const noexcept {
  // Wraps around for addresses before the places.
  const std::uint64_t offset =
      reinterpret_cast<std::uintptr_t>(body) - kCreditBytes - reinterpret_cast<std::uintptr_t>(first_place_);
  const std::uint64_t place = offset / stride_;
  return offset % stride_ == 0 && place < places_.size() && places_[place].state == Place::State::kReserved;
}

std::uint32_t Messages::place_of(const std::byte* body) const noexcept {
  VERBENA_CHECK(is_reserved(body));
  return static_cast<std::uint32_t>(static_cast<std::size_t>(body - kCreditBytes - first_place_) / stride_);
}

void Messages::cancel_reserved(const std::byte* body) noexcept { places_[place_of(body)].state = Place::State::kFree; }

Status Messages::post_reserved(std::uint32_t tag, const std::byte* body, std::size_t bytes) noexcept {
  const std::uint32_t place = place_of(body);
  std::byte* const start = first_place_ + place * stride_;
  const wire::Credits header = credits_.tell();
  std::memcpy(start, &header, sizeof header);
  const std::size_t total = bytes + kCreditBytes;
  sge_[0] = {
      .addr = reinterpret_cast<std::uintptr_t>(start), .length = static_cast<std::uint32_t>(total), .lkey = lkey_};
  request_.num_sge = 1;
  const bool is_inline = total <= pair_.max_inline();
  request_.send_flags = is_inline ? IBV_SEND_INLINE : 0;
  if (!pair_.post(request_, tag, QueuePair::Signal::kAlways)) [[unlikely]]
    return pair_.reason();
  places_[place] = {.posted_at = pair_.sends().position(),
                    .state = is_inline ? Place::State::kFree : Place::State::kPosted};
  pair_.count().inline_sends += is_inline ? 1 : 0;
  credits_.sent();
  pair_.count().bytes += bytes;
  return Status::kOk;
}

int Messages::gather_staged(std::span<const std::byte> a, std::span<const std::byte> b,
                            std::span<const std::byte> c) noexcept {
  std::byte* const start = take_next(staging_, Place::State::kPosted);
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
