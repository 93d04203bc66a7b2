// Operations that the calling thread carries out at once, as on a NIC made of software: in its own steps, between which
// others change the memory. Only past an idle queue, so that nothing posted before is overtaken.
#include "sim_nic.hpp"

#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace verbena::sim {

namespace {

/// The peer's end, where it can be reached now.
SimQp* peer_of(SimQp& qp, std::uint32_t needed) {
  const Network& network = qp.nic.network();
  if (qp.now != IBV_QPS_RTS || !qp.requester.is_idle()) return nullptr;
  SimNic* const nic = network.find(qp.path.gid);
  if (nic == nullptr || nic->process().state() == Process::State::kDead) return nullptr;
  const std::uint32_t mine = qp.nic.process().number(), other = nic->process().number();
  if (!network.reaches(mine, other) || !network.reaches(other, mine)) return nullptr;
  SimQp* const peer = nic->find(qp.path.qp_num);
  return peer != nullptr && peer->hears() && (peer->path.access & needed) == needed ? peer : nullptr;
}

/// Where the peer's bytes are; null: not now, or not at all.
std::byte* place(SimQp& qp, std::uint64_t remote, std::uint32_t rkey, std::uint64_t bytes, std::uint32_t needed) {
  if (bytes == 0) return nullptr;
  SimQp* const peer = peer_of(qp, needed);
  return peer != nullptr ? peer->nic.keys().remote(*peer, remote, rkey, bytes, needed) : nullptr;
}

void pause(SimQp& qp) {
  if (Turns* const turns = qp.nic.network().turns()) turns->pause();
}

bool read_plain(ibv_qp* base, std::byte* local, std::uint32_t, std::uint64_t bytes, std::uint64_t remote,
                std::uint32_t rkey) noexcept {
  auto& qp = *static_cast<SimQp*>(base);
  if (bytes == 0 || !qp.is_reliable()) return false;
  for (const Piece& piece : cut_into_pieces(remote, bytes, qp.world().random())) {
    pause(qp);
    const std::byte* const from = place(qp, remote + piece.offset, rkey, piece.bytes, IBV_ACCESS_REMOTE_READ);
    if (from == nullptr) return false;
    std::memcpy(local + piece.offset, from, piece.bytes);
  }
  return true;
}

/// In one step: a WRITE that is cut short would have happened in part.
bool write_plain(ibv_qp* base, std::byte* local, std::uint32_t, std::uint64_t bytes, std::uint64_t remote,
                 std::uint32_t rkey) noexcept {
  auto& qp = *static_cast<SimQp*>(base);
  pause(qp);
  std::byte* const to = place(qp, remote, rkey, bytes, IBV_ACCESS_REMOTE_WRITE);
  if (to != nullptr) std::memcpy(to, local, bytes);
  return to != nullptr;
}

bool is_local(SimQp& qp, std::byte* local, std::uint32_t lkey, std::uint64_t bytes, std::uint32_t needed) {
  const ibv_sge sge{
      .addr = reinterpret_cast<std::uintptr_t>(local), .length = static_cast<std::uint32_t>(bytes), .lkey = lkey};
  return bytes == sge.length && qp.nic.keys().local(qp.pd, sge, needed) != nullptr;
}

bool read(ibv_qp* base, std::byte* local, std::uint32_t lkey, std::uint64_t bytes, std::uint64_t remote,
          std::uint32_t rkey) noexcept {
  auto& qp = *static_cast<SimQp*>(base);
  return is_local(qp, local, lkey, bytes, IBV_ACCESS_LOCAL_WRITE) && read_plain(base, local, lkey, bytes, remote, rkey);
}

bool write(ibv_qp* base, std::byte* local, std::uint32_t lkey, std::uint64_t bytes, std::uint64_t remote,
           std::uint32_t rkey) noexcept {
  auto& qp = *static_cast<SimQp*>(base);
  return is_local(qp, local, lkey, bytes, 0) && write_plain(base, local, lkey, bytes, remote, rkey);
}

bool atomic(ibv_qp* base, ibv_wr_opcode opcode, std::uint64_t operand, std::uint64_t swap, std::uint64_t remote,
            std::uint32_t rkey, std::uint64_t& old) noexcept {
  auto& qp = *static_cast<SimQp*>(base);
  pause(qp);
  std::byte* const at = place(qp, remote, rkey, sizeof old, IBV_ACCESS_REMOTE_ATOMIC);
  if (at == nullptr || remote % sizeof old != 0) return false;
  std::memcpy(&old, at, sizeof old);
  std::uint64_t changed = old + operand;
  if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP) changed = old == operand ? swap : old;
  std::memcpy(at, &changed, sizeof changed);
  return true;
}

bool read_list(ibv_qp* base, const nic::PlainRead* reads, std::size_t count, std::uint32_t rkey) noexcept {
  for (const nic::PlainRead& one : std::span(reads, count))
    if (!read_plain(base, one.to, 0, one.bytes, one.from, rkey)) return false;
  return true;
}

bool send(ibv_qp* base, const ibv_sge* parts, std::size_t count) noexcept {
  auto& qp = *static_cast<SimQp*>(base);
  pause(qp);
  SimQp* const peer = peer_of(qp, 0);
  if (peer == nullptr) return false;
  std::vector<std::byte> data;
  for (const ibv_sge& part : std::span(parts, count)) {
    const auto* const from = reinterpret_cast<const std::byte*>(part.addr);
    data.insert(data.end(), from, from + part.length);
  }
  return data.size() <= qp.options.max_inline && peer->responder.take_now(data);
}

constexpr nic::Direct kDirect{.read = read,
                              .write = write,
                              .read_plain = read_plain,
                              .write_plain = write_plain,
                              .atomic = atomic,
                              .read_list = read_list,
                              .send = send,
                              .poll = SimNic::poll_expecting};

}  // namespace

const nic::Direct* SimNic::direct() const noexcept { return process_.works_directly() ? &kDirect : nullptr; }

}  // namespace verbena::sim
