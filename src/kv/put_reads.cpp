#include "kv/put_reads.hpp"

#include <cstring>
#include <utility>

namespace verbena::kv {

bool PutReads::add(const wire::Request& request, std::uint64_t now) noexcept {
  if (count_ == puts_.size()) return false;
  Put& put = puts_[(first_ + count_++) % puts_.size()];
  put.id = request.head.id;
  put.key_length = request.head.key_length;
  put.length = request.large.length;
  put.expected = request.expected;
  put.ttl_ns = request.ttl_ns;
  put.began_ticks = now;
  std::memcpy(put.key_bytes.data(), request.key.data(), request.key.size());
  put.rkey = request.large.rkey;
  put.address = request.large.address;
  return true;
}

std::optional<PutReads::Piece> PutReads::next(std::uint32_t lkey) const noexcept {
  const Put& put = first();
  // All pieces but a value's last have the same length, so that the bytes in flight tell how many there are.
  if (posted_ == put.length || posted_ - arrived_ > (kMostPieces - 1) * kPieceBytes) return {};
  const std::uint64_t bytes = std::min(kPieceBytes, put.length - posted_);
  std::byte* const to = is_in_spare_ ? spare_.data() : pending.value.data();
  return Piece{.to = {.data = to + posted_, .length = bytes, .lkey = is_in_spare_ ? spare_.lkey() : lkey},
               .from = {put.address + posted_, bytes, put.rkey}};
}

bool PutReads::arrived() noexcept {
  arrived_ += std::min(kPieceBytes, first().length - arrived_);
  return arrived_ == first().length;
}

void PutReads::pop() noexcept {
  first_ = (first_ + 1) % puts_.size();
  --count_;
  reset();
}

void PutReads::stop() noexcept {
  count_ = 0;
  reset();
}

void PutReads::reset() noexcept {
  posted_ = arrived_ = 0;
  if (std::exchange(is_in_spare_, false)) spare_.give_back();
}

}  // namespace verbena::kv
