// What queue pairs send each other. A message is one packet here: it is lost whole or arrives whole, and its bytes
// reach memory in pieces.
#pragma once

#include "world.hpp"

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace verbena::sim {

struct SimQp;

/// A request on its way to the responder.
struct Message {
  ibv_wr_opcode opcode = IBV_WR_SEND;
  std::uint64_t number = 0;     ///< In the order of posting: what packet sequence numbers come to.
  std::vector<std::byte> data;  ///< Of SEND and WRITE.
  std::uint64_t length = 0;     ///< Of the data, or of what a READ asks for.
  std::uint64_t address = 0;
  std::uint32_t rkey = 0;
  std::uint32_t immediate = 0;  ///< Or the key to invalidate.
  std::uint64_t operand = 0;
  std::uint64_t swap = 0;
  bool is_solicited = false;
};

/// What a responder sends back. Each tells besides that every message before `number` is done.
struct Answer {
  enum class Kind : std::uint8_t {
    kDone,
    kData,      ///< Of a READ or an atomic.
    kRefused,   ///< `status` says why.
    kNotReady,  ///< No receive: try again after the time that `rnr_timer` stands for.
  };
  Kind kind = Kind::kDone;
  std::uint64_t number = 0;
  std::vector<std::byte> data;
  ibv_wc_status status = IBV_WC_SUCCESS;
  std::uint8_t rnr_timer = 0;
};

/// The number of the first message, of the packet sequence number that modify_qp was told. Never 0.
[[nodiscard]] constexpr std::uint64_t number_of(std::uint32_t first_psn) noexcept {
  constexpr std::uint32_t kPsns = 1U << 24;
  return first_psn % kPsns + kPsns;
}
[[nodiscard]] constexpr bool is_read_or_atomic(ibv_wr_opcode opcode) noexcept {
  return opcode == IBV_WR_RDMA_READ || opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}
[[nodiscard]] constexpr bool is_atomic(ibv_wr_opcode opcode) noexcept {
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}
[[nodiscard]] constexpr bool is_local(ibv_wr_opcode opcode) noexcept {
  return opcode == IBV_WR_BIND_MW || opcode == IBV_WR_LOCAL_INV;
}
[[nodiscard]] constexpr bool is_write(ibv_wr_opcode opcode) noexcept {
  return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}
/// "SEND", as a story has it.
[[nodiscard]] const char* name_of(ibv_wr_opcode opcode) noexcept;

/// A run of bytes of a message that reaches memory at once.
struct Piece {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};
/// Cuts `length` bytes at `address` where cache lines begin. IBTA o9-20 lets nobody count on the order inside of a
/// message, so whoever delivers the pieces gives each a delay of its own. Long messages are cut into fewer, longer
/// runs.
[[nodiscard]] std::vector<Piece> cut_into_pieces(std::uint64_t address, std::uint64_t length, Random& random);

/// The bytes of the segments, `offset` from the start, from or to `bytes`. False where a key does not hold.
[[nodiscard]] bool gather(const SimQp& qp, std::span<const ibv_sge> sges, std::span<std::byte> bytes);
[[nodiscard]] bool scatter(const SimQp& qp, const ibv_pd* pd, std::span<const ibv_sge> sges, std::uint64_t offset,
                           std::span<const std::byte> bytes);
/// Whether every segment may be used as `needed` says.
[[nodiscard]] bool keys_hold(const SimQp& qp, const ibv_pd* pd, std::span<const ibv_sge> sges, std::uint32_t needed);
[[nodiscard]] std::uint64_t length_of(std::span<const ibv_sge> sges) noexcept;

/// Puts it on the wire. The packets of one queue pair arrive in the order in which they were sent, or not at all.
void send_message(SimQp& from, std::shared_ptr<const Message> message);
void send_answer(SimQp& from, std::shared_ptr<const Answer> answer);

}  // namespace verbena::sim
