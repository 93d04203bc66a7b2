// The server's side of listing and flushing: one step of a scan for each request.
#include "kv/session.hpp"
#include "kv/worker.hpp"

#include <array>
#include <cstring>

namespace verbena::kv {

// The place comes back from the client, which may have it from another server, or from nowhere. The seal finds slips;
// the range that `Store::has` checks is all that safety needs.
std::uint64_t Session::seal_of(const Store::ScanPlace& at, Key prefix) const noexcept {
  const std::array<std::uint64_t, 3> front{at.place, at.moves, worker_.options().index};
  std::array<std::byte, sizeof front + kMaxKeyBytes> sealed;
  std::memcpy(sealed.data(), front.data(), sizeof front);
  if (!prefix.empty()) std::memcpy(sealed.data() + sizeof front, prefix.data(), prefix.size());
  // Never 0, which means the start.
  return hash_of(std::span(sealed).first(sizeof front + prefix.size()), worker_.options().hash_seed) | 1;
}

bool Session::is_ours(const wire::ScanPlace& at, Key prefix) const noexcept {
  if (at.seal == 0) return at == wire::ScanPlace{};
  const Store::ScanPlace place{.place = at.place, .moves = at.moves};
  return at.seal == seal_of(place, prefix) && store_.has(place);
}

void Session::scan(const wire::Request& request) noexcept {
  if (!is_ours(request.scan, request.key)) return reply_change(request.head.id, {.status = Status::kBadArgument});
  const Store::ScanPlace from{.place = request.scan.place, .moves = request.scan.moves};
  std::array<std::byte, sizeof(wire::ScanPage) + KeyPage::kBytes> payload;
  const Store::Scanned done = request.head.op == wire::Op::kFlush
                                  ? store_.flush(request.key, from)
                                  : store_.list(request.key, from, std::span(payload).subspan(sizeof(wire::ScanPage)));
  wire::ScanPage page{.count = done.keys};
  if (!done.is_over)
    page.next = {.place = done.next.place, .moves = done.next.moves, .seal = seal_of(done.next, request.key)};
  std::memcpy(payload.data(), &page, sizeof page);
  worker_.publish();
  reply({.kind = wire::ReplyKind::kScanned, .id = request.head.id}, std::span(payload).first(sizeof page + done.bytes));
}

}  // namespace verbena::kv
