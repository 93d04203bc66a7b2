#include "wire.hpp"

#include "objects.hpp"
#include "sim_nic.hpp"

#include <algorithm>
#include <cstring>

namespace verbena::sim {

namespace {

constexpr std::uint64_t kLine = 64;
constexpr std::uint64_t kMostPieces = 12;
constexpr Nanoseconds kLeastLatency = 300;
constexpr Nanoseconds kMostLatency = 3000;

/// Hands `what` to the peer, unless it is lost on the way.
template <class What>
void send(SimQp& from, std::shared_ptr<const What> what, std::string_view kind,
          void (SimNic::*take)(SimQp& to, std::shared_ptr<const What> what)) {
  World& world = from.world();
  Network& network = from.nic.network();
  // The wire keeps the order of a connection (IBTA 9.5), so that only the latency of each packet is open.
  const Nanoseconds latency = world.random().between(kLeastLatency, kMostLatency);
  from.path.last_arrival = std::max(from.path.last_arrival, world.now() + latency);
  const std::uint64_t rate = network.options().lost_one_in;
  const bool is_lost = rate != 0 && world.random().one_in(rate);
  SimNic* const target = network.find(from.path.gid);
  const SimQp* const aimed_at = target == nullptr ? nullptr : target->find(from.path.qp_num);
  // What is sent before the peer is reset does not reach its next connection: of a device, packet sequence numbers
  // that differ from connection to connection see to that.
  const std::uint64_t epoch = aimed_at == nullptr ? 0 : aimed_at->epoch;
  world.after(
      from.path.last_arrival - world.now(), kind,
      [&network, take, what = std::move(what), is_lost, epoch, gid = from.path.gid, to_qp = from.path.qp_num,
       process = from.nic.process().number(), sender = from.nic.gid(), from_qp = from.qp_num, type = from.qp_type] {
        SimNic* const nic = network.find(gid);
        SimQp* const to = nic == nullptr ? nullptr : nic->find(to_qp);
        const bool is_deaf = to == nullptr || !to->hears() || to->epoch != epoch;
        if (is_lost || is_deaf || !network.reaches(process, nic->process().number())) {
          network.world().tell("message or answer {} for queue pair {} is lost", what->number, to_qp);
          return;
        }
        const bool is_from_peer = to->qp_type == type && to->path.qp_num == from_qp &&
                                  std::memcmp(&to->path.gid, &sender, sizeof sender) == 0;
        if (is_from_peer) (nic->*take)(*to, what);
      });
}

}  // namespace

const char* name_of(ibv_wr_opcode opcode) noexcept {
  switch (opcode) {
    case IBV_WR_SEND: return "SEND";
    case IBV_WR_SEND_WITH_IMM: return "SEND with immediate";
    case IBV_WR_SEND_WITH_INV: return "SEND with invalidation";
    case IBV_WR_RDMA_WRITE: return "WRITE";
    case IBV_WR_RDMA_WRITE_WITH_IMM: return "WRITE with immediate";
    case IBV_WR_RDMA_READ: return "READ";
    case IBV_WR_ATOMIC_CMP_AND_SWP: return "compare-and-swap";
    case IBV_WR_ATOMIC_FETCH_AND_ADD: return "fetch-and-add";
    case IBV_WR_BIND_MW: return "bind";
    case IBV_WR_LOCAL_INV: return "local invalidation";
    default: return "request";
  }
}

std::vector<Piece> cut_into_pieces(std::uint64_t address, std::uint64_t length, Random& random) {
  std::vector<Piece> pieces;
  const std::uint64_t lines = (address % kLine + length + kLine - 1) / kLine;
  std::uint64_t lines_left = lines;
  for (std::uint64_t offset = 0; offset < length;) {
    // Each line is a piece of its own up to kMostPieces; more are shared out by chance.
    const std::uint64_t pieces_left = kMostPieces - std::min<std::uint64_t>(pieces.size(), kMostPieces - 1);
    const std::uint64_t fair = (lines_left + pieces_left - 1) / pieces_left;
    const std::uint64_t run = lines <= kMostPieces || pieces_left == 1 ? fair : random.between(1, 2 * fair);
    const std::uint64_t end =
        std::min(length, (address % kLine + offset) / kLine * kLine + run * kLine - address % kLine);
    pieces.push_back({offset, end - offset});
    lines_left -= std::min(lines_left, run);
    offset = end;
  }
  return pieces;
}

std::uint64_t length_of(std::span<const ibv_sge> sges) noexcept {
  std::uint64_t sum = 0;
  for (const ibv_sge& sge : sges) sum += sge.length;
  return sum;
}

bool keys_hold(const SimQp& qp, const ibv_pd* pd, std::span<const ibv_sge> sges, std::uint32_t needed) {
  // The key of an empty segment is not looked at.
  return std::ranges::all_of(
      sges, [&](const ibv_sge& sge) { return sge.length == 0 || qp.nic.keys().local(pd, sge, needed) != nullptr; });
}

bool gather(const SimQp& qp, std::span<const ibv_sge> sges, std::span<std::byte> bytes) {
  if (!keys_hold(qp, qp.pd, sges, 0)) return false;
  std::size_t at = 0;
  for (const ibv_sge& sge : sges) {
    if (sge.length == 0) continue;
    std::memcpy(bytes.data() + at, qp.nic.keys().local(qp.pd, sge, 0), sge.length);
    at += sge.length;
  }
  return true;
}

bool scatter(const SimQp& qp, const ibv_pd* pd, std::span<const ibv_sge> sges, std::uint64_t offset,
             std::span<const std::byte> bytes) {
  for (const ibv_sge& sge : sges) {
    if (bytes.empty()) break;
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    std::byte* const to = qp.nic.keys().local(pd, sge, IBV_ACCESS_LOCAL_WRITE);
    if (to == nullptr) return false;
    const std::size_t here = std::min<std::size_t>(bytes.size(), sge.length - offset);
    std::memcpy(to + offset, bytes.data(), here);
    bytes = bytes.subspan(here);
    offset = 0;
  }
  return true;
}

void send_message(SimQp& from, std::shared_ptr<const Message> message) {
  send(from, std::move(message), "message", &SimNic::take_message);
}

void send_answer(SimQp& from, std::shared_ptr<const Answer> answer) {
  send(from, std::move(answer), "answer", &SimNic::take_answer);
}

}  // namespace verbena::sim
